"""CUDA C++ kernels: right in emulation, which checks every access, and built for chips that are not there."""

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelwright.agent.builtin.codegen.cuda.types import CUDA
from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.records import Candidate
from tests.helpers.builtin.grammar import references
from tests.helpers.builtin.lookups import LOOKUPS
from tests.helpers.builtin.numerics import EDGES, REFERENCES, marks
from tests.helpers.builtin.order_of_axes import GRADIENTS, INPUTS, TURNED
from tests.helpers.builtin.picks import PICKS
from tests.helpers.builtin.products import PRODUCTS
from tests.helpers.builtin.proving import models, propose, prove, ruff, source
from tests.helpers.builtin.random_graphs import (
    FOUND,
    graphs,
    squares_denormals,
    within_what_rounding_explains,
    works,
)
from tests.helpers.builtin.ranks import RANKS

pytestmark = pytest.mark.builds

emulated = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there")

# A behaviour each; `python -m benchmarks emulated` tries the suite.
KINDS = {
    name: REFERENCES[name]
    for name in (
        "every activation",
        "layer norm, gelu, residual",
        "cross entropy",
        "losses over everything",
        "recurrence of elements",
        "recurrence along rows",
        "pooling of images",
        "running sums of running sums",
        "integers and masks",
        "double precision",
        "small whole numbers",
    )
}
KINDS |= {name: kind[name] for kind in (TURNED, INPUTS, GRADIENTS) for name in list(kind)[:1]}
KINDS |= {name: LOOKUPS[name] for name in ("indices that count from the end", "32 bits, and what is reduced")}
KINDS |= {name: RANKS[name] for name in list(RANKS)[:1]}
KINDS |= {name: PICKS[name] for name in list(PICKS)[:2]}
KINDS |= {
    "columns that threads share": source(
        "return x.softmax(1) * 2, x.mean(1), x.argmax(1)", "torch.randn(3, 70, 40)"
    ),
    "columns, one thread each": source("return x.cumsum(0), x.cummax(0).values.sum()", "torch.randn(50, 70)"),
    "running sums along long rows": source("return x.cumsum(-1), x.cumprod(-1)", "torch.rand(3, 700) + 0.5"),
    "running sums, a warp for each row": source("return x.cumsum(-1)", "torch.rand(1100, 70)"),
    "totals of many blocks": source(
        "return (x - y).abs().mean(), x.amax(), (x * y).sum(-1).amin()",
        "torch.randn(300, 70), torch.randn(300, 70)",
        arguments="x, y",
    ),
    "rows of a few": source("return x.softmax(-1), x.sum(-1)", "torch.randn(129, 5)"),
    "half and bfloat16": source(
        "return F.silu(x) * w, (x.float() * 2).to(torch.bfloat16), F.rms_norm(x, (70,))",
        "torch.randn(20, 70).half(), torch.randn(70).half()",
        arguments="x, w",
    ),
}
OTHERWISE = {
    "k0__keep": "off",
    "k1__keep": "off",
    "k0__rows": "4",
    "k0__warps": "2",
    "k1__rows": "1",
    "k1__warps": "1",
    "k0__tile": "16",
}


def build(candidate: Candidate) -> None:
    """Has NVRTC build the kernels, where it is installed; raises where it cannot."""
    try:
        nvrtc.version()
    except Unavailable:
        return
    kernels = re.search(r'SOURCE = r"""(.*?)"""', candidate.source, re.DOTALL)
    assert kernels is not None
    for chip in ("sm_80", "sm_90", "sm_100"):
        assert nvrtc.cubin(kernels[1], chip)


@emulated
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in KINDS])
def test_kernels_are_as_exact_as_the_reference(name: str, tmp_path: Path) -> None:
    text = KINDS[name]
    if name == "half and bfloat16":  # which torch has no double of
        candidate = propose(text, "cuda")
        within_what_rounding_explains(*models(text, candidate, tmp_path))
        assert candidate.language == "cuda"
    else:
        candidate = prove(text, tmp_path, "cuda")
    build(candidate)


