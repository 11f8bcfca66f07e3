"""The coder: first proposal, advised moves, and the references it leaves alone, with the reason."""

from pathlib import Path

import pytest
from proving import assert_right, coder, load, models, propose, source, task

from agent.builtin.graph import Graph
from agent.builtin.trace import trace_json, trace_source
from agent.builtin.untraceable import Untraceable
from agent.protocols import Attempt
from kernelbench.records import (
    Advice,
    Candidate,
    Ceilings,
    Environment,
    Evaluation,
    Fingerprint,
    Interval,
    Stages,
    Target,
    Timing,
    Verdict,
)

SOFTMAX = source("return torch.softmax(x, dim=-1)", "torch.randn(64, 2048)")

UNTOUCHED = {
    "a library call": (source("return x @ x", "torch.randn(8, 8)"), "library call"),
    "random numbers": (source("return F.dropout(x, 0.5)", "torch.randn(8, 8)"), "random numbers"),
    "control flow on data": (source("return x if x.sum() > 0 else -x", "torch.randn(8)"), "torch.export"),
    "a nested result": (source("return x.exp(), (x.abs(), x)", "torch.randn(8)"), "nested"),
}


def attempt(candidate: Candidate, time_us: float, verdict: Verdict = Verdict.correct) -> Attempt:
    fingerprint = Fingerprint(
        chip="c",
        threads=2,
        memory_bytes=1,
        last_level_cache_bytes=1,
        system="s",
        python="p",
        torch="t",
        compiler="g",
    )
    ceilings = Ceilings(copy_bytes_s=1e10, cached_copy_bytes_s=2e10, fp32_flops_s=1e11)
    interval = Interval(median=time_us, low=time_us, high=time_us)
    evaluation = Evaluation(
        task="file:test",
        candidate=candidate.sha256,
        target=Target(device="cpu", languages=("cpp",), ceilings=ceilings, fingerprint=fingerprint),
        verdict=verdict,
        reason="",
        timing=Timing(candidate_us=interval, calls_per_block=1, rounds=1) if time_us else None,
        stages=Stages(),
        environment=Environment(sandbox=()),
    )
    return Attempt(candidate, evaluation, None)


def advice(**schedule: str) -> Advice:
    knobs = {knob.replace("__", "."): value for knob, value in schedule.items()}
    return Advice(bottleneck="b", method="m", plan="try it", predicted_gain=1.1, schedule=knobs)


def test_advice_changes_the_best_schedule_so_far() -> None:
    first = propose(SOFTMAX)
    slower = propose(SOFTMAX, unroll="on")
    history = [attempt(first, 100.0), attempt(slower, 120.0)]
    found = coder().propose(task(SOFTMAX), history, advice(k0__prefetch="off"))
    assert found.schedule == {**first.schedule, "k0.prefetch": "off"}
    assert found.parents == (first.sha256,)
    assert found.advice == "try it"
    assert found.author == "builtin"


@pytest.mark.parametrize("case", UNTOUCHED)
def test_what_it_cannot_fuse_stays_the_reference_and_says_why(case: str, tmp_path: Path) -> None:
    text, reason = UNTOUCHED[case]
    candidate = propose(text)
    assert (candidate.language, candidate.schedule) == ("torch", {})
    assert reason in candidate.source.splitlines()[0]
    assert hasattr(load(candidate.source, tmp_path), "ModelNew")


def test_an_untouched_reference_still_computes(tmp_path: Path) -> None:
    text = UNTOUCHED["a library call"][0]
    assert_right(*models(text, propose(text), tmp_path))


def test_the_graph_survives_json() -> None:
    text = source(
        "return torch.where(x > 0, x, float('-inf')).logsumexp(1, keepdim=True), x.double()",
        "torch.randn(4, 5)",
    )
    assert Graph.from_json(trace_json(text)) == trace_source(text)


def test_constructor_values_other_than_literals_are_untraceable() -> None:
    text = source("return x + 1", "torch.randn(4)", init="a: pass", init_inputs="torch.ones(2)")
    with pytest.raises(Untraceable, match="literals"):
        trace_source(text)
