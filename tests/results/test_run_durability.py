"""What was recorded survives kill -9 and a full disk; what was not is not there in part."""

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.pool import ConnectionPoolEntry

from kernelwright.kernelbench.errors import StorageError
from kernelwright.results.store.database import RunDatabase
from tests.helpers.results import postgresql, run_factory
from tests.helpers.results.run_factory import new_run, task

ROOT = Path(__file__).parents[2]  # where `tests` is importable
SOFTMAX = task("softmax")

RECORDER = """
import sys
from tests.helpers.results import run_factory
from kernelwright.results.store.database import RunDatabase
database = RunDatabase.open(sys.argv[1])
task = run_factory.task("softmax")
for round in range(100_000):
    run_factory.attempt(database, task, round, eager=1.5)
    print(round, flush=True)
"""

KILLED_INSIDE = """
import os, signal, sys
from tests.helpers.results import run_factory
from sqlalchemy import event
from kernelwright.results.store.database import RunDatabase
database = RunDatabase.open(sys.argv[1])
@event.listens_for(database.engine, "before_cursor_execute")
def kill(connection, cursor, statement, *rest):
    if sys.argv[2] in statement:
        os.kill(os.getpid(), signal.SIGKILL)
run_factory.attempt(database, run_factory.task("softmax"), 2, eager=1.5)
"""

FULL_DISK = """
import json, pathlib, subprocess, sys
folder = pathlib.Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
from tests.helpers.results import run_factory
from kernelwright.kernelbench.errors import StorageError
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder
(folder / "filler").write_bytes(bytes(400_000))
said = {}
with RunFolder.create(folder) as run, run_factory.new_run(folder) as database:
    task = run_factory.task("softmax")
    database.add_task(task)
    run.write(run.summary, "before")
    recorded = 0
    try:
        for recorded in range(10_000):
            run_factory.attempt(database, task, recorded, eager=1.5)
    except StorageError as error:
        said["error"] = str(error)
    said["recorded"] = recorded
    said["readable"] = len(database.attempts(task.id))
    try:
        run.write(run.summary, "x" * 2_000_000)
    except StorageError as error:
        said["file_error"] = str(error)
    said["summary"] = run.summary.read_text()
    said["files"] = sorted(path.name for path in folder.iterdir())
    (folder / "filler").unlink()
    run_factory.attempt(database, task, recorded, eager=1.5)
with RunDatabase.open(folder, read_only=True) as database:
    said["after"] = len(database.attempts(task.id))
subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
with RunDatabase.open(folder, read_only=True) as database:
    said["read_only_disk"] = len(database.attempts(task.id))
try:
    RunFolder.resume(folder)
except StorageError as error:
    said["read_only_error"] = str(error)
print(json.dumps(said))
"""


def rows(path: Path, table: str) -> int:
    connection = sqlite3.connect(path / "run.db")
    try:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    finally:
        connection.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with new_run(tmp_path) as database:
        database.add_task(SOFTMAX)
    return tmp_path


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_loses_nothing_that_was_acknowledged(run: Path, seed: int) -> None:
    recorder = subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(run)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert recorder.stdout is not None
    acknowledged = [int(recorder.stdout.readline()) for _ in range(15)]
    time.sleep(random.Random(seed).uniform(0, 0.1))
    recorder.kill()
    acknowledged += [int(line) for line in recorder.stdout if line.endswith("\n")]
    assert recorder.wait() == -signal.SIGKILL

    with RunDatabase.open(run) as database:
        recorded = [row.round for row in database.attempts(SOFTMAX.id)]
        # The one being acknowledged when the process died may be there, whole.
        assert recorded in (acknowledged, [*acknowledged, acknowledged[-1] + 1])
        assert rows(run, "attempts") == rows(run, "evaluations") == rows(run, "profiles") == len(recorded)
        run_factory.attempt(database, SOFTMAX, 100_000, eager=1.5)
        assert len(database.attempts(SOFTMAX.id)) == len(recorded) + 1


def test_kill_9_loses_nothing_that_a_server_acknowledged() -> None:
    with postgresql.empty_databases() as empty:
        url = empty()
        with new_run(url) as database:
            database.add_task(SOFTMAX)
        recorder = subprocess.Popen(
            [sys.executable, "-c", RECORDER, url], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert recorder.stdout is not None
        acknowledged = [int(recorder.stdout.readline()) for _ in range(15)]
        recorder.kill()
        acknowledged += [int(line) for line in recorder.stdout if line.endswith("\n")]
        recorder.wait()
        with RunDatabase.open(url) as database:
            recorded = [row.round for row in database.attempts(SOFTMAX.id)]
            assert recorded in (acknowledged, [*acknowledged, acknowledged[-1] + 1])


@pytest.mark.parametrize("statement", ["INSERT INTO evaluations", "INSERT INTO profiles"])
def test_an_attempt_cut_off_leaves_nothing_behind(run: Path, statement: str) -> None:
    with RunDatabase.open(run) as database:
        run_factory.attempt(database, SOFTMAX, 1, eager=1.5)
    killed = subprocess.run([sys.executable, "-c", KILLED_INSIDE, str(run), statement], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    # A reader that may not write finds its way too.
    with RunDatabase.open(run, read_only=True) as database:
        assert [row.round for row in database.attempts(SOFTMAX.id)] == [1]
    assert rows(run, "attempts") == rows(run, "evaluations") == rows(run, "profiles") == 1


def test_a_commit_waits_for_the_disk(run: Path) -> None:
    with RunDatabase.open(run) as database, database.engine.connect() as connection:
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2  # FULL
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    unshare = [shutil.which("unshare") or "", "--user", "--map-root-user", "--mount"]
    if not unshare[0] or subprocess.run([*unshare, "mount", "-t", "tmpfs", "t", str(tmp_path)]).returncode:
        pytest.skip("this machine does not permit a tmpfs in a mount namespace")
    script = [*unshare, sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "no space left" in said["error"] and "already recorded are safe" in said["error"]
    assert "\n" not in said["error"]
    assert said["recorded"] > 10
    assert said["readable"] == said["recorded"]
    assert "No space left on device" in said["file_error"]
    assert said["summary"] == "before"
    assert not [name for name in said["files"] if name.startswith(".summary")]
    assert said["after"] == said["read_only_disk"] == said["recorded"] + 1
    assert "Read-only file system" in said["read_only_error"]


def test_a_full_database_is_one_line_and_loses_nothing(run: Path) -> None:
    with RunDatabase.open(run) as database:

        @event.listens_for(database.engine, "connect")
        def limit(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
            connection.execute("PRAGMA max_page_count=40")

        database.engine.dispose()
        recorded = 0
        with pytest.raises(StorageError, match=r"no space left for .* already recorded are safe") as full:
            for recorded in range(10_000):
                run_factory.attempt(database, SOFTMAX, recorded, eager=1.5)
        assert "\n" not in str(full.value)
    with RunDatabase.open(run) as database:
        assert [row.round for row in database.attempts(SOFTMAX.id)] == list(range(recorded))
        run_factory.attempt(database, SOFTMAX, recorded, eager=1.5)
    assert recorded > 5
