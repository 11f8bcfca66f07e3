"""The run database gives back what was recorded, in a file or a server, and says in one line why it cannot."""

import math
import random
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from kernelwright.kernelbench.errors import MissingPrerequisite, StorageError, UsageError
from kernelwright.kernelbench.records import Correctness, Verdict
from kernelwright.profiling.records import Metric, RungOutcome
from kernelwright.results.report.contents import RunReport
from kernelwright.results.store import connection
from kernelwright.results.store.database import NoRunError, RunDatabase
from kernelwright.results.store.records import TaskState
from kernelwright.results.store.rows import OLDEST_SCHEMA, SCHEMA_VERSION
from kernelwright.results.summary import summarize
from tests.helpers.results import postgresql, run_factory
from tests.helpers.results.run_factory import (
    ADVICE,
    ENVIRONMENT,
    PROFILE,
    TARGET,
    candidate,
    evaluation,
    llm_call,
    new_run,
    task,
)

SOFTMAX, RELU = task("softmax"), task("relu")
Place = Path | str  # of a database: a file, or the URL of one in a server


@pytest.fixture(scope="module")
def empty() -> Iterator[Callable[[], str]]:
    with postgresql.empty_databases() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return tmp_path / "run.db"
    empty: Callable[[], str] = request.getfixturevalue("empty")
    return empty()


@pytest.fixture
def database(where: Place) -> Iterator[RunDatabase]:
    with new_run(where) as found:
        yield found


def execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path / "run.db")
    with connection:
        connection.execute(statement)
    connection.close()


def test_an_attempt_comes_back_as_it_was_recorded(where: Place) -> None:
    first, second = candidate(1), candidate(2, parents=(candidate(1).sha256,))
    with new_run(where) as database:
        database.add_task(SOFTMAX)
        failed = evaluation(SOFTMAX, first, Verdict.wrong_output, reason="error 3.4 budgets")
        measured = evaluation(SOFTMAX, second, eager=1.92, compile=1.1, floor=30.0)
        database.record_attempt(SOFTMAX.id, 1, first, None, failed, None)
        database.record_attempt(SOFTMAX.id, 2, second, ADVICE, measured, PROFILE)

    with RunDatabase.open(where) as database:
        one, two = database.attempts(SOFTMAX.id)
    assert (one.round, one.candidate, one.advice, one.evaluation, one.profile) == (
        1,
        first,
        None,
        failed,
        None,
    )
    assert (two.round, two.candidate, two.advice, two.evaluation, two.profile) == (
        2,
        second,
        ADVICE,
        measured,
        PROFILE,
    )
    assert one.task == two.task == SOFTMAX.id


def test_a_profile_is_replaced_by_one_that_extends_it_and_its_time_counts(database: RunDatabase) -> None:
    for one in (task("softmax"), task("relu")):
        database.add_task(one)
        for round in range(2):
            run_factory.attempt(database, one, round, eager=2.0)
    before = database.seconds(task("softmax").id)
    ncu = RungOutcome(name="ncu", on=True, why="2 launches", seconds=12.5)
    extended = run_factory.PROFILE.model_copy(update={"rungs": (ncu,)})
    database.record_profile(task("softmax").id, 1, extended)
    assert [a.profile for a in database.attempts(task("softmax").id)] == [run_factory.PROFILE, extended]
    assert [a.profile for a in database.attempts(task("relu").id)] == 2 * [run_factory.PROFILE]
    assert database.seconds(task("softmax").id) == before + 12.5
    assert summarize(database).seconds == 4 * 3.5 + 12.5


def test_what_one_wants_to_query_has_a_column(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)
    run_factory.attempt(database, SOFTMAX, 1, eager=2.0, compile=1.5)
    query = text(
        "SELECT verdict, speedup_eager_median, speedup_eager_low, speedup_eager_high, speedup_compile_median,"
        " speedup_fastest_median, own_kernel_share, candidate_us, seconds FROM evaluations"
    )
    with database.engine.connect() as reader:
        row = reader.execute(query).one()
    assert tuple(row) == ("correct", 2.0, 1.96, 2.04, 1.5, 1.5, 0.97, 50.0, 3.5)


