"""The Python API: a module in, a faster one out."""

import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest
import torch
from torch import Tensor, nn

import kernelwright
from kernelwright import UsageError

CLASS = """
import importlib
import sys

import kernelwright
import torch
from torch import nn
from torch.nn import functional as F


class NormSiLU(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return F.silu(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight)
"""
ONE_SIZE = """
module, x = NormSiLU(256), torch.randn(256, 256)
result = kernelwright.optimize(module, x, rounds=1, effort="quick", baselines="eager", out="run", progress=False)
print(result)
assert result.evaluation.verdict == "correct", result
assert result.speedup.low <= result.speedup.median <= result.speedup.high
assert result.faster == (result.speedup.low > 1) == (result.module is not module)
torch.testing.assert_close(result.module(x), module(x))
torch.testing.assert_close(result.module(x[:3]), module(x[:3]))
assert result.report.is_file() and "NormSiLU" in result._repr_html_()
assert "class ModelNew" in result.kernel and "class Model(" in result.task_source
assert result.export("package", measure=False).joinpath("README.md").is_file()
assert sorted(p.name for p in (result.folder / "tasks").iterdir()) == ["module_NormSiLU.py"]
"""
SEVERAL_SIZES = """
module, x, y = NormSiLU(256), torch.randn(4, 64, 256), torch.randn(2, 100, 256)
result = kernelwright.optimize(
    module, x, more_examples=[y], rounds=1, effort="quick", baselines="eager", out="run", progress=False
)
print(result)
assert result.evaluation.verdict == "correct", result
assert [str(each.size) for each in result.evaluation.sizes] == ["batch=4, length=64", "batch=2, length=100"]
sys.path.insert(0, str(result.export("package", name="fused_gate", measure=False)))
package = importlib.import_module("fused_gate")
layer = NormSiLU(256)
package.apply(layer)
for shape in ((4, 64), (2, 100), (1, 1), (7, 33)):
    z = torch.randn(*shape, 256)
    torch.testing.assert_close(result.module(z), module(z))
    layer(z)
(calls,) = package.report(layer).layers.values()
assert sum(calls.by_kernel.values()) == 4, calls.by_layer
"""


def test_importing_it_is_quick() -> None:
    """CPU time is measured, since the machine may be busy."""
    program = (
        "import time; began = time.process_time(); import kernelwright; print(time.process_time() - began)"
    )
    root = Path(kernelwright.__file__).parents[1]
    runs = [
        subprocess.run([sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert min(float(run.stdout) for run in runs) < 0.3


def test_its_names_are_there_and_typed() -> None:
    assert {"optimize", "evaluate", "Result", "KernelwrightError"} <= set(dir(kernelwright))
    assert all(isinstance(getattr(kernelwright, name), type | FunctionType) for name in kernelwright.__all__)
    assert Path(kernelwright.__file__).with_name("py.typed").exists()
    with pytest.raises(AttributeError, match="has no attribute 'optimise'"):
        kernelwright.optimise  # noqa: B018


def double(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roundz": 3}, "optimize has no option roundz — did you mean rounds?"),
        ({"tasks": ["a"]}, "optimize has no option tasks"),
        ({"rounds": 0}, "invalid --rounds 0 — use at least 1"),
        ({"coder": "me"}, "invalid --coder me — choose builtin, llm or command"),
        ({"effort": "some"}, "unknown effort 'some' — use one of quick"),
        ({"language": "java"}, "--language java is unknown"),
        ({"coder": "llm"}, "--coder llm and --model belong together"),
        ({"more_examples": torch.ones(3, 4)}, "more_examples is a Tensor — give a list"),
        ({"more_examples": [5]}, "one of more_examples is a int — give a list of tensors"),
        (
            {"more_examples": [torch.ones(3, dtype=torch.int64)]},
            "example 2 of double has a tensor of another",
        ),
        ({"more_examples": [torch.ones(4)]}, "two examples"),
    ],
)
def test_options_are_those_of_the_command_line(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as raised:
        kernelwright.optimize(double, torch.ones(4), out=tmp_path / "run", **options)
    assert message in str(raised.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("reference", "candidate", "inputs", "message"),
    [
        (double, "nowhere.py", (torch.ones(4),), "nowhere.py: No such file or directory"),
        (double, double, (), "has no example input"),
        ("builtin:level1/rellu", double, (torch.ones(4),), "did you mean builtin:level1/relu"),
        ("import torch\n", "x\n", (), "defines no class Model"),
        ("builtin:level1/relu", nn.ReLU(), (), "a candidate that is a module needs example inputs"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    reference: object, candidate: object, inputs: tuple[Tensor, ...], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        kernelwright.evaluate(reference, candidate, *inputs)  # type: ignore[arg-type]
    assert message in str(raised.value)


@pytest.mark.slow
@pytest.mark.builds
def test_modules_and_sources_are_evaluated(home: Path) -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    x = torch.randn(64, 64)
    right = kernelwright.evaluate(Half(), lambda x: x * 0.5, x, effort="quick", baselines=["eager"])
    assert (right.verdict, right.task) == (
        "correct",
        "module:test_modules_and_sources_are_evaluated.Half",
    ) or (right.verdict == "correct" and right.task == "module:Half")
    source = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    assert (
        kernelwright.evaluate(Half(), source, x, effort="quick", baselines=["eager"]).verdict
        == "wrong_output"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", [ONE_SIZE, SEVERAL_SIZES], ids=["one_size", "several_sizes"])
def test_a_script_without_a_main_guard_optimizes_its_own_class(
    script: str, tmp_path: Path, home: Path
) -> None:
    """As a notebook cell would, or `python -`: nothing may run it again."""
    root = Path(kernelwright.__file__).parents[1]
    environment = {**os.environ, "KERNELWRIGHT_HOME": str(home), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-"],
        input=CLASS + script,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Task      module:NormSiLU\nVerdict   correct")
    assert all("computes itself, because x has shape (3, 256)" in line for line in done.stderr.splitlines())
