"""Migrations of the run database, by Alembic: each file of `versions` leads from one schema to the next.

A change of `rows.py` raises `SCHEMA_VERSION` and adds a file with that number as its revision
(https://alembic.sqlalchemy.org/en/latest/ops.html). An older database is migrated when it is opened.
"""

from pathlib import Path

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def migrate(connection: Connection, schema: int) -> None:
    """Bring the tables of a database of this older schema to the newest one, in the open transaction."""
    script = ScriptDirectory(str(Path(__file__).parent))
    context = MigrationContext.configure(connection)
    with Operations.context(context):
        for revision in reversed(list(script.iterate_revisions("head", str(schema)))):
            revision.module.upgrade()
    context.stamp(script, "head")
