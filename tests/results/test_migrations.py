"""Databases of older versions open, with their rows: schema_1.sql is the dump of one that version 1 wrote."""

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Verdict
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.rows import SCHEMA_VERSION, Base
from kernelwright.results.summary import summarize
from tests.helpers.results import postgresql
from tests.helpers.results.run_factory import attempt, new_run, task

DUMP = Path(__file__).with_name("schema_1.sql")
SOFTMAX = task("softmax")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    file = tmp_path / "run.db"
    connection = sqlite3.connect(file)
    connection.executescript(DUMP.read_text())
    connection.close()
    return file


def version(file: Path) -> int:
    connection = sqlite3.connect(file)
    found = connection.execute("SELECT version FROM schema_version").fetchone()[0]
    connection.close()
    return int(found)


@pytest.mark.parametrize("read_only", [True, False])
def test_an_older_database_opens_with_its_rows(older: Path, read_only: bool) -> None:
    assert version(older) == 1
    with RunDatabase.open(older, read_only=read_only) as database:
        assert [entry.task.id for entry in database.tasks()] == [SOFTMAX.id]
        assert database.tasks()[0].lessons == {}
        verdicts = [one.evaluation.verdict for one in database.attempts(SOFTMAX.id)]
        assert verdicts == [Verdict.wrong_output, Verdict.correct]
        assert len(database.llm_calls()) == 1 and database.settings["coder"] == "builtin"
        assert summarize(database).correct == 1
    assert version(older) == SCHEMA_VERSION


def test_an_older_run_goes_on(older: Path) -> None:
    with RunDatabase.open(older) as database:
        attempt(database, SOFTMAX, 3, eager=2.5)
        database.record_lessons(SOFTMAX.id, {"0 cpp": ["fusion: x2"]})
        database.finish_task(SOFTMAX.id, "rounds used up")
    with RunDatabase.open(older) as database:
        assert [one.round for one in database.attempts(SOFTMAX.id)] == [1, 2, 3]


def test_another_run_begins_in_an_older_database(older: Path) -> None:
    with new_run(older) as database:
        database.add_task(SOFTMAX)
        assert database.attempts(SOFTMAX.id) == []
    with RunDatabase.open(older, run_id="1b3ccbfc3d0b48b28036ed6bbb3fa3d7") as first:
        assert len(first.attempts(SOFTMAX.id)) == 2


def test_what_was_migrated_is_what_is_made_today(older: Path) -> None:
    with RunDatabase.open(older) as database, database.engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    assert [change for change in found if "alembic_version" not in str(change)] == []


def test_a_migration_that_fails_changes_nothing(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelwright.results.store import migrations

    def cut_off(connection: object, schema: int) -> None:
        migrate(connection, schema)
        raise KeyboardInterrupt

    migrate = migrations.migrate
    monkeypatch.setattr(migrations, "migrate", cut_off)
    with pytest.raises(KeyboardInterrupt):
        RunDatabase.open(older)
    connection = sqlite3.connect(older)
    assert "seconds" in connection.execute("SELECT sql FROM sqlite_master WHERE name = 'tasks'").fetchone()[0]
    assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (1,)
    connection.close()
    monkeypatch.undo()
    RunDatabase.open(older).close()
    assert version(older) == SCHEMA_VERSION


def test_an_older_database_that_cannot_be_written(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelwright.results.store import database, migrations

    def refused(*_: object) -> None:
        raise StorageError(f"{older} cannot be written", "make it writable")

    monkeypatch.setattr(migrations, "migrate", refused)
    with pytest.raises(
        StorageError, match=r"is of an older version and cannot be migrated: .* cannot be wri"
    ):
        database.RunDatabase.open(older, read_only=True)


def test_an_older_database_in_a_server() -> None:
    """Its tables as version 1 made them, with the rows of the dump."""
    from sqlalchemy import create_engine, text

    with postgresql.empty_databases() as empty:
        url = empty()
        statements = DUMP.read_text().replace("PRAGMA foreign_keys=OFF;\n", "").replace("DOUBLE", "FLOAT")
        statements = statements.replace("BEGIN TRANSACTION;\n", "").replace("COMMIT;\n", "")
        statements = statements.replace("char(10)", "chr(10)").replace("BOOLEAN", "INTEGER")
        engine = create_engine(url)
        with engine.begin() as connection:
            for statement in statements.split(";\n"):
                if statement.strip():
                    connection.exec_driver_sql(statement.replace("%", "%%"))
            for table, column in (("tasks", "measures_nothing"), ("attempts", "confirms")):
                change = f"ALTER TABLE {table} ALTER {column} TYPE BOOLEAN USING {column} <> 0"
                connection.execute(text(change))
        engine.dispose()
        with RunDatabase.open(url, read_only=True) as database:
            assert [one.round for one in database.attempts(SOFTMAX.id)] == [1, 2]
            assert summarize(database).correct == 1
