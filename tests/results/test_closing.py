"""The lines that a run ends with, of the run of `run_factory.record_example`."""

from pathlib import Path

import pytest

from kernelwright.kernelbench.records import Verdict
from kernelwright.results.report.closing import closing_lines
from kernelwright.results.report.contents import RunReport
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder
from tests.helpers.results import run_factory
from tests.helpers.results.run_factory import candidate, task

FOLDER = RunFolder(Path("runs/first"))


def lines(database: RunDatabase, complete: bool = True) -> list[str]:
    return closing_lines(RunReport.read(database), FOLDER, complete)


def test_they_say_what_got_faster_what_did_not_and_where_it_is(example: RunDatabase) -> None:
    assert lines(example) == [
        "Faster than eager: softmax 4.00× [3.92, 4.08], gelu_linear 2.00× [1.96, 2.04]",
        "Not faster: relu (≈1), matmul (eager is faster), conv (build error), attention (not tried), "
        "always_zero (measures nothing)",
        "Kernels: runs/first/best/TASK.py for 5 of 7 tasks, 1 of them the reference",
        "Report: runs/first/report.html",
        "Next: kernelwright export runs/first builtin:level1/softmax --out kernels",
    ]


def test_a_run_that_is_not_done_goes_on(example: RunDatabase) -> None:
    assert lines(example, complete=False)[-1] == "Next: kernelwright run --resume runs/first"


@pytest.mark.parametrize("language", ["cpp", "triton", "cuda"])
def test_a_faster_kernel_is_exported_next(database: RunDatabase, language: str) -> None:
    database.add_task(task("relu"))
    made = candidate(1).model_copy(update={"language": language})
    run_factory.attempt(database, task("relu"), 0, eager=2.0, of=made)
    assert lines(database)[-1] == "Next: kernelwright export runs/first builtin:level1/relu --out kernels"


def test_a_kernel_that_is_right_in_emulation_is_said_and_exported_next(database: RunDatabase) -> None:
    database.add_task(task("relu"))
    made = candidate(1).model_copy(update={"language": "cuda"})
    why = "right in the emulator; there is no GPU to time it on"
    found = run_factory.evaluation(task("relu"), made, Verdict.unmeasured, reason=why)
    found = found.model_copy(update={"launched": ("relu",)})
    database.record_attempt(task("relu").id, 0, made, None, found, None)
    assert lines(database)[2:] == [
        "Kernels: 1 of 1 right in emulation, on no GPU",
        "Report: runs/first/report.html",
        "Next: kernelwright export runs/first builtin:level1/relu --out kernels",
    ]


def test_without_a_correct_kernel_they_say_so(database: RunDatabase) -> None:
    database.add_task(task("relu"))
    run_factory.attempt(database, task("relu"), 0, Verdict.wrong_output)
    assert lines(database)[:3] == [
        "Faster than eager: none",
        "Not faster: relu (wrong output)",
        "Kernels: none is correct",
    ]


def test_of_many_tasks_some_are_named_and_those_of_one_name_by_their_ids(database: RunDatabase) -> None:
    for number in range(10):
        database.add_task(task(f"relu_{number}"))
    for level in (1, 2):
        database.add_task(task("a", level))
    said = lines(database)[1]
    assert said.endswith(", 4 more") and "relu_7 (not tried)" in said
    database.finish_task(task("a").id, "stopped")
    assert "relu_8" not in said and "builtin:level1/a" not in said
