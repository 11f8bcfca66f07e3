"""The kernel of attention: as exact as torch's call, for every layout, mask and number of heads."""

from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.records import Candidate
from tests.helpers.builtin.attention import CALL, CALLS, PROJECTED, SMALL, WILD, call, vectors
from tests.helpers.builtin.proving import assert_right, models, propose, prove, source

pytestmark = pytest.mark.builds


@pytest.mark.parametrize("name", {**CALLS, **SMALL})
def test_a_kernel_is_as_exact_as_the_call(name: str, tmp_path: Path) -> None:
    candidate = prove({**CALLS, **SMALL}[name], tmp_path, attention="own")
    assert candidate.schedule["attention"] == "own"
    assert CALL not in candidate.source


@pytest.mark.parametrize(
    "knobs", [{"k0__block": "64"}, {"k0__block": "256", "k0__rows": "16"}, {"k0__threads": "1"}]
)
@pytest.mark.parametrize("name", ["more keys than a block", "a causal mask, fewer queries than keys"])
def test_blocks_of_other_sizes(name: str, knobs: dict[str, str], tmp_path: Path) -> None:
    prove(CALLS[name], tmp_path, attention="own", **knobs)


def test_large_blocks_of_long_vectors_fit_on_the_stack(tmp_path: Path) -> None:
    long = vectors(1, 1, 9000, 512, count=2, dtype="bfloat16")
    text = call("", f"{vectors(1, 1, 130, 512, dtype='bfloat16')}, {long}")
    prove(text, tmp_path, attention="own", k0__block="16384", k0__rows="128")


def test_nan_and_infinity(tmp_path: Path) -> None:
    (text,) = WILD.values()
    prove(text, tmp_path, attention="own")


def test_inputs_that_are_not_contiguous(tmp_path: Path) -> None:
    text = CALLS["a condition"]
    model, model_new, inputs = models(text, propose(text, attention="own"), tmp_path)
    inputs[:3] = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs[:3]]
    assert_right(model, model_new, inputs)


def test_parts_of_a_projection_are_read_where_they_lie(tmp_path: Path) -> None:
    """And the result lies as the next projection reads it: nothing is copied."""
    candidate = prove(PROJECTED, tmp_path, attention="own")
    assert copies(candidate) == 0
    assert candidate.source.count('extern "C"') == 1


def copies(candidate: Candidate) -> int:
    """Of tensors, besides those of arguments that are not contiguous."""
    forward = candidate.source.partition("def forward")[2]
    return forward.count("contiguous()") + forward.count("clone(")


def test_a_result_of_the_reference_lies_as_its_own(tmp_path: Path) -> None:
    assert copies(prove(CALLS["a condition"], tmp_path, attention="own")) == 0


def test_layers_share_a_kernel(tmp_path: Path) -> None:
    text = source(
        f"return {CALL}(x, y, z), {CALL}(y, z, x)", vectors(2, 3, 40, 16, count=3), arguments="x, y, z"
    )
    assert prove(text, tmp_path, attention="own").source.count('extern "C"') == 1


LEFT = {
    "double precision": call("", ", ".join(["torch.randn(2, 3, 40, 16, dtype=torch.float64)"] * 3)),
    "long vectors": call("", vectors(1, 1, 4, 600, count=3)),
    "images of images": call("", vectors(2, 2, 2, 20, 16, count=3)),
    "no keys": call("", f"{vectors(2, 3, 4, 16)}, {vectors(2, 3, 0, 16, count=2)}"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_the_call(name: str, tmp_path: Path) -> None:
    candidate = propose(LEFT[name], attention="own")
    assert "attention" not in candidate.schedule
    assert CALL in candidate.source and 'extern "C"' not in candidate.source
    model, model_new, inputs = models(LEFT[name], candidate, tmp_path)
    with torch.no_grad():
        assert torch.equal(model(*inputs), model_new(*inputs))