def test_the_run_keeps_its_settings_and_its_machine(where: Place) -> None:
    new_run(where).close()
    with RunDatabase.open(where) as database:
        run = database.run
        assert database.settings == {"coder": "builtin", "rounds": 3, "max_usd": None}
    assert (run.target, run.environment) == (TARGET, ENVIRONMENT)
    assert run.command == "kernelwright run --suite builtin --rounds 3"
    assert run.started.endswith("+00:00")


def test_tasks_keep_their_order_state_and_audit(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)
    database.add_task(RELU)
    database.record_audit(RELU.id, "zero for every input", measures_nothing="constant output")
    database.record_lessons(RELU.id, {"0 cpp": ["fusion: ×2"]})
    database.finish_task(SOFTMAX.id, "rounds used up")
    softmax, relu = database.tasks()
    assert (softmax.task, softmax.state, softmax.stop_reason) == (SOFTMAX, TaskState.done, "rounds used up")
    assert (relu.task, relu.state, relu.stop_reason) == (RELU, TaskState.pending, None)
    assert (softmax.lessons, relu.lessons) == ({}, {"0 cpp": ("fusion: ×2",)})
    assert (softmax.measures_nothing, relu.measures_nothing) == (False, True)
    assert (relu.measures_nothing_why, relu.audit) == ("constant output", "zero for every input")


def test_a_run_comes_to_be_with_all_its_tasks_or_not_at_all(where: Place) -> None:
    """Else one killed at its start would go on with some of them, and take that for all."""
    tasks = [task("a"), task("b")]
    other = tasks[0].model_copy(update={"source": "# another"})
    with pytest.raises(UsageError):
        RunDatabase.create(where, settings={}, target=TARGET, tasks=[*tasks, other])
    with pytest.raises(NoRunError):
        RunDatabase.open(where)
    with RunDatabase.create(where, settings={}, target=TARGET, tasks=tasks) as database:
        assert [entry.task for entry in database.tasks()] == tasks


def test_adding_a_task_again_keeps_what_is_known_of_it(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)
    database.finish_task(SOFTMAX.id, "rounds used up")
    database.add_task(SOFTMAX)
    assert [row.state for row in database.tasks()] == [TaskState.done]


def test_a_task_whose_source_changed_is_refused(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)
    with pytest.raises(UsageError, match="has changed since this run began"):
        database.add_task(SOFTMAX.model_copy(update={"source": "class Model: pass"}))


def test_model_calls_come_back_whole(database: RunDatabase) -> None:
    calls = [llm_call(SOFTMAX.id, 0.25), llm_call(None, None)]
    for call in calls:
        database.record_llm_call(call)
    assert database.llm_calls() == calls


def test_infinite_numbers_and_undecodable_output_survive(database: RunDatabase) -> None:
    made = candidate(1)
    found = evaluation(SOFTMAX, made, Verdict.wrong_output, reason="\udcff\0 in the compiler's output")
    infinite = Correctness(inputs_tried=1, error=math.inf, reference_error=None, worst_input="ramp")
    found = found.model_copy(update={"correctness": infinite})
    profile = PROFILE.model_copy(
        update={"metrics": (Metric(name="x", value=math.nan, unit="", provenance="perf"),)}
    )
    database.add_task(SOFTMAX)
    database.record_attempt(SOFTMAX.id, 1, made, None, found, profile)
    (row,) = database.attempts(SOFTMAX.id)
    assert row.evaluation.correctness is not None
    assert row.evaluation.correctness.error == math.inf
    assert row.evaluation.reason == "?\0 in the compiler's output"
    assert row.profile is not None
    assert math.isnan(row.profile.metrics[0].value)


