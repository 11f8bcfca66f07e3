"""Products in Triton with what comes before and after them: right in the interpreter, and on tensor cores when built."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from kernelwright.agent.builtin.passes import split_reductions
from kernelwright.kernelbench.records import Candidate
from tests.helpers.builtin import interpreting
from tests.helpers.builtin.products import APART, BEFORE, DEEP, IN_16_BITS, OF_INTEGERS, PRODUCTS
from tests.helpers.builtin.proving import propose, prove
from tests.helpers.installed import require

require("triton")

pytestmark = pytest.mark.builds


def hold(interpreter: ProcessPoolExecutor, text: str, **schedule: str) -> Candidate:
    candidate = propose(text, "triton", **schedule)
    interpreter.submit(interpreting.check, text, candidate).result()
    return candidate


@pytest.mark.parametrize("name", PRODUCTS)
def test_float32_takes_along_what_follows(name: str, interpreter: ProcessPoolExecutor) -> None:
    candidate = hold(interpreter, PRODUCTS[name])
    assert candidate.schedule["products"] == "tiled"
    assert candidate.schedule["k0.precision"] == "ieee"
    assert "torch.bmm" not in candidate.source and "F.linear" not in candidate.source


@pytest.mark.parametrize("name", IN_16_BITS)
def test_16_bits_are_multiplied_as_they_are(name: str, interpreter: ProcessPoolExecutor) -> None:
    candidate = hold(interpreter, IN_16_BITS[name])
    assert "tl.dot(" in candidate.source and "input_precision" not in candidate.source


KNOBS = {
    "small tiles": {"k0__tile": "16", "k0__across": "16", "k0__group": "2"},
    "large tiles": {"k0__tile": "128", "k0__across": "256", "k0__stages": "5", "k0__warps": "8"},
    "three products of TF32": {"k0__precision": "tf32x3"},
}


@pytest.mark.parametrize("knobs", KNOBS)
def test_knobs_change_the_source_and_not_the_result(knobs: str, interpreter: ProcessPoolExecutor) -> None:
    text = PRODUCTS["what follows a linear layer"]
    assert hold(interpreter, text, **KNOBS[knobs]).source != propose(text, "triton").source


@pytest.mark.parametrize("name", BEFORE)
def test_what_comes_before_is_computed_where_it_is_read(name: str, interpreter: ProcessPoolExecutor) -> None:
    candidate = hold(interpreter, BEFORE[name])
    assert len(candidate.kernels) == (2 if name == "a norm" else 1)  # the mean of squares is a kernel
    assert len(hold(interpreter, BEFORE[name], fuse="apart").kernels) > len(candidate.kernels)


@pytest.mark.parametrize("name", APART)
def test_what_is_stored_anyway_is_not_computed_again(name: str, interpreter: ProcessPoolExecutor) -> None:
    candidate = hold(interpreter, APART[name])
    assert len(candidate.kernels) > 1


def test_a_deep_product_is_split_over_programs(
    interpreter: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = hold(interpreter, DEEP)
    assert candidate.schedule["split"] == "8"
    assert len(candidate.kernels) == 2  # parts of the depth, then their sums with what follows
    whole = hold(interpreter, DEEP, split="off")
    assert len(whole.kernels) == 1
    monkeypatch.setattr(split_reductions, "_LEAST_DEPTH", 4096)
    assert "split" not in propose(DEEP, "triton").schedule


@pytest.mark.slow
def test_a_deep_product_is_split_over_blocks_in_cuda(tmp_path: Path) -> None:
    assert prove(DEEP, tmp_path, "cuda").schedule["split"] == "8"


@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_integers_are_no_product_of_floats(
    language: str, interpreter: ProcessPoolExecutor, tmp_path: Path
) -> None:
    if language == "cuda":
        prove(OF_INTEGERS, tmp_path, "cuda")
    else:
        assert "tl.dot" not in hold(interpreter, OF_INTEGERS).source
