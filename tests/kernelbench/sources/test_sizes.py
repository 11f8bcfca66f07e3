"""Sizes of a task: a workload in its file, and `--size`."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import TaskError, UsageError
from kernelwright.kernelbench.records import Size, Task
from kernelwright.kernelbench.sources import resolve, task_of_text
from tests.helpers.task_text import task_text

Write = Callable[..., Path]
WORKLOAD = """length = 128
workload = [  # as served
    {"batch_size": 1, "length": 100, "hidden": True},
    {"batch_size": 4, "length": 64, "weight": 3},
    {"batch_size": 8, "length": 64},
]
"""


def one(path: Path, *words: str, **options: dict[str, str]) -> Task:
    (task,) = resolve([str(path)], sizes=words, **options)  # type: ignore[arg-type]
    return task


def test_a_workload_of_a_file(write: Write) -> None:
    task = one(write("a.py", task_text(extra=WORKLOAD)))
    assert task.workload == (
        Size(constants={"batch_size": "4", "length": "64"}, weight=3),
        Size(constants={"batch_size": "1", "length": "100"}, hidden=True),
        Size(constants={"batch_size": "8", "length": "64"}),
    )
    assert task.source == task_text(batch_size=4, extra="length = 64\n")  # the first visible, and no others
    assert task.overrides == {"batch_size": "4", "length": "64"}
    assert task.axes == ("batch_size", "length")


def test_a_workload_of_a_text(write: Write) -> None:
    text = task_text(extra=WORKLOAD)
    assert task_of_text("file:a", text) == one(write("a.py", text))
    with pytest.raises(TaskError, match=r"^file:a defines no class Model "):
        task_of_text("file:a", "")


def test_the_task_at_a_size_is_a_task_of_one_size(write: Write) -> None:
    task = one(write("a.py", task_text(extra=WORKLOAD)))
    first, hidden, _ = task.workload
    at = task.at(hidden)
    assert at.source == task_text(batch_size=1, extra="length = 100\n")
    assert (at.workload, at.overrides) == ((), {"batch_size": "1", "length": "100"})
    assert task.at(first) == task.primary == task.model_copy(update={"workload": ()})


def test_sizes_on_the_command_line_replace_those_of_the_file(write: Write) -> None:
    words = ["batch_size=2,weight=0.5", "batch_size=16, hidden"]
    task = one(write("a.py", task_text(extra=WORKLOAD)), *words)
    assert task.workload == (
        Size(constants={"batch_size": "2"}, weight=0.5),
        Size(constants={"batch_size": "16"}, hidden=True),
    )
    assert "batch_size = 2\n" in task.source and "length = 128\n" in task.source


def test_a_size_may_have_commas_in_a_value(write: Write) -> None:
    path = write("a.py", task_text(extra="shape = (2, 3)\n"))
    task = one(path, "shape=(4, 5),batch_size=2", "shape=(1, 2),batch_size=2")
    assert task.workload[0].constants == {"shape": "(4, 5)", "batch_size": "2"}
    assert task.axes == ("shape",)


def test_constants_that_sizes_leave_alone_can_be_set(write: Write) -> None:
    path = write("a.py", task_text(extra="length = 128\n"))
    task = one(path, "batch_size=2", "batch_size=4", overrides={"length": "7"})
    assert task.at(task.workload[1]).source == task_text(batch_size=4, extra="length = 7\n")


def test_one_size_is_a_task_of_one_size(write: Write) -> None:
    task = one(write("a.py"), "batch_size=2")
    assert task == one(write("a.py"), overrides={"batch_size": "2"})


def test_sizes_are_of_the_tasks_that_have_their_constants(write: Write) -> None:
    paths = [write("a.py", task_text(extra="dim = 4\n")), write("b.py")]
    sized, plain = resolve([str(path) for path in paths], sizes=["dim=2", "dim=8"])
    assert len(sized.workload) == 2 and plain == one(paths[1])


def test_tasks_of_one_size_are_hashed_and_written_as_before_there_were_others(write: Write) -> None:
    path = write("a.py")
    task = one(path)
    assert task.source == path.read_text()
    assert task.sha256 == hashlib.sha256(f"fp32\n{task.source}".encode()).hexdigest()
    assert "workload" not in task.model_dump_json()
    assert Task.model_validate_json(task.model_dump_json()) == task


def test_other_sizes_make_another_task(write: Write) -> None:
    path = write("a.py", task_text(extra=WORKLOAD))
    task = one(path)
    heavier = task.workload[0].model_copy(update={"weight": 9.0})
    assert Task.model_validate_json(task.model_dump_json()) == task
    assert (
        len({t.sha256 for t in (task, task.primary, task.model_copy(update={"workload": (heavier,)}))}) == 3
    )


@pytest.mark.parametrize(
    ("workload", "error"),
    [
        ("workload = 3", "not a written-out list of sizes — write it as workload = "),
        ("workload = []", "not a written-out list of sizes"),
        ("workload = [{'batch_size': 2} for _ in range(3)]", "not a written-out list of sizes"),
        ("workload = [4, 8]", "size 1 of its workload is not a dictionary"),
        ("workload = [{'batch_size': n}]", "size 1 of its workload: batch_size=n is not a Python literal"),
        ("workload = [{3: 4}]", "size 1 of its workload: a constant's name is not a written-out string"),
        ("workload = [{}]", "size 1 of its workload: no constant is set"),
        ("workload = [{'weight': 4}]", "size 1 of its workload: no constant is set"),
        ("workload = [{'batch_size': 4, 'weight': 0}]", "invalid weight 0 — use a number above 0"),
        ("workload = [{'batch_size': 4, 'weight': True}]", "invalid weight True"),
        ("workload = [{'batch_size': 4, 'hidden': 256}]", "invalid hidden 256 — use True or False"),
        ("workload = [{'batch_size': 4, 'batch_size': 5}]", "batch_size is set twice"),
        ("workload = [{'batch_size': 4}, {'bach_size': 5}]", "did you mean batch_size?"),
        (
            "dim = 3\nworkload = [{'batch_size': 4, 'dim': 1}, {'batch_size': 5}]",
            "size 2 does not set dim, which another does — set the same constants",
        ),
        ("workload = [{'bach_size': 5}]", "has no constant bach_size — did you mean batch_size?"),
        ("workload = [{'batch_size': 4}, {'batch_size': 4}]", "sizes 1 and 2 are the same, batch_size=4"),
        ("workload = [{'batch_size': 4, 'hidden': True}]", "all of its sizes are hidden — leave one visible"),
        ("workload = [{'batch_size': 4}]; k = 3", "shares a line with other code"),
        ("if True:\n    workload = [{'batch_size': 4}]", "workload is not one statement of its own"),
        ("workload = [{'batch_size': 4}]\nn = len(workload)", "uses workload, which is read and not run"),
    ],
)
def test_a_workload_that_is_none_is_one_line_with_its_fix(write: Write, workload: str, error: str) -> None:
    with pytest.raises(UsageError) as raised:
        one(write("a.py", task_text(extra=workload)))
    assert error in str(raised.value) and "\n" not in str(raised.value)
    assert "a.py" in raised.value.message


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["batch_size"], "--size batch_size: batch_size has no value — use constants with their values"),
        (["batch_size=4,"], ""),
        (["batch_size=4)"], "invalid --size 'batch_size=4)' — use constants"),
        (["batch_size=n"], "--size batch_size=n: batch_size=n is not a Python literal"),
        (["weight=2"], "--size weight=2: no constant is set"),
        (["dim=2"], "has no constant dim — "),
        (["batch_size=2", "batch_size=2"], "sizes 1 and 2 are the same, batch_size=2 — leave one out"),
    ],
)
def test_a_size_that_is_none_is_one_line_with_its_fix(write: Write, words: list[str], error: str) -> None:
    if not error:
        one(write("a.py"), *words)
        return
    with pytest.raises(UsageError) as raised:
        one(write("a.py"), *words)
    assert error in str(raised.value) and "\n" not in str(raised.value)


def test_a_constant_that_sizes_set_cannot_be_set_for_all(write: Write) -> None:
    path = write("a.py", task_text(extra=WORKLOAD))
    with pytest.raises(
        UsageError, match=r"its sizes set batch_size, .* give the sizes as --size batch_size=…"
    ):
        one(path, overrides={"batch_size": "8"})


def test_a_file_error_is_a_task_error(write: Write) -> None:
    with pytest.raises(TaskError):
        one(write("a.py", task_text(extra="workload = [3]")))
