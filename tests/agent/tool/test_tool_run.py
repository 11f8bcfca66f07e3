"""Runs whose files come from outside: numbers, records, budgets, several callers, submission."""

import fcntl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.spending.budget import BudgetSpent
from kernelwright.agent.tool.run import prepared, recorded_history
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.options import build
from kernelwright.kernelbench.records import Verdict
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder
from kernelwright.results.summary import summarize
from tests.helpers.conversing import TASK, Pool, file
from tests.helpers.tool_runs import tool_run


def test_a_file_that_was_checked_is_measured_and_then_known(tmp_path: Path) -> None:
    pool = Pool()
    with tool_run(tmp_path, pool) as run:
        checked = run.evaluate(TASK, file(1.5), timed=False)
        assert (checked.right, checked.timed, checked.number, checked.speedup) == (True, False, 0, {})
        measured = run.evaluate(TASK, file(1.5), timed=True)
        assert (measured.number, measured.speedup["eager"].median, measured.best) == (1, 1.5, 1)
        again = run.evaluate(TASK, file(1.5), timed=True)
        assert again == measured
        assert run.evaluate(TASK, file(1.5), timed=False).evaluation == measured.evaluation
    assert pool.evaluated == ["check speedup = 1.5", "measure speedup = 1.5"]


def test_an_agent_reads_the_score_that_the_report_has(tmp_path: Path) -> None:
    """Eager takes 1 s, this file 2/3 s, and 2 MiB at 10 GB/s 210 µs: 0.9998 / (0.9998 + 0.6665)."""
    with tool_run(tmp_path) as run:
        measured = run.evaluate(TASK, file(1.5), timed=True)
        checked = run.evaluate(TASK, file(1.6), timed=False)
        found = summarize(run.database)
    assert measured.speed_of_light_score == 0.6 and checked.speed_of_light_score is None
    assert "Speed-of-light score (0.5 is eager, 1 the roofline): 0.60; at most 3178.91 times" in measured.said
    assert found.tasks[0].speed_of_light_score == pytest.approx(0.60002, abs=1e-4)


def test_every_number_is_in_the_database_under_its_id(tmp_path: Path) -> None:
    with tool_run(tmp_path) as run:
        results = [run.evaluate(TASK, file(speedup), timed=True) for speedup in (1.2, 1.4)]
    with RunDatabase.open(tmp_path, read_only=True) as database:
        recorded = {f"{database.run_id[:8]}/{each.id}": each for each in database.attempts(TASK.id)}
    for result in results:
        attempt = recorded[result.evaluation]
        assert attempt.candidate.sha256 == result.sha256
        assert attempt.evaluation.speedup is not None
        assert attempt.evaluation.speedup.eager == result.speedup["eager"]
    assert recorded_history(tmp_path, TASK.id).files == tuple(
        result.model_copy(update={"best": 1, "said": kept.said})
        for result, kept in zip(results, recorded_history(tmp_path, TASK.id).files, strict=True)
    )


def test_a_task_that_a_run_does_not_have_is_said(tmp_path: Path) -> None:
    with tool_run(tmp_path):
        pass
    with pytest.raises(UsageError, match=f"there is no task 'file:other' — name one of {TASK.id}"):
        recorded_history(tmp_path, "file:other")


def test_a_wrong_file_is_told_why_and_is_no_best(tmp_path: Path) -> None:
    with tool_run(tmp_path) as run:
        found = run.evaluate(TASK, file("element 3 is off"), timed=True)
        assert (found.verdict, found.right, found.best) == (Verdict.wrong_output, False, None)
        assert found.reason == "element 3 is off" and "element 3 is off" in found.said


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import torch\nclass ModelNew(torch.nn.Module): ...\n", "has no kernels of its own"),
        ("not Python at all", "has no kernels of its own"),
        ("x" * 1_000_001, "has 1000001 characters"),
    ],
)
def test_what_is_no_file_of_kernels_is_refused_and_costs_nothing(
    tmp_path: Path, source: str, said: str
) -> None:
    with tool_run(tmp_path) as run:
        with pytest.raises(UsageError, match=said):
            run.evaluate(TASK, source, timed=True)
        assert run.history(TASK).files == ()


def test_evaluations_end_with_the_budget_and_one_is_kept_for_the_winner(tmp_path: Path) -> None:
    pool = Pool()
    with tool_run(tmp_path, pool, max_evaluations_per_task=3) as run:
        assert run.left(TASK) == "2 evaluations left"
        run.evaluate(TASK, file(1.2), timed=True)
        run.evaluate(TASK, file(1.3), timed=True)
        with pytest.raises(BudgetSpent, match="submit confirms the best file"):
            run.evaluate(TASK, file(1.4), timed=True)
        assert run.evaluate(TASK, file(1.2), timed=True).number == 0  # known
        assert run.submit(TASK).number == 1
    assert pool.evaluated[-1] == "confirm speedup = 1.3"


def test_minutes_count_from_the_beginning_of_the_run(tmp_path: Path) -> None:
    with tool_run(tmp_path, max_minutes=0.001) as run:
        time.sleep(0.1)
        with pytest.raises(BudgetSpent, match="the time for this task is over"):
            run.evaluate(TASK, file(1.2), timed=True)
        assert run.left(TASK) == "0.0 minutes left"


