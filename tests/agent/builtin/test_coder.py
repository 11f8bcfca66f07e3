"""The coder: first proposal, advised moves, and the references it leaves alone, with the reason."""

from pathlib import Path

import pytest
import torch

from kernelwright.agent.builtin.frontend.trace import trace_json, trace_source
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.kernelbench.records import (
    Advice,
)
from tests.helpers.attempts import attempt
from tests.helpers.builtin.proving import assert_right, coder, load, models, propose, source, task

SOFTMAX = source("return torch.softmax(x, dim=-1)", "torch.randn(64, 2048)")

UNTOUCHED = {
    "a library call": (source("return x @ x", "torch.randn(8, 8)"), "library call"),
    "random numbers": (source("return F.dropout(x, 0.5)", "torch.randn(8, 8)"), "random numbers"),
    "control flow on data": (source("return x if x.sum() > 0 else -x", "torch.randn(8)"), "torch.export"),
    "a size that depends on data": (source("return x[x > 0].exp()", "torch.randn(8)"), "depends on the data"),
    "an input that is written": (source("return x.add_(1).exp()", "torch.randn(8)"), "other than its result"),
    "complex numbers": (
        source("return torch.fft.fft(x) * x", "torch.randn(8, dtype=torch.complex64)"),
        "library call",
    ),
    "a sparse tensor": (source("return (x.to_sparse() * 2).to_dense()", "torch.randn(8, 8)"), "torch.export"),
    "a nested result": (source("return x.exp(), (x.abs(), x)", "torch.randn(8)"), "nested"),
}


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


AROUND = {
    "complex numbers in between": "return torch.fft.fft(x * 2).abs().sigmoid(), torch.view_as_real(torch.fft.rfft(x)) + 1",
    "quantized numbers in between": "return (torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1).relu(), x + 1",
    "results that share memory with an input": "return x, x.view(-1), x[1:] * 2, x.mT",
    "results that share memory": "y = x.exp(); return y, y.view(-1), y[1:], y.mT, y",
    "an own tensor that is written": "y = x.clone(); y[1:].mul_(2); y += 1; return y.relu(), x",
    "indices in between": "return (x + 1)[torch.tensor([2, 0])].exp(), x.index_select(1, torch.tensor([1, 1])) * 2",
}


@pytest.mark.parametrize("case", AROUND)
def test_what_it_does_not_know_is_left_to_torch_and_the_rest_is_fused(case: str, tmp_path: Path) -> None:
    text = source(AROUND[case], "torch.randn(6, 32)")
    candidate = propose(text)
    assert candidate.language == "cpp"
    model, new, inputs = models(text, candidate, tmp_path)
    if "numbers" not in case:  # of which there are none in float64
        assert_right(model, new, inputs)
    for ours, theirs in zip(new(*inputs), model(*inputs), strict=True):
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


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
