"""GPU MODE's problems as tasks, and submissions to them as candidates."""

from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Size, Task
from kernelwright.kernelbench.sources import resolve
from tests.helpers.foreign_tasks import GPU_MODE, called, loaded, written


def one(path: Path) -> Task:
    (task,) = resolve([str(path)])
    return task


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    return written(tmp_path / "problems" / "series" / "vector_add", GPU_MODE)


def test_a_problem_is_a_task_with_benchmarks_and_tests_as_sizes(problem: Path) -> None:
    task = one(problem)
    assert task == one(problem / "task.yml")
    assert task.id == "file:vector_add"
    assert task.workload == (
        Size(constants={"size": "256"}),
        Size(constants={"size": "512"}, weight=2),
        Size(constants={"size": "127"}, weight=0.001),
    )
    (a, b, c), out = called(task)
    assert [tuple(each.shape) for each in (a, b, c)] == [(256,)] * 3
    assert torch.equal(out, a + b)


def test_the_seed_is_drawn_anew(problem: Path) -> None:
    task = one(problem)
    assert 'seed = int(torch.randint(2**31, (), device="cpu"))' in task.source
    first, again, other = (called(task, seed)[0][0] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_the_file_has_what_the_reference_needs_and_no_more(problem: Path) -> None:
    source = one(problem).source
    assert "class Exact:" in source and "input_t = TypeVar(" in source
    for name in ("close_to", "check_implementation", "unused_t", "import os", "from utils", "from task"):
        assert name not in source
    assert source.startswith(
        '"""vector_add, a problem of GPU MODE.\n\nAdd two vectors.\n\nInput: (a, b, out)\n  - a'
    )
    assert "c is memory for an output" in source


def test_a_submission_has_memory_of_its_own_for_the_output(problem: Path) -> None:
    candidate = candidate_from_file(problem / "submission.py")
    assert "return custom_kernel((a, b, torch.empty_like(c)))" in candidate.source
    (a, b, c), expected = called(one(problem))
    before = c.clone()
    assert torch.equal(loaded(candidate.source).ModelNew()(a, b, c), expected)
    assert torch.equal(c.nan_to_num(), before.nan_to_num())


def test_a_submission_lies_anywhere_in_its_problem(problem: Path) -> None:
    path = written(problem / "solutions" / "correct", {"fast.py": GPU_MODE["submission.py"]}) / "fast.py"
    assert "class ModelNew" in candidate_from_file(path).source


def test_one_tensor_is_one_input(problem: Path) -> None:
    reference = "import torch\n\ndef ref_kernel(data):\n    return data * 2\n\ndef generate_input(size):\n"
    reference += "    return torch.rand(size)\n"
    task_yml = "benchmarks:\n  - {size: 3}\n"
    task = one(written(problem, {"reference.py": reference, "task.yml": task_yml}))
    (x,), y = called(task)
    assert torch.equal(y, 2 * x) and not task.workload
    candidate = candidate_from_file(problem / "submission.py")
    assert "return custom_kernel(data)" in candidate.source


def test_a_check_of_properties_is_noted(problem: Path, caplog: pytest.LogCaptureFixture) -> None:
    check = "def check_implementation(data, output):\n    return output.sum() > 0, ''\n"
    reference = GPU_MODE["reference.py"].replace("check_implementation = close_to(ref_kernel)", check)
    one(written(problem, {"reference.py": reference}))
    assert "its check_implementation accepts any output with certain properties" in caplog.text


def test_folders_of_problems_are_read_as_far_as_they_can_be(
    problem: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(problem.parent / "several", {**GPU_MODE, "task.yml": "multi_gpu: true\n"})
    written(problem.parent / "third", GPU_MODE)
    assert [task.id for task in resolve([str(problem.parents[1])])] == ["file:third", "file:vector_add"]
    assert "left out: " in caplog.text and "several/task.yml needs several GPUs in one call" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("task.yml", "a: [", r"task\.yml is not YAML: line 1: .* — correct it"),
        ("task.yml", "- a", r"task\.yml holds no mapping"),
        ("task.yml", "lang: py", r"has neither benchmarks nor tests — list arguments of generate_input there"),
        ("task.yml", "tests: [{size: 3, width: 1}]", r"gives width, which is no argument of generate_input — it takes"),
        ("task.yml", "tests: [{size: 3}, {seed: 1}]", r"a size gives no size, which another does"),
        ("task.yml", "tests: [3]", r"tests 1 is no mapping of arguments"),
        ("task.yml", "multi_gpu: true", r"needs several GPUs in one call — a task here runs on one device"),
        ("task.yml", 'tests: [{size: 3}]\nfiles: [{"name": "utils.py", "source": "../../../../../etc/x.py"}]',
         r"names a file outside its repository"),
        ("reference.py", "def ref_kernel(data):\n    return data", r"reference\.py defines no function generate_input"),
        ("reference.py", "def f(:", r"reference\.py is not Python: line 1"),
        ("reference.py", GPU_MODE["reference.py"].replace("Exact", "Gone"),
         r"imports Gone from utils, which has no such name — copy what it needs into one file"),
    ],
)  # fmt: skip
def test_a_damaged_problem_is_refused_in_a_line(name: str, text: str, message: str, problem: Path) -> None:
    (problem / name).write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        one(problem)
    assert "\n" not in str(error.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = written(
        tmp_path / "alone", {"task.yml": GPU_MODE["task.yml"], "kernel.py": GPU_MODE["submission.py"]}
    )
    with pytest.raises(UsageError, match=r"task\.yml has no reference\.py beside it — give the whole folder"):
        one(folder)
    (folder / "task.yml").unlink()
    with pytest.raises(UsageError, match=r"kernel\.py imports task, and there is no task\.yml above it"):
        candidate_from_file(folder / "kernel.py")
