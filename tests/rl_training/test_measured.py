"""Each kernel is measured once, and what was measured outlives the process."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import StorageError, TaskError
from kernelwright.kernelbench.evaluator import EAGER
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.rl_training.measured import MeasuredPool
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import EXPRESSIONS, builtin_task, kernel, made

TASK = builtin_task("level1/relu")


class CountingPool:
    def __init__(self, answer: float | Exception = 2.0) -> None:
        self.answer, self.asked = answer, 0

    def submit(self, task: Task, candidate: Candidate, *_: object) -> Future[Evaluation]:
        self.asked += 1
        found: Future[Evaluation] = Future()
        if isinstance(self.answer, Exception):
            found.set_exception(self.answer)
        else:
            found.set_result(run_factory.evaluation(task, candidate, eager=self.answer))
        return found


def measured(pool: CountingPool, path: Path) -> MeasuredPool:
    return MeasuredPool(pool, path)  # type: ignore[arg-type]


def test_a_kernel_is_measured_once_also_by_the_next_process(tmp_path: Path) -> None:
    path, counting = tmp_path / "evaluations.jsonl", CountingPool()
    first = measured(counting, path).submit(TASK, made(kernel())).result()
    again = CountingPool(9.0)
    second = measured(again, path)
    assert second.submit(TASK, made(kernel(), author="policy")).result() == first
    assert (counting.asked, again.asked) == (1, 0)
    assert second.submit(TASK, made(kernel(EXPRESSIONS[1]))).result().speedup.eager.median == 9.0  # type: ignore[union-attr]
    second.submit(TASK, made(kernel()), EAGER).result()  # not what was asked before
    assert again.asked == 2


def test_a_line_that_a_kill_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    measured(CountingPool(), path).submit(TASK, made(kernel())).result()
    path.write_bytes(path.read_bytes()[:-20])
    again = CountingPool(3.0)
    measured(again, path).submit(TASK, made(kernel())).result()
    assert again.asked == 1
    third = CountingPool()  # though that line is now followed by another
    measured(third, path).submit(TASK, made(kernel())).result()
    assert third.asked == 0


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    path.write_text('{"task": 1}\n')
    with pytest.raises(StorageError, match="entry 1 is damaged"):
        measured(CountingPool(), path)


def test_errors_are_passed_on_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    with pytest.raises(TaskError):
        measured(CountingPool(TaskError("the reference fails", "")), path).submit(
            TASK, made(kernel())
        ).result(5)
    assert not path.exists()
    with pytest.raises(StorageError):
        measured(CountingPool(), tmp_path / "nowhere" / "e.jsonl").submit(TASK, made(kernel())).result(5)
