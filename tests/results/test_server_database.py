"""A run's folder whose database is in a PostgreSQL server."""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.results.outputs import write_outputs
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder
from tests.helpers.results import postgresql, run_factory
from tests.helpers.results.run_factory import new_run, task


@pytest.fixture(scope="module")
def empty() -> Iterator[Callable[[], str]]:
    with postgresql.empty_databases() as found:
        yield found


def test_a_folder_leads_to_its_run_in_a_server(empty: Callable[[], str], tmp_path: Path) -> None:
    url = empty()
    for name, count in (("one", 1), ("two", 2)):
        with RunFolder.create(tmp_path / name, url) as folder, new_run(folder.database) as database:
            database.add_task(task("softmax"))
            for round in range(count):
                run_factory.attempt(database, task("softmax"), round, eager=2.0)
            assert write_outputs(folder, database).correct == 1
    for name, count in (("one", 1), ("two", 2)):
        assert not (tmp_path / name / "run.db").exists()
        assert stat.S_IMODE((tmp_path / name / "run.url").stat().st_mode) == 0o600
        with RunDatabase.open(tmp_path / name, read_only=True) as database:
            assert len(database.attempts(task("softmax").id)) == count
        with pytest.raises(UsageError, match="already holds a run"):
            RunFolder.create(tmp_path / name)
        with RunFolder.resume(tmp_path / name) as folder, RunDatabase.open(folder.database) as database:
            run_factory.attempt(database, task("softmax"), count, eager=2.5)
    with RunDatabase.open(url) as latest:
        assert len(latest.attempts(task("softmax").id)) == 3


def test_a_folder_whose_run_never_began(empty: Callable[[], str], tmp_path: Path) -> None:
    RunFolder.create(tmp_path, empty()).close()
    with RunFolder.create(tmp_path) as folder, new_run(folder.database):
        assert (tmp_path / "run.db").exists() and not (tmp_path / "run.url").exists()


def test_databases_that_cannot_be_used(tmp_path: Path) -> None:
    for bad in ("run.db", f"sqlite:///{tmp_path}/run.db"):
        with pytest.raises(
            UsageError, match=r"--database is for a server — use postgresql\+psycopg://user@host"
        ):
            RunFolder.create(tmp_path / "run", bad)
    pytest.importorskip("psycopg", reason="PostgreSQL's driver psycopg is not installed")
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9"):
        RunFolder.create(tmp_path / "run", "postgresql+psycopg://me:secret@127.0.0.1:9/nothing")
    assert not (tmp_path / "run").exists()