def test_threads_record_into_one_database(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)

    def record(worker: int) -> None:
        for number in range(10):
            run_factory.attempt(database, SOFTMAX, 10 * worker + number, eager=1.5)

    threads = [threading.Thread(target=record, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row.round for row in database.attempts(SOFTMAX.id)) == list(range(40))


def test_runs_that_share_a_database_do_not_mix(where: Place) -> None:
    with new_run(where) as first:
        first.add_task(SOFTMAX)
        run_factory.attempt(first, SOFTMAX, 1, eager=2.0)
    with new_run(where) as second:
        second.add_task(SOFTMAX)
        assert second.attempts(SOFTMAX.id) == []
    with RunDatabase.open(where) as latest, RunDatabase.open(where, run_id=first.run_id) as older:
        assert latest.run_id == second.run_id
        assert len(older.attempts(SOFTMAX.id)) == 1


@pytest.mark.parametrize(("version", "age"), [(SCHEMA_VERSION + 1, "newer"), (OLDEST_SCHEMA - 1, "older")])
def test_another_schema_is_refused(tmp_path: Path, version: int, age: str) -> None:
    new_run(tmp_path).close()
    execute(tmp_path, f"UPDATE schema_version SET version = {version}, written_by = '9.9.9'")
    with pytest.raises(StorageError) as refused:
        RunDatabase.open(tmp_path)
    assert f"schema {version}, {age} than" in refused.value.message
    assert "kernelwright 9.9.9" in refused.value.fix
    with pytest.raises(StorageError, match=age):
        new_run(tmp_path)


def test_a_record_of_an_unknown_form_is_refused(tmp_path: Path) -> None:
    example = new_run(tmp_path)
    run_factory.record_example(example)
    execute(tmp_path, """UPDATE evaluations SET evaluation = '{"verdict": "superb"}' WHERE attempt = 1""")
    with pytest.raises(StorageError, match=r"record \(of type Evaluation\) that this version cannot read"):
        example.attempts(task("softmax").id)


def test_a_place_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoRunError, match="holds no run"):
        RunDatabase.open(tmp_path)
    assert list(tmp_path.iterdir()) == []
    execute(tmp_path, "CREATE TABLE letters (body TEXT)")
    with pytest.raises(NoRunError, match="holds no run"):
        RunDatabase.open(tmp_path)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("Dear diary, " * 500)
    for read_only in (True, False):
        with pytest.raises(StorageError, match="is not a database"):
            RunDatabase.open(tmp_path, read_only=read_only)


def test_a_damaged_database_is_named_with_the_way_to_recover_it(tmp_path: Path) -> None:
    with new_run(tmp_path) as database:
        run_factory.record_example(database)
    content = bytearray((tmp_path / "run.db").read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)  # all but the first page, the list of tables
    (tmp_path / "run.db").write_bytes(content)
    with pytest.raises(StorageError, match="is damaged") as refused:
        RunDatabase.open(tmp_path)
    assert ".dump" in refused.value.fix
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("seed", range(8))
def test_wrong_bytes_are_damage_and_nothing_is_called_safe(seed: int, tmp_path: Path) -> None:
    """Text that is no text, numbers that are none, an index that leads nowhere: what is said names the file."""
    chosen = random.Random(seed)
    with new_run(tmp_path) as database:
        run_factory.record_example(database)
    file = tmp_path / "run.db"
    content = bytearray(file.read_bytes())
    for _ in range(20):
        at = chosen.randrange(4096, len(content) - 256)
        content[at : at + 256] = chosen.randbytes(256)
    file.write_bytes(content)
    with (
        pytest.raises(StorageError, match=r"damaged|cannot read") as refused,
        RunDatabase.open(tmp_path) as database,
    ):
        RunReport.read(database)
    assert "safe" not in str(refused.value) and "\n" not in str(refused.value)
    assert f"sqlite3 {file} .dump" in refused.value.fix


def test_a_table_without_a_column_is_not_called_safe(tmp_path: Path) -> None:
    example = new_run(tmp_path)
    run_factory.record_example(example)
    execute(tmp_path, "ALTER TABLE tasks DROP COLUMN lessons")
    with pytest.raises(StorageError, match=r"lacks columns of this version .*no such column") as refused:
        example.tasks()
    assert "safe" not in str(refused.value)
    assert "the version that wrote it" in refused.value.fix and ".dump" in refused.value.fix


