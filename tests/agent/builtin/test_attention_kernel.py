"""The kernel of attention: as exact as torch's call, for every layout, mask and number of heads."""

from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.records import Candidate
from tests.helpers.builtin.proving import assert_right, models, propose, prove, source

CALL = "F.scaled_dot_product_attention"


def vectors(*shape: int, count: int = 1, dtype: str = "") -> str:
    one = f"torch.randn{shape}" + (f".to(torch.{dtype})" if dtype else "")
    return ", ".join([one] * count)


def call(settings: str, inputs: str, more: str = "") -> str:
    """A reference that is one call; `more` are names of further arguments."""
    return source(f"return {CALL}(x, y, z{settings})", inputs, arguments=f"x, y, z{more}")


QKV = f"{vectors(2, 3, 40, 16)}, {vectors(2, 3, 50, 16, count=2)}"
LONG = f"{vectors(1, 2, 150, 32)}, {vectors(1, 2, 333, 32, count=2)}"
CALLS = {
    "more keys than a block": call("", LONG),
    "a scale": call(", scale=0.3", QKV),
    "a causal mask": call(", is_causal=True", vectors(2, 3, 150, 32, count=3)),
    "a causal mask, fewer keys than queries": call(
        ", is_causal=True", f"{vectors(2, 3, 150, 16)}, {vectors(2, 3, 70, 16, count=2)}"
    ),
    "a causal mask, fewer queries than keys": call(", is_causal=True", LONG),
    "a mask that is added": call(", attn_mask=m", f"{QKV}, torch.randn(2, 1, 40, 50)", ", m"),
    "a mask for each key": call(", attn_mask=m", f"{QKV}, torch.randn(2, 1, 1, 50)", ", m"),
    "a mask for each query": call(", attn_mask=m", f"{QKV}, torch.randn(3, 40, 1)", ", m"),
    "a condition": call(", attn_mask=k", f"{QKV}, torch.rand(40, 50) > 0.5", ", k"),
    "rows that a condition leaves nothing of": call(
        ", attn_mask=k", f"{LONG}, (torch.rand(150, 333) > 0.5) & (torch.rand(150, 1) > 0.4)", ", k"
    ),
    "rows that what is added leaves nothing of": call(
        ", attn_mask=m",
        f"{QKV}, torch.zeros(40, 50).masked_fill(torch.rand(40, 1) > 0.5, float('-inf'))",
        ", m",
    ),
    "blocks that a mask leaves nothing of": call(
        ", attn_mask=k", f"{LONG}, (torch.arange(333) > 300).view(1, 333)", ", k"
    ),
    "one query": call("", f"{vectors(3, 4, 1, 64)}, {vectors(3, 4, 300, 64, count=2)}"),
    "one query, an odd size": call("", f"{vectors(3, 4, 1, 19)}, {vectors(3, 4, 300, 19, count=2)}"),
    "a few queries": call("", f"{vectors(3, 4, 3, 64)}, {vectors(3, 4, 300, 64, count=2)}"),
    "one key": call("", f"{vectors(2, 3, 40, 16)}, {vectors(2, 3, 1, 16, count=2)}"),
    "one of everything": call("", vectors(1, 1, 1, 1, count=3)),
    "an odd size": call("", f"{vectors(2, 3, 41, 19)}, {vectors(2, 3, 53, 19, count=2)}"),
    "five vectors of a value": call("", vectors(2, 3, 41, 80, count=3)),
    "many vectors of a value": call("", vectors(1, 2, 70, 256, count=3)),
    "a size of the keys' own": call("", f"{vectors(2, 3, 40, 16, count=2)}, {vectors(2, 3, 40, 24)}"),
    "groups of heads": call(
        ", enable_gqa=True", f"{vectors(2, 6, 40, 16)}, {vectors(2, 2, 50, 16, count=2)}"
    ),
    "no heads, a mask": call(
        ", attn_mask=m", f"{vectors(5, 40, 16, count=3)}, torch.randn(5, 40, 40)", ", m"
    ),
    "a matrix": call(", is_causal=True", vectors(40, 16, count=3)),
    "keys that all images share": call("", f"{vectors(2, 3, 40, 16)}, {vectors(1, 3, 50, 16, count=2)}"),
}
SMALL = {
    name: call(", is_causal=True", vectors(2, 3, 70, 40, count=3, dtype=name))
    for name in ("bfloat16", "float16")
} | {
    "one query of float16": call(
        "",
        f"{vectors(3, 4, 1, 32, dtype='float16')}, {vectors(3, 4, 203, 32, count=2, dtype='float16')}",
    ),
    "a mask of bfloat16": call(
        ", attn_mask=m",
        f"{vectors(2, 3, 40, 16, count=3, dtype='bfloat16')}, torch.randn(40, 40).to(torch.bfloat16)",
        ", m",
    ),
}
_HERE = "(torch.arange(77 * 24).view(77, 24) == 76 * 24 + 3)"  # one element, of the last vector


def _wild(place: int) -> str:
    """Of nine images, three that have one such value at this place: among the queries, the keys, the values."""
    image = "(torch.arange(9).view(9, 1, 1, 1) == {})"
    fills = [
        f".masked_fill({image.format(3 * place + n)} & {_HERE}, float('{value}'))"
        for n, value in enumerate(("nan", "inf", "-inf"))
    ]
    return vectors(9, 2, 77, 24) + "".join(fills)


WILD = {"nan and infinity": call("", ", ".join(map(_wild, range(3))))}
PROJECTED = source(
    "q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)\n"
    f"        return self.out({CALL}(q, k, v, is_causal=True).transpose(1, 2).flatten(2))",
    "torch.randn(2, 90, 64)",
    init="self.qkv = nn.Linear(64, 192); self.out = nn.Linear(64, 64)",
)


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
