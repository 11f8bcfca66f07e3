"""A copy of the user's module computes by a kernel where a call is like the example, else by itself."""

import copy
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.tracing import TracedCall, trace_call
from kernelwright.kernelbench.modules.writing import task_source
from kernelwright.results.dropin.live import FileKernel, kernel_of, module_with
from tests.helpers.dropin import small_kernels as kernels
from tests.helpers.dropin.exporting import winner


class RMSNorm(nn.Module):
    def __init__(self, width: int = 64, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


X = torch.randn(4, 16, 64)
# The kernel of a task that needs no arguments of the constructor, as tasks of modules do not.
KERNEL = kernels.RMS_NORM_KERNEL.replace(
    "def __init__(self, width, eps):", "def __init__(self, width=64, eps=1e-6):"
)


class Counted:
    """A kernel that counts its calls."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.calls = kernel, 0
        self.parameters, self.check = kernel.parameters, kernel.check

    def run(self, *tensors: Tensor) -> Any:
        self.calls += 1
        return self.kernel.run(*tensors)

    def used(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[int, Any]:
        before = self.calls
        made = function(*args, **kwargs)
        return self.calls - before, made


def call_of(module: nn.Module) -> TracedCall:
    return trace_call(module, (X,))


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Any:
    call = call_of(RMSNorm())
    return kernel_of(winner(task_source(call), KERNEL, "norm"), call, tmp_path_factory.mktemp("module"))


@pytest.fixture(params=["file", pytest.param("package", marks=pytest.mark.slow)])
def norm(request: pytest.FixtureRequest, tmp_path: Path, home: Path) -> tuple[RMSNorm, nn.Module, Counted]:
    """The user's module, the copy of it, and the kernel in that."""
    module = RMSNorm()
    call = call_of(module)
    package = request.param == "package"
    kernel = Counted(request.getfixturevalue("packaged") if package else FileKernel(KERNEL, call, tmp_path))
    return module, module_with(kernel, call), kernel


@pytest.mark.builds
def test_a_call_like_the_example_runs_the_kernel(norm: tuple[RMSNorm, nn.Module, Counted]) -> None:
    module, fast, kernel = norm
    assert type(fast) is RMSNorm and fast is not module and fast.weight is module.weight
    with torch.no_grad():
        for given in ((X,), (X + 1,), (X.clone(),)):
            calls, made = kernel.used(fast, *given)
            assert calls == 1
            torch.testing.assert_close(made, module(*given))
        assert kernel.used(fast, x=X)[0] == 1
        fast.eval()
        assert kernel.used(fast, X)[0] == 1  # its calls of torch are the same in both modes


@pytest.mark.builds
def test_other_calls_run_the_modules_own_forward(
    norm: tuple[RMSNorm, nn.Module, Counted], caplog: pytest.LogCaptureFixture
) -> None:
    module, fast, kernel = norm
    with torch.no_grad(), caplog.at_level(logging.WARNING, "kernelwright"):
        for given in (X[:2], X.transpose(0, 1), X.double(), torch.randn(3, 64)):
            calls, made = kernel.used(fast, given)
            assert calls == 0
            torch.testing.assert_close(made, module(given))
        fast.eps = 0.5
        calls, made = kernel.used(fast, X)
        assert calls == 0 and not torch.equal(made, module(X))
        with pytest.raises(TypeError):
            fast(X, X)
    assert "RMSNorm computes itself, because eps was changed" in caplog.messages


@pytest.mark.builds
def test_the_weights_are_the_modules(norm: tuple[RMSNorm, nn.Module, Counted]) -> None:
    module, fast, kernel = norm
    with torch.no_grad():
        module.weight.mul_(2)
        calls, made = kernel.used(fast, X)
        assert calls == 1
        torch.testing.assert_close(made, module(X))
        copied = copy.deepcopy(fast)
        copied.weight.zero_()
        assert kernel.used(copied, X)[0] == 1
        assert not copied(X).any() and fast(X).any()
        fast.load_state_dict({"weight": torch.ones(64)})
        torch.testing.assert_close(module(X), fast(X))
    assert list(fast.state_dict()) == ["weight"]
    again = pickle.loads(pickle.dumps(fast))
    assert kernel.used(again, X)[0] == 0 and torch.equal(again(X), module(X))


@pytest.mark.builds
def test_gradients_are_the_modules(norm: tuple[RMSNorm, nn.Module, Counted]) -> None:
    """A package has its own backward; a file has none, so the module's own forward runs."""
    module, fast, _ = norm
    found, wanted = (torch.autograd.grad(m(X).square().sum(), m.weight)[0] for m in (fast, module))
    torch.testing.assert_close(found, wanted)


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x) * 2


TWICE = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return x * 2
"""


def test_where_the_mode_matters_another_one_runs_the_own_forward(tmp_path: Path) -> None:
    module = Drops().eval()
    call = call_of(module)
    kernel = Counted(FileKernel(TWICE, call, tmp_path))
    fast = module_with(kernel, call)
    assert kernel.used(fast, X)[0] == 1
    fast.drop.train()
    assert kernel.used(fast, X)[0] == 0 and (fast(X) == 0).any()


SCALE = torch.full((64,), 3.0)
PAIR = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("SCALE", torch.ones(64))
    def forward(self, x, y):
        return x * self.SCALE, x + y
"""


def pair(x: Tensor, options: dict[str, Any], by: float = 2.0) -> dict[str, Any]:
    return {"scaled": x * SCALE, "rest": [x + options["y"], by]}


def test_a_function_keeps_the_form_of_its_arguments_and_results(tmp_path: Path) -> None:
    call = trace_call(pair, (X, {"y": X}))
    kernel = Counted(FileKernel(PAIR, call, tmp_path))
    fast = module_with(kernel, call)
    for args, kwargs in (
        ((X, {"y": X}), {}),
        ((), {"x": X, "options": {"y": X}}),
        ((X, {"y": X}), {"by": 2.0}),
    ):
        calls, made = kernel.used(fast, *args, **kwargs)
        assert calls == 1 and made["rest"][1] == 2.0
        assert torch.equal(made["scaled"], X * SCALE) and torch.equal(made["rest"][0], X + X)
    assert kernel.used(fast, X, {"y": X}, 3.0)[0] == 0 and fast(X, {"y": X}, 3.0)["rest"][1] == 3.0
    assert kernel.used(fast, X, {"y": X[:1]})[0] == 0


def test_a_kernel_with_weights_of_its_own_form_cannot_take_its_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keeps its weights in another form"):
        FileKernel(TWICE, call_of(RMSNorm()), tmp_path)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 2


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.BatchNorm1d(64), "BatchNorm1d writes into running_mean, running_var, num_batches_tracked"),
        (lambda x: x.mul_(2), "a lambda writes into x"),
        (Counts(), "Counts keeps state between calls: calls was changed"),
    ],
)
def test_what_does_more_than_return_a_result_keeps_its_place(
    module: Callable[..., Any], message: str, tmp_path: Path
) -> None:
    """Verification compares outputs, so that a kernel may leave out the rest."""
    x = torch.randn(8, 64)
    call = trace_call(module, (x,))
    kernel = Counted(FileKernel(TWICE, trace_call(double, (x,)), tmp_path))
    with pytest.raises(UsageError) as raised:
        module_with(kernel, call)
    assert message in str(raised.value)


def double(x: Tensor) -> Tensor:
    return x * 2