def test_a_damaged_database_is_recovered_as_it_is_said(tmp_path: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("there is no sqlite3 here")
    with new_run(tmp_path) as database:
        run_factory.record_example(database)
        names = [entry.task.id for entry in database.tasks()]
    file = tmp_path / "run.db"
    content = bytearray(file.read_bytes())
    content[-4096:] = bytes(4096)
    file.write_bytes(content)
    with pytest.raises(StorageError, match="damaged") as refused, RunDatabase.open(tmp_path) as database:
        RunReport.read(database)
    command = refused.value.fix.split("`")[1]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    with RunDatabase.open(tmp_path / "recovered.db", read_only=True) as database:
        assert [entry.task.id for entry in database.tasks()] == names


def test_what_would_be_recorded_in_a_deleted_folder_is_an_error(tmp_path: Path) -> None:
    """A connection that is open would take it, and nobody would see it again."""
    (tmp_path / "run").mkdir()
    with new_run(tmp_path / "run") as database:
        database.add_task(SOFTMAX)
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(
            StorageError, match=r"run\.db is gone, with what was recorded in it — put its folder"
        ):
            database.add_task(RELU)
    assert not (tmp_path / "run").exists()


def test_a_locked_database_is_named(tmp_path: Path) -> None:
    database = new_run(tmp_path)
    database.add_task(SOFTMAX)
    blocker = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    connection.LOCK_TIMEOUT_S, before = 0.2, connection.LOCK_TIMEOUT_S
    try:
        with RunDatabase.open(tmp_path) as other:
            assert len(other.tasks()) == 1  # reading needs no lock
            with pytest.raises(StorageError, match=r"locked by another process .* recorded are safe"):
                other.add_task(RELU)
            blocker.execute("ROLLBACK")
            other.add_task(RELU)
    finally:
        connection.LOCK_TIMEOUT_S = before
        blocker.close()
    assert [row.task for row in database.tasks()] == [SOFTMAX, RELU]
    database.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    new_run(tmp_path).close()
    with (
        RunDatabase.open(tmp_path, read_only=True) as reader,
        pytest.raises(StorageError, match="cannot be written"),
    ):
        reader.add_task(SOFTMAX)


def test_a_reader_follows_a_run_that_goes_on(database: RunDatabase, where: Place) -> None:
    database.add_task(SOFTMAX)
    with RunDatabase.open(where, read_only=True) as reader:
        assert reader.attempts(SOFTMAX.id) == []
        run_factory.attempt(database, SOFTMAX, 1, eager=2.0)
        assert len(reader.attempts(SOFTMAX.id)) == 1


def test_a_url_without_a_driver_names_what_to_install() -> None:
    with pytest.raises(MissingPrerequisite, match=r"kernelwright\[cluster\]"):
        RunDatabase.open("oracle+nodriver://scott:tiger@host/db")
    with pytest.raises(UsageError, match="invalid database URL"):
        RunDatabase.open("://nowhere")


def test_the_floor_of_an_older_evaluation_is_read_from_its_profile(where: Place) -> None:
    """A share of 0.6 of 50 µs; of a profile that knows none, none."""
    with new_run(where) as database:
        database.add_task(SOFTMAX)
        old = evaluation(SOFTMAX, candidate(1), eager=2.0)
        unknown = PROFILE.model_copy(update={"speed_of_light": None})
        for round, profile in enumerate((PROFILE, unknown, None)):
            database.record_attempt(SOFTMAX.id, round, candidate(1), None, old, profile)
        timings = [attempt.evaluation.timing for attempt in database.attempts(SOFTMAX.id)]
    assert [timing.floor_us for timing in timings if timing is not None] == [pytest.approx(30), None, None]


def test_a_server_that_is_away_is_named_without_the_password() -> None:
    pytest.importorskip("psycopg", reason="PostgreSQL's driver psycopg is not installed")
    with pytest.raises(StorageError) as refused:
        RunDatabase.open("postgresql+psycopg://me:secret@127.0.0.1:9/nothing")
    assert "127.0.0.1:9" in str(refused.value)
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)
