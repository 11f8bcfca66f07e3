"""Profiles of candidates that were really evaluated, and how they are shown."""

import io
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from kernelbench.candidates import language_of
from kernelbench.evaluator import Effort, Evaluator, Protocol
from kernelbench.evaluator.process import Worker
from kernelbench.records import TRAFFIC, Candidate, Task, Verdict
from profiling.catalogue import CATALOGUE
from profiling.cli import show
from profiling.ladder import profile
from profiling.static.reading import static_metrics
from profiling.static.unreadable import Unreadable
from profiling.static.x86 import Mix

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
from kernelbench import jit

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


MIX = Mix(
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
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    effort = Effort(rounds=3, processes=1, most_processes=1, half_width=1.0)
    protocol = Protocol(effort=effort, min_rounds=3, block_s=0.005)
    with Evaluator(cache=tmp_path_factory.mktemp("cache"), protocol=protocol) as made:
        yield made


def shown(*arguments: object) -> str:
    out = Console(record=True, width=150, highlight=False, file=io.StringIO())
    show(out, *arguments)  # type: ignore[arg-type]
    return out.export_text()


def test_a_loop_that_calls_a_function_for_each_element_is_told_from_one_that_is_vectorized(
    evaluator: Evaluator,
) -> None:
    task, candidate = Task(id="file:exp", level=1, source=REFERENCE), candidate_from_source(CANDIDATE)
    evaluation = evaluator.evaluate(task, candidate, ("eager", TRAFFIC))
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    found = profile(evaluator, task, candidate, evaluation)
    assert set(found.kernels) == {"twice", "plain_exp"}
    assert found.value("packed_share", "twice") == 1.0
    assert found.value("calls_in_loops", "twice") == 0
    assert found.value("calls_in_loops", "plain_exp") == 1
    assert found.value("minimal_bytes") == 2 * 300 * 1024 * 4
    assert [(rung.name, rung.on) for rung in found.rungs] == [("roofline", True), ("static", True)]
    text = shown(evaluation, found)
    for word in ("plain_exp", "times eager's speed", "of the speed of light", "2.46 Mbytes"):
        assert word in text


def test_of_what_is_torch_calls_alone_there_is_no_machine_code(evaluator: Evaluator) -> None:
    task = Task(id="file:exp", level=1, source=REFERENCE)
    candidate = candidate_from_source(REFERENCE.replace("Model(", "ModelNew("))
    found = profile(evaluator, task, candidate, evaluator.evaluate(task, candidate, ("eager",)))
    assert found.speed_of_light is not None and not found.kernels
    assert [rung.why for rung in found.rungs if not rung.on] == ["it has built no library"]


def test_of_what_is_wrong_there_is_machine_code_alone(evaluator: Evaluator) -> None:
    task, candidate = (
        Task(id="file:exp", level=1, source=REFERENCE),
        candidate_from_source(CANDIDATE.replace("2.0f * x", "3.0f * x")),
    )
    evaluation = evaluator.evaluate(task, candidate, ("eager",))
    assert evaluation.verdict is Verdict.wrong_output
    found = profile(evaluator, task, candidate, evaluation)
    assert (found.speed_of_light, found.bottleneck) == (None, "unknown")
    assert "twice" in found.kernels and "the candidate was not timed" in shown(evaluation, found)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"problem": "no " * 1000}, "^no no"),
        ({"mixes": [{"kernel": "f"}]}, "none of what there is to read"),
        ({"mixes": [asdict(replace(MIX, packed_share=float("nan")))]}, "none of what there is to read"),
        ({}, "none of what there is to read"),
    ],
)
def test_what_a_candidate_s_worker_answers_is_looked_at(
    answer: dict[str, object], said: str, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "ask", lambda *_: answer)
    with pytest.raises(Unreadable, match=said) as caught:
        static_metrics(evaluator.pool, "0" * 64)
    assert len(str(caught.value)) <= 500


def test_names_of_kernels_hold_nothing_odd(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"mixes": [asdict(replace(MIX, kernel="[red]\x1b[2J" + 100 * "x"))] * 100}
    monkeypatch.setattr(Worker, "ask", lambda *_: answer)
    found = static_metrics(evaluator.pool, "0" * 64)
    assert {m.kernel for m in found} == {"?red???2J" + 71 * "x"}


def test_every_metric_says_what_it_means() -> None:
    for name, definition in CATALOGUE.items():
        assert definition.meaning and definition.unit, name
