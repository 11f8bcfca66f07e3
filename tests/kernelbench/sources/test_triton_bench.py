"""Functions of torch with their tests, and Triton kernels, as TritonBench keeps them."""

from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources import resolve
from kernelwright.kernelbench.sources.overrides import apply
from tests.helpers.foreign_tasks import called, loaded

LINE = "#" * 146
SCALED = (
    '''import torch
import torch.special


def shift(x):
    return x + 1


def scaled_add(input, other, alpha=1.0, beta=0.5, eps=0.0, *, round=False, out=None):
    """Add, with factors."""
    result = shift(alpha * input + beta * other)
    return result.round() if round else result


'''
    + LINE
    + """

import torch
from scaled_add import scaled_add

# def scaled_add(input, other): ...

def test_scaled_add():
    test_results = {}
    size = 4
    x = torch.randn(2, size, device='cuda')

    # Test case 1: Defaults
    test_results["test_case_1"] = scaled_add(x, torch.ones(size, device='cuda'))

    # Test case 2: Another factor
    test_results["test_case_2"] = scaled_add(x, x, beta=2.0)

    # Test case 3: Memory for the output
    out = torch.empty_like(x)
    test_results["test_case_3"] = scaled_add(x, x, out=out)

    # Test case 4: Rounded
    y = torch.randn(3, device='cuda')
    test_results["test_case_4"] = scaled_add(y, other=y, round=True)
    try:
        scaled_add(x, torch.ones(7))
    except RuntimeError as error:
        test_results["test_case_5"] = str(error)
    return test_results

test_results = test_scaled_add()
"""
)
KERNEL = SCALED.replace("import torch.special", "import triton").replace(
    "def shift(x):", "@triton.jit\ndef shift(x):"
)


def written(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_the_calls_of_a_test_are_the_sizes_of_its_function(tmp_path: Path) -> None:
    path = written(tmp_path / "TritonBench_T_v1", "scaled_add.py", SCALED)
    for name in (path, path.parent):
        [task] = resolve([str(name)])
        assert [size.constants for size in task.workload] == [{"case": "1"}, {"case": "2"}, {"case": "4"}]
    assert "2 of 5 calls are left out" in task.source and "test_results = test_" not in task.source
    inputs, result = called(task)
    (x, ones, *factors) = inputs
    assert (x.shape, factors) == ((2, 4), [1.0, 0.5, False])  # eps is never given, nor is out
    assert torch.equal(result, x + 0.5 * ones + 1)
    (x, same, *factors), result = called(apply(task.source, {"case": "2"}))
    assert torch.equal(x, same) and torch.equal(result, x + 2.0 * x + 1)
    (y, _, *factors), result = called(apply(task.source, {"case": "4"}))
    assert (y.shape, factors[-1]) == ((3,), True) and torch.equal(result, (1.5 * y + 1).round())


def test_what_a_test_draws_is_drawn_anew(tmp_path: Path) -> None:
    [task] = resolve([str(written(tmp_path, "scaled_add.py", SCALED))])
    assert not torch.equal(called(task, seed=0)[0][0], called(task, seed=1)[0][0])


def test_a_file_with_a_triton_kernel_is_a_candidate_without_its_test(tmp_path: Path) -> None:
    path = written(tmp_path / "TritonBench_G_v1", "scaled_add.py", KERNEL)
    candidate = candidate_from_file(path)
    assert candidate.language == "triton" and "test_scaled_add" not in candidate.source
    assert "return scaled_add(*inputs, **keywords)" in candidate.source
    plain = candidate_from_file(written(tmp_path, "scaled_add.py", SCALED)).source
    assert torch.equal(loaded(plain).ModelNew()(torch.ones(2), torch.ones(2)), torch.full((2,), 2.5))


def test_what_is_no_task_is_said_in_a_line(tmp_path: Path) -> None:
    kernels = written(tmp_path / "TritonBench_G_v1", "scaled_add.py", KERNEL).parent
    with pytest.raises(UsageError, match=r"kernels alone, without references in torch"):
        resolve([str(kernels)])
    for text, said in (
        (SCALED.replace("eps=0.0, *,", "*args,"), "takes any number of arguments"),
        (
            SCALED.replace("= scaled_add(", "= torch.add(").replace("  scaled_add(", "  shift_("),
            "calls no function of the file",
        ),
        (
            SCALED.replace("    x = torch", "    for _ in [1]: scaled_add(1)\n    x = torch"),
            "no plain call of",
        ),
    ):
        with pytest.raises(UsageError, match=said):
            resolve([str(written(tmp_path, "scaled_add.py", text))])