@emulated
@pytest.mark.parametrize("name", PRODUCTS)
def test_small_products_take_along_what_follows(name: str, tmp_path: Path) -> None:
    candidate = prove(PRODUCTS[name], tmp_path, "cuda")
    assert candidate.schedule["products"] == "tiled"
    assert "__shared__ float above[STEP][TILE + 2]" in candidate.source
    assert not re.search(r"F\.linear\(|torch\.\w*mm\(|matmul\(", candidate.source)
    build(candidate)


@emulated
@pytest.mark.parametrize(
    "name", ["columns that threads share", "running sums along long rows", "totals of many blocks"]
)
def test_other_schedules(name: str, tmp_path: Path) -> None:
    build(prove(KINDS[name], tmp_path, "cuda", **OTHERWISE))


@emulated
def test_tiles_of_another_size(tmp_path: Path) -> None:
    prove(PRODUCTS["what follows a linear layer"], tmp_path, "cuda", k0__tile="128")


@emulated
@pytest.mark.parametrize("name", list(EDGES)[:3])
def test_nan_infinity_and_large_values(name: str, tmp_path: Path) -> None:
    wild = "torch.cat([WILD * torch.ones(5, 80), torch.randn(5, 80).where(torch.rand(5, 80) > 0.1, WILD)])"
    numbers = "torch.tensor([float('nan'), float('inf'), float('-inf'), 1e-40, 88.5]).view(5, 1)"
    prove(source(EDGES[name], wild.replace("WILD", numbers)), tmp_path, "cuda")


@emulated
@pytest.mark.timeout(0)
@graphs(6)
@given(references(), st.sampled_from([{}, OTHERWISE]))
def test_random_references(
    tmp_path_factory: pytest.TempPathFactory, text: str, schedule: dict[str, str]
) -> None:
    assume(works(text) and not squares_denormals(text))
    candidate = propose(text, "cuda", **schedule)
    within_what_rounding_explains(*models(text, candidate, tmp_path_factory.mktemp("graph")))


def test_numbers_keep_their_digits() -> None:
    assert CUDA.literal(0.1, "float") == "0.1f" and CUDA.literal(0.1, "double") == "0.1"
    assert CUDA.literal(math.inf, "float") == "INFINITY" and CUDA.literal(-math.inf, "double") == "-INFINITY"
    assert CUDA.literal(2.7, "long long") == "2LL"
    assert CUDA.literal(-(2**63), "long long") == "(-9223372036854775807LL - 1)"
    assert CUDA.literal(300, "unsigned char") == "44"


def test_offsets_that_32_bits_do_not_hold() -> None:
    large = source("return x * 2, x.argmax(-1)", "torch.randn(1, 1).expand(50_000, 50_000)")
    text = propose(large, "cuda").source
    assert "const long long row" in text and "static_cast<long long>(blockIdx.x)" in text
    small = propose(source("return x * 2", "torch.randn(500, 500)"), "cuda").source
    assert "long long" not in small


def test_a_stride_that_begins_with_the_digits_of_a_rows_length() -> None:
    part = source("return x[:, :4].softmax(-1) * 2", "torch.randn(30, 40)")
    text = propose(part, "cuda").source
    assert "x + row * 40;" in text and "mul_1_out + row * COLUMNS;" in text


def test_attention_is_left_to_torchs_call() -> None:
    attention = source("return F.scaled_dot_product_attention(x, x, x) * 2", "torch.randn(2, 3, 40, 16)")
    candidate = propose(attention, "cuda")
    assert candidate.schedule["attention"] == "fused" and "own" not in candidate.alternatives["attention"]
    assert "F.scaled_dot_product_attention" in candidate.source


@pytest.mark.parametrize("name", ["layer norm, gelu, residual", "cross entropy", "losses over everything"])
def test_the_file_is_lint_clean(name: str, tmp_path: Path) -> None:
    text = propose(REFERENCES[name], "cuda").source
    assert "All checks passed!" in ruff(text, tmp_path)
    for function in re.findall(r"__device__ (?:\w+ )+?(\w+)\(", text):
        assert len(re.findall(rf"\b{function}\b", text)) > 1, f"{function} is never called"


@emulated
@pytest.mark.parametrize("name", list(FOUND)[:2])
def test_what_was_found_with_cpp(name: str, tmp_path: Path) -> None:
    text = FOUND[name][0]
    within_what_rounding_explains(*models(text, propose(text, "cuda"), tmp_path))
