"""Schema of a run database: whether this version can read it, and its way from an older one."""

from sqlalchemy import URL, select
from sqlalchemy.orm import Session

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.version import kernelwright_version
from kernelwright.results.store.connection import shown
from kernelwright.results.store.rows import OLDEST_SCHEMA, SCHEMA_VERSION, SchemaRow


class NoRunError(StorageError):
    """Place that holds no recorded run; it may not even exist."""


def no_run(url: URL) -> NoRunError:
    return NoRunError(f"{shown(url)} holds no run", "give a folder written by `kernelwright run --out DIR`")


def migrate(session: Session, url: URL) -> None:
    """Bring a database to the newest schema, if it is of an older one. Raises as `is_older` does."""
    if not is_older(session, url):
        return
    from kernelwright.results.store import migrations  # imports Alembic

    row = session.scalars(select(SchemaRow)).one()
    migrations.migrate(session.connection(), row.version)
    row.version, row.written_by = SCHEMA_VERSION, kernelwright_version()


def is_older(session: Session, url: URL) -> bool:
    """Return True if a database is of an older schema. Raises StorageError if this version cannot read it."""
    row = session.scalar(select(SchemaRow))
    if row is None:
        raise no_run(url)
    if not OLDEST_SCHEMA <= row.version <= SCHEMA_VERSION:
        age = "newer" if row.version > SCHEMA_VERSION else "older"
        raise StorageError(
            f"{shown(url)} has schema {row.version}, {age} than the schema {SCHEMA_VERSION} of this version",
            f"use kernelwright {row.written_by}, which wrote it",
        )
    return row.version < SCHEMA_VERSION
