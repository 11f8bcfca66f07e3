"""Profiles of candidates that were really evaluated, and how they are shown."""

import io
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator import EAGER, Effort, Measurement, Protocol, Referee
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.records import TRAFFIC, Candidate, Task, Verdict
from kernelwright.profiling.counters.per_call import Counters
from kernelwright.profiling.counters.time_shares import TimeShares
from kernelwright.profiling.ladder import profile
from kernelwright.profiling.page import show
from kernelwright.profiling.rung import Rung, Subject
from kernelwright.profiling.simulated.callgrind import Costs
from kernelwright.profiling.simulated.simulation import Simulation
from kernelwright.profiling.static.kernel_loops import Loops, static_metrics
from kernelwright.profiling.static.vectorization import Vectorization
from kernelwright.profiling.static.x86 import LoopMix

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.exp(2 * x)

def get_inputs():
    return [torch.randn(300, 1024)]

def get_init_inputs():
    return []
"""

CANDIDATE = '''
import torch
from torch import nn
from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
    #pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) y[i] = 2.0f * x[i];
}
extern "C" void plain_exp(float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = expf(y[i]);
}
""")

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        lib.plain_exp(y, y.numel())
        return y
'''


MIX = LoopMix(
    kernel="f",
    loops=1,
    instructions=9,
    vector_bits=512,
    packed_share=1.0,
    zmm_share=1.0,
    ymm_share=0.0,
    fma_share=None,
    divisions=0,
    gathers=0,
    spills=0,
    streaming_stores=0,
    prefetches=0,
    calls=(),
)


def candidate_from_source(source: str) -> Candidate:
    return Candidate(source=source, language=language_of(source), author="test")


@pytest.fixture(scope="module")
def evaluator(home: Path) -> Iterator[Referee]:
    effort = Effort(rounds=3, processes=1, most_processes=1, half_width=1.0)
    protocol = Protocol(effort=effort, min_rounds=3, block_s=0.005)
    with Referee.start(cache=home, protocol=protocol) as made:
        assert made.target.device == "cpu"  # measured before any test has workers answer something else
        yield made


def shown(*arguments: object) -> str:
    out = Console(record=True, width=150, highlight=False, file=io.StringIO())
    show(out, *arguments)  # type: ignore[arg-type]
    return out.export_text()


def untried(evaluator: Referee, source: str) -> Subject:
    """A candidate that has not been evaluated."""
    task, candidate = Task(id="file:exp", level=1, source=REFERENCE), candidate_from_source(source)
    return Subject(evaluator, task, candidate, evaluator.rejected(task, candidate, "not tried"))


@pytest.mark.slow
def test_a_loop_that_calls_a_function_for_each_element_is_told_from_one_that_is_vectorized(
    evaluator: Referee,
) -> None:
    task, candidate = Task(id="file:exp", level=1, source=REFERENCE), candidate_from_source(CANDIDATE)
    evaluation = evaluator.evaluate(task, candidate, Measurement(("eager", TRAFFIC)))
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    found = profile(Subject(evaluator, task, candidate, evaluation))
    assert set(found.kernels) == {"twice", "plain_exp"}
    assert found.value("packed_share", "twice") == 1.0
    assert found.value("calls_in_loops", "twice") == 0
    assert found.value("calls_in_loops", "plain_exp") == 1
    assert found.value("minimal_bytes") == 2 * 300 * 1024 * 4
    on = {rung.name: rung.on for rung in found.rungs}
    of_cpus = ["counters", "samples", "loops", "vectorization"]
    assert list(on) == ["roofline", "ncu", "cupti", "cubins", *of_cpus, "emulation"]
    assert (
        on["roofline"]
        and on["loops"]
        and on["vectorization"]
        and not (on["ncu"] or on["cupti"] or on["cubins"])
    )
    if on["counters"]:  # as the machine grants them
        assert (found.value("cpu_time") or 0) > 0
    if on["samples"]:
        shares = [found.value("time_share", kernel) or 0.0 for kernel in ("twice", "plain_exp")]
        whole = [found.value(f"time_{part}") or 0.0 for part in ("in_torch", "in_system", "waiting")]
        waiting = whole[-1]  # most of it where other processes want the CPUs
        assert 0 < sum(shares) + sum(whole) < 1.001 and max(shares) > 0.05 * (1 - waiting)
    assert (found.value("loops_vectorized", "twice"), found.value("loops_missed", "twice")) == (1, 0)
    assert (found.value("loops_vectorized", "plain_exp"), found.value("loops_missed", "plain_exp")) == (0, 1)
    [remark] = found.remarks
    assert (remark.kernel, remark.line) == ("plain_exp", 9)
    assert "expf(y[i])" in remark.code and remark.text.startswith("function is not vectorizable")
    text = shown(evaluation, found)
    for word in (
        "function is not vectorizable",
        "plain_exp",
        "times eager's speed",
        "of what the roofline allows",
        "2.46 Mbytes",
    ):
        assert word in text


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_what_is_simulated_is_marked_so(evaluator: Referee) -> None:
    subject = untried(evaluator, CANDIDATE)
    found = profile(subject, [Simulation()])
    assert [(rung.name, rung.on) for rung in found.rungs] == [("roofline", False), ("simulation", True)]
    assert {m.provenance for m in found.metrics} == {"simulated"}
    assert found.value("simulated_calls", "twice") == 1
    lines = 300 * 1024 * 4 / 64
    assert found.value("simulated_last_misses", "twice") == pytest.approx(2 * lines, rel=0.02)
    executed = found.value("simulated_instructions", "plain_exp")
    assert executed is not None and executed > 300 * 1024 * 10  # the C library's too
    assert "simulated, not measured" in shown(subject.evaluation, found)


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        (("lib.twice(x, y, x.numel())", "y.copy_(2 * x)"), "calls no kernel"),
        (("return y", "raise ValueError('[no]')"), r"ValueError: \[no\]"),
    ],
)
def test_what_cannot_be_simulated_says_why(
    replaced: tuple[str, str], said: str, evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Simulation, "available", lambda _: "")
    source = CANDIDATE.replace("lib.plain_exp(y, y.numel())", "y.exp_()").replace(*replaced)
    with pytest.raises(Unavailable, match=said):
        Simulation().read(untried(evaluator, source))


@pytest.mark.parametrize("change", [{"reads": 10**400}, {"last_misses": -1}, {"calls": None}])
def test_what_cannot_have_been_simulated_is_refused(
    change: dict[str, object], evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, answer = Worker.ask, {"costs": [asdict(Costs("f", 1, 1, 1, 1, 1, 1)) | change]}
    monkeypatch.setattr(Simulation, "available", lambda _: "")
    monkeypatch.setattr(Worker, "ask", lambda *a: answer if a[1]["do"] == "simulate" else ask(*a))
    with pytest.raises(Unavailable, match="none of what there is to read"):
        Simulation().read(untried(evaluator, CANDIDATE))


def test_counters_of_a_candidate_that_fails_are_none(evaluator: Referee) -> None:
    source = REFERENCE.replace("Model(", "ModelNew(").replace(
        "return torch.exp(2 * x)", "raise ValueError('no')"
    )
    with pytest.raises(Unavailable, match=r"perf|ValueError: no"):  # perf, where it is not there
        Counters().read(untried(evaluator, source))


@pytest.mark.parametrize("rung", [Counters(), TimeShares(), Loops(), Vectorization(), Simulation()])
def test_for_a_chip_that_is_named_nothing_runs_on_the_cpu(
    rung: Rung, evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = untried(evaluator, CANDIDATE)
    monkeypatch.setattr(Worker, "ask", lambda *_: pytest.fail("a worker is asked"))
    monkeypatch.setattr(WorkerPool, "start", lambda *_: pytest.fail("a worker is started"))
    with pytest.raises(Unavailable, match="only for candidates on a CPU"):
        rung.read(replace(here, chip="sm_90"))


def test_of_what_is_torch_calls_alone_there_is_no_machine_code(evaluator: Referee) -> None:
    task = Task(id="file:exp", level=1, source=REFERENCE)
    candidate = candidate_from_source(REFERENCE.replace("Model(", "ModelNew("))
    evaluation = evaluator.evaluate(task, candidate, EAGER)
    found = profile(Subject(evaluator, task, candidate, evaluation))
    assert found.speed_of_light is not None and not found.kernels
    why = {rung.name: rung.why for rung in found.rungs if not rung.on}
    assert why["loops"] == "the candidate has built no library"
    assert why["vectorization"] == "the candidate has built no source with compile_cpp"


def test_of_what_is_wrong_there_is_machine_code_alone(evaluator: Referee) -> None:
    task, candidate = (
        Task(id="file:exp", level=1, source=REFERENCE),
        candidate_from_source(CANDIDATE.replace("2.0f * x", "3.0f * x")),
    )
    evaluation = evaluator.evaluate(task, candidate, EAGER)
    assert evaluation.verdict is Verdict.wrong_output
    found = profile(Subject(evaluator, task, candidate, evaluation))
    assert (found.speed_of_light, found.bottleneck) == (None, "unknown")
    assert "twice" in found.kernels and "the candidate was not timed" in shown(evaluation, found)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"problem": "no " * 1000}, "^no no"),
        ({"mixes": [{"kernel": "f"}]}, "none of what there is to read"),
        ({"mixes": [asdict(replace(MIX, packed_share=float("nan")))]}, "none of what there is to read"),
        ({"mixes": [asdict(replace(MIX, loops=-1))]}, "none of what there is to read"),
        ({"mixes": [asdict(replace(MIX, gathers=10**400))]}, "none of what there is to read"),
        ({"mixes": [asdict(replace(MIX, fma_share=10**400))]}, "none of what there is to read"),
        ({}, "none of what there is to read"),
    ],
)
def test_what_a_candidate_s_worker_answers_is_looked_at(
    answer: dict[str, object], said: str, evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "ask", lambda *_: answer)
    with pytest.raises(Unavailable, match=said) as caught:
        static_metrics(evaluator.sessions.pool, "0" * 64)
    assert len(str(caught.value)) <= 500


def test_names_of_kernels_hold_nothing_odd(evaluator: Referee, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"mixes": [asdict(replace(MIX, kernel="[red]\x1b[2J" + 100 * "x"))] * 100}
    monkeypatch.setattr(Worker, "ask", lambda *_: answer)
    found = static_metrics(evaluator.sessions.pool, "0" * 64)
    assert {m.kernel for m in found} == {"?red???2J" + 71 * "x"}


LOOP = {"kernel": "f\x1b[2J", "line": 3, "column": 1, "code": "x\ny" * 999, "vector_bytes": 0, "reason": "é"}


@pytest.mark.parametrize(
    "answer",
    [
        {"loops": [{"kernel": "f"}]},
        {"loops": [LOOP | {"line": 10**400}]},
        {"loops": [LOOP | {"vector_bytes": -1}]},
        {"loops": None},
        {},
    ],
)
def test_loops_that_no_worker_reads_are_refused(
    answer: dict[str, object], evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "ask", lambda *_: answer)
    with pytest.raises(Unavailable, match="none of what there is to read"):
        Vectorization().read(untried(evaluator, CANDIDATE))


def test_what_is_shown_of_a_source_is_one_short_line(
    evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "ask", lambda *_: {"loops": [LOOP]})
    [remark] = Vectorization().read(untried(evaluator, CANDIDATE)).remarks
    assert (remark.kernel, remark.text, remark.line) == ("f??2J", "?", 3)
    assert remark.code.startswith("x yx y") and len(remark.code) == 100