def test_submitting_confirms_the_fastest_and_writes_the_results(tmp_path: Path) -> None:
    with tool_run(tmp_path) as run:
        with pytest.raises(UsageError, match="no file is right yet"):
            run.submit(TASK)
        for speedup in (1.2, 1.9, 1.5):
            run.evaluate(TASK, file(speedup), timed=True)
        found = run.submit(TASK, author="mcp:test")
        assert (found.number, found.right) == (1, True)
        assert [entry.stop_reason for entry in run.database.tasks()] == ["submitted by mcp:test"]
        assert [each.confirms for each in run.database.attempts(TASK.id)][3] is True
        assert "speedup = 1.9" in (tmp_path / "best" / "file_0.py").read_text()
        assert (tmp_path / "report.html").exists()
        run.evaluate(TASK, file(2.5), timed=True)  # and on
        assert run.submit(TASK).speedup["eager"].median == 2.5


def test_a_function_of_the_user_s_is_where_it_begins_and_is_defined_again(tmp_path: Path) -> None:
    seed, task = tmp_path / "mine.py", tmp_path / "task.py"
    seed.write_text(f"{file(1.2).partition('class')[0]}speedup = 1.2\n\n\ndef softmax(x, axis=0):\n    ...\n")
    task.write_text(
        f"{TASK.source}\n\ndef get_inputs():\n    return []\n\n\ndef get_init_inputs():\n    return []\n"
    )
    config, _ = prepared(build(RunConfig, {"tasks": [str(task)], "seed": f"{seed}:softmax"}))
    out = tmp_path / "run"
    with tool_run(out) as run:
        run.config = config
        run.begin(TASK)
        run.evaluate(TASK, file(1.9), timed=True)
        run.submit(TASK)
    assert "speedup = 1.9" in (out / "best" / "file_0.py").read_text()
    assert "\ndef softmax(x, axis=0):\n" in (out / "best" / "file_0.function.py").read_text()


def test_a_description_is_in_the_language_of_the_kernel_to_start_from(tmp_path: Path) -> None:
    kernel = (
        "import triton\n\n\n@triton.jit\ndef kernel(x):\n    ...\n\n\nclass ModelNew:\n    speedup = 1.2\n"
    )
    with tool_run(tmp_path) as run:
        assert run.describe(TASK).language == "cpp"
        run.evaluate(TASK, kernel, timed=True)
        found = run.describe(TASK)
        assert found.language == "triton" and "@triton.jit" in found.guide


def test_a_file_is_confirmed_once_however_often_it_is_submitted(tmp_path: Path) -> None:
    pool = Pool()
    with tool_run(tmp_path, pool) as run:
        run.evaluate(TASK, file(1.9), timed=True)
        assert run.submit(TASK) == run.submit(TASK)
        run.evaluate(TASK, file(1.2), timed=True)
        assert run.submit(TASK).number == 0
    assert pool.evaluated.count("confirm speedup = 1.9") == 1


def test_a_wrong_file_is_not_submitted(tmp_path: Path) -> None:
    with tool_run(tmp_path) as run:
        run.evaluate(TASK, file(1.2), timed=True)
        assert not run.submit(TASK, file("off")).right
        assert run.database.tasks()[0].stop_reason is None


def test_a_file_that_many_ask_for_at_once_is_recorded_once(tmp_path: Path) -> None:
    with tool_run(tmp_path, Pool(0.2)) as run, ThreadPoolExecutor(8) as executor:
        found = list(executor.map(lambda _: run.evaluate(TASK, file(1.5), timed=True), range(8)))
        assert {each.number for each in found} == {0}
        assert len(run.tried(TASK)) == 1
        others = list(executor.map(lambda n: run.evaluate(TASK, file(n), timed=True), range(2, 10)))
        assert sorted(each.number for each in others) == list(range(1, 9))


def test_two_processes_in_one_run_take_turns(tmp_path: Path) -> None:
    with tool_run(tmp_path, Pool(0.3)) as first, tool_run(tmp_path, Pool()) as second:
        thread = threading.Thread(target=lambda: first.evaluate(TASK, file(1.5), timed=True))
        thread.start()
        while RunFolderHeld(tmp_path).free:
            time.sleep(0.01)
        assert second.evaluate(TASK, file(1.7), timed=True).number == 1
        thread.join()
        assert any("waiting: another run" in line for line in second.lines)  # type: ignore[attr-defined]
        assert first.history(TASK).best == 1


def test_a_folder_is_free_between_evaluations(tmp_path: Path) -> None:
    with tool_run(tmp_path) as run:
        run.evaluate(TASK, file(1.5), timed=True)
        RunFolder.resume(tmp_path).close()


def test_tasks_are_named_by_their_ends(tmp_path: Path) -> None:
    with tool_run(tmp_path) as run:
        assert run.task() == run.task(TASK.id)
        with pytest.raises(UsageError, match="there is no task 'other'"):
            run.task("other")


def test_a_description_has_all_that_a_file_needs(tmp_path: Path) -> None:
    with tool_run(tmp_path) as run:
        found = run.describe(TASK)
    assert found.reference == TASK.source and found.language == "cpp"
    assert "secret" in found.rules and "ModelNew" in found.interface and "compile_cpp" in found.guide
    assert any("read and write" in line for line in found.goal)


class RunFolderHeld:
    """Look at the lock of a folder, which some process may hold."""

    def __init__(self, path: Path) -> None:
        self.path = path / ".lock"

    @property
    def free(self) -> bool:
        if not self.path.exists():
            return True
        with self.path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True


def test_a_database_that_an_agent_has_written_to_is_said_in_one_line(tmp_path: Path) -> None:
    with tool_run(tmp_path) as run:
        run.evaluate(TASK, file(1.5), timed=True)
    (tmp_path / "run.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(StorageError, match="is not a database"), tool_run(tmp_path):
        pass


@pytest.mark.parametrize("name", ["nonsense", "builtin:level1/none"])
def test_a_server_of_an_unknown_task_does_not_start(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright", "mcp", name],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1 and not list(tmp_path.iterdir())
