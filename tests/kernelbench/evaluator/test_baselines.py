"""What a candidate is held against: baselines that are compiled, come to the same code, or take too long."""

import os
import time
from typing import Any, NoReturn

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import Measurement, Referee
from kernelwright.kernelbench.evaluator.processes.baselines import MemcpyBaseline
from kernelwright.kernelbench.evaluator.processes.generated import digest
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.records import Verdict
from kernelwright.kernelbench.speed_of_light import floor_us
from kernelwright.profiling.roofline import roofline
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of, variant

HONEST = candidate_of(variant("Model", "Model"))
POINTWISE_CONVOLUTION = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 1)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(4, 16, 32, 32)]


def get_init_inputs():
    return []
"""
CODE = """
# AOT ID: ['0_inference']
cpp_fused_add_0 = async_compile.cpp_pybinding(['const float*'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
#pragma omp parallel for
for (int64_t x0 = 0; x0 < 8; x0 += 1) out[x0] = in[x0] + 1;
''')
        assert_size_stride(arg0_1, (8,), (1,), 'input')
"""


def test_code_is_the_same_but_for_comments_and_checks() -> None:
    other = CODE.replace("0_inference", "1_inference").replace("        assert_size", "# assert_size")
    assert digest([CODE]) == digest([other])


@pytest.mark.parametrize(
    ("what", "instead"), [("+ 1", "+ 2"), ("#pragma omp parallel for\n", ""), ("cpp_fused_add_0", "extern")]
)
def test_code_that_does_something_else_is_not_the_same(what: str, instead: str) -> None:
    assert digest([CODE]) != digest([CODE.replace(what, instead)])


def test_buffers_may_have_other_numbers_but_not_each_other_s() -> None:
    code = "buf0 = mm(arg0_1)\nbuf3 = add(buf0, buf0)\nreturn (buf3, )"
    renamed = code.replace("buf3", "buf10")
    assert digest([code]) == digest([renamed])
    assert digest([code]) != digest([code.replace("add(buf0, buf0)", "add(buf3, buf0)")])
    assert digest([code]) != digest([code.replace("(buf3, )", "(buf0, )")])


def test_no_code_is_not_the_same_as_no_code() -> None:
    assert digest([]) is None


@pytest.mark.slow
def test_an_eager_baseline_that_is_killed_as_it_starts_is_started_again(
    evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(session: TaskSession, mode: str) -> NoReturn:
        raise WorkerDied("it was killed")

    task = task_of("# killed at the start\n" + REFERENCE)
    with monkeypatch.context() as patched:
        patched.setattr(TaskSession, "_start_baseline", killed)
        with pytest.raises(InfrastructureError, match="eager baseline failed: it was killed"):
            evaluator.evaluate(task, HONEST)
    assert evaluator.evaluate(task, HONEST).verdict is Verdict.correct


@pytest.mark.slow
def test_max_autotune_is_not_timed_where_its_code_is_that_of_compile(evaluator: Referee) -> None:
    """There is no product in it to tune."""
    evaluation = evaluator.evaluate(task_of(REFERENCE), HONEST, Measurement(("max-autotune", "compile")))
    timing, speedup = evaluation.timing, evaluation.speedup
    assert timing is not None and speedup is not None
    assert timing.failed_baselines == {} and timing.same_code == {"max-autotune": "compile"}
    assert timing.compile_us is not None and timing.max_autotune_us is None
    assert timing.compile_s.keys() == {"compile", "max-autotune"}
    assert speedup.compile is not None and speedup.max_autotune is None and speedup.fastest is not None

    # The code is compile's, whether that was asked for or not.
    alone = evaluator.evaluate(task_of(REFERENCE), HONEST, Measurement(("max-autotune",)))
    assert alone.timing is not None and alone.timing.compile_us is not None

    session = evaluator.sessions._session
    assert session is not None
    compiled = session.baseline("compile")
    assert compiled is not None
    os.kill(compiled.init_pid, 9)
    while compiled.alive:
        time.sleep(0.01)
    again = evaluator.evaluate(task_of(REFERENCE), HONEST, Measurement(("compile", "max-autotune")))
    assert again.timing is not None and again.timing.compile_us is not None, "it is no twin of itself"


@pytest.mark.slow
def test_max_autotune_is_timed_where_its_code_is_another(evaluator: Referee) -> None:
    """A convolution of single pixels becomes a product."""
    task = task_of(POINTWISE_CONVOLUTION)
    honest = candidate_of(POINTWISE_CONVOLUTION.replace("Model", "ModelNew"))
    evaluation = evaluator.evaluate(task, honest, Measurement(("eager", "compile", "max-autotune")))
    timing, speedup = evaluation.timing, evaluation.speedup
    assert timing is not None and speedup is not None
    assert timing.same_code == timing.failed_baselines == {}
    assert timing.max_autotune_us is not None and speedup.max_autotune is not None


@pytest.mark.slow
def test_a_baseline_that_takes_too_long_to_compile_is_not_available(
    evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(POINTWISE_CONVOLUTION + "\n# compiled for a moment only\n")
    session = evaluator.sessions.open(task)
    monkeypatch.setattr(session, "limits", session.limits.model_copy(update={"compile_s": 0.01}))
    honest = candidate_of(POINTWISE_CONVOLUTION.replace("Model", "ModelNew"))
    evaluation = evaluator.evaluate(task, honest, Measurement(("compile",)))
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    timing, speedup = evaluation.timing, evaluation.speedup
    assert timing is not None and speedup is not None
    assert timing.failed_baselines == {"compile": "compiling took longer than 0.01 s"}
    assert speedup.compile is None and speedup.fastest == speedup.eager


MANY_SIDED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(300, 40))

    def forward(self, x, y):
        return (x @ self.weight, [y.sum(0), y.T]), x.to(torch.bfloat16)


def get_inputs():
    return [torch.randn(70, 300), torch.randn(90, 33).T]


def get_init_inputs():
    return []
"""


def test_traffic_is_timed_beside_the_candidate_and_is_no_rival(evaluator: Referee) -> None:
    task = task_of(MANY_SIDED)
    done = evaluator.evaluate(
        task, candidate_of(MANY_SIDED.replace("Model(", "ModelNew(")), Measurement(("traffic",))
    )
    assert done.verdict is Verdict.correct, done.reason
    assert done.timing is not None and done.speedup is not None
    assert done.timing.traffic_us is not None and done.timing.compile_s == {}
    assert done.speedup.fastest == done.speedup.eager
    profile = roofline(evaluator.work(task), evaluator.target, done)
    assert profile is not None and {m.name: m.value for m in profile.metrics}["memory_floor"] == (
        done.timing.traffic_us.median
    )
    assert done.timing.floor_us == floor_us(
        evaluator.work(task), evaluator.target.ceilings, done.timing.traffic_us
    )


class _Watch(TorchDispatchMode):
    """How many elements were copied, summed up and filled."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = dict.fromkeys(("copy_", "sum", "zero_"), 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.moved:
            self.moved[name] += args[0].numel()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("columns", [8, 640])
@torch.no_grad()
def test_traffic_reads_all_that_is_given_and_writes_all_that_is_made(columns: int) -> None:
    model, x = nn.Linear(64, columns), torch.rand(100, 64)
    traffic = MemcpyBaseline(model, [x])
    with _Watch() as watch:
        made = traffic(x)
    assert made.shape == (100, columns) and made.dtype == torch.float32
    assert watch.moved["copy_"] + watch.moved["zero_"] == made.numel()
    assert watch.moved["copy_"] + watch.moved["sum"] == x.numel() + sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(9).bfloat16()[1:],
        torch.ones(1001, dtype=torch.bool)[1:],
        torch.rand(3).expand(4, 3),
        torch.rand(3, dtype=torch.complex64).conj(),
        torch.rand(()),
    ],
)
@torch.no_grad()
def test_traffic_takes_tensors_of_every_kind(x: torch.Tensor) -> None:
    made = MemcpyBaseline(nn.Identity(), [x])(x)
    assert (made.shape, made.dtype) == (x.shape, x.dtype)
