"""Triton kernels: right in Triton's interpreter, built for chips that are not there, timed where there is a GPU."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelwright.agent.builtin.codegen.triton.types import literal
from kernelwright.kernelbench.records import Candidate
from tests.helpers.builtin.attention import CALL, CALLS, PROJECTED, SMALL, WILD, call, vectors
from tests.helpers.builtin.chips import build_launches
from tests.helpers.builtin.grammar import references
from tests.helpers.builtin.launches import REPEATED
from tests.helpers.builtin.lookups import LOOKUPS
from tests.helpers.builtin.numerics import EDGES, REFERENCES, marks
from tests.helpers.builtin.order_of_axes import GRADIENTS, IMAGES, INPUTS, TURNED
from tests.helpers.builtin.picks import PICKS
from tests.helpers.builtin.proving import models, propose, ruff, source
from tests.helpers.builtin.random_graphs import EVERY, FOUND, graphs, squares_denormals, works
from tests.helpers.builtin.ranks import EXPERTS, RANKS
from tests.helpers.builtin.steps import STEPS_TEXTS
from tests.helpers.builtin.submodules import LEFT, built
from tests.helpers.installed import require

require("triton")

pytestmark = pytest.mark.builds

IN_OTHER_ORDERS = TURNED | {name: kind[name] for kind in (INPUTS, GRADIENTS) for name in list(kind)[:1]}

IN_PASSES = {"k0__keep": "off", "k0__block": "64", "k0__rows": "16", "k1__block": "64", "k1__keep": "off"}
WAYS = {"held": {}, "in passes": IN_PASSES}


def either(names: Iterable[str], first: int = 0) -> pytest.MarkDecorator:
    """Each in one of both ways, in turn, beginning with `first`; in both with KERNELWRIGHT_GRAPHS."""
    cases = [
        pytest.param(name, WAYS[way], id=f"{name}-{way}", marks=marks(name))
        for number, name in enumerate(names)
        for way in (WAYS if EVERY else [*WAYS][(first + number) % 2 :][:1])
    ]
    return pytest.mark.parametrize(("name", "schedule"), cases)


SCHEDULES = st.fixed_dictionaries(
    {},
    optional={
        "fuse": st.sampled_from(["all", "apart"]),
        "layout": st.sampled_from(["contiguous", "channels_last"]),
        "k0__block": st.sampled_from(["64", "512"]),
        "k0__keep": st.just("off"),
        "k0__rows": st.sampled_from(["1", "2", "16"]),
        "k0__in_place": st.just("off"),
        "k1__block": st.just("64"),
        "k1__keep": st.just("off"),
    },
)


def hold(interpreter: ProcessPoolExecutor, text: str, loosely: bool, **schedule: str) -> Candidate:
    from tests.helpers.builtin import interpreting

    candidate = propose(text, "triton", **schedule)
    interpreter.submit(interpreting.check, text, candidate, loosely).result()
    return candidate


LARGE = {"many products with few vectors"}  # which takes the interpreter a minute; it is built for chips
HELD = [name for name in REFERENCES if name not in LARGE]


@either(HELD)
def test_kernels_are_as_exact_as_the_reference(
    name: str, schedule: dict[str, str], interpreter: ProcessPoolExecutor
) -> None:
    candidate = hold(interpreter, REFERENCES[name], False, **schedule)
    assert candidate.language == "triton"


@pytest.mark.parametrize("case", ["nested arguments and results", "two calls in other shapes and ways"])
def test_submodules_that_are_left_to_torch(case: str, interpreter: ProcessPoolExecutor) -> None:
    forward, init, left = LEFT[case]
    candidate = hold(interpreter, built(forward, init), False)
    assert candidate.language == "triton"
    assert f"{left} is left to torch: " in candidate.source


@pytest.mark.parametrize("name", IN_OTHER_ORDERS)
def test_what_lies_in_another_order(name: str, interpreter: ProcessPoolExecutor) -> None:
    hold(interpreter, IN_OTHER_ORDERS[name], False)


@pytest.mark.parametrize("name", REPEATED)
def test_kernels_are_told_where_values_begin(interpreter: ProcessPoolExecutor, name: str) -> None:
    hold(interpreter, REPEATED[name], False)


@pytest.mark.parametrize("name", STEPS_TEXTS)
def test_work_of_many_steps(interpreter: ProcessPoolExecutor, name: str) -> None:
    hold(interpreter, STEPS_TEXTS[name], False)


@pytest.mark.parametrize("name", IMAGES)
def test_images_whose_channels_lie_last(name: str, interpreter: ProcessPoolExecutor) -> None:
    hold(interpreter, IMAGES[name], False, layout="channels_last")


@either(LOOKUPS)
def test_lookups(name: str, schedule: dict[str, str], interpreter: ProcessPoolExecutor) -> None:
    assert hold(interpreter, LOOKUPS[name], False, **schedule).language == "triton"


@either(RANKS)
def test_the_largest_few(name: str, schedule: dict[str, str], interpreter: ProcessPoolExecutor) -> None:
    assert hold(interpreter, RANKS[name], False, **schedule).language == "triton"


def test_what_is_looked_up_at_the_places_of_the_largest(interpreter: ProcessPoolExecutor) -> None:
    hold(interpreter, EXPERTS, False)


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_with_cpp(name: str, interpreter: ProcessPoolExecutor) -> None:
    hold(interpreter, FOUND[name][0], True, **IN_PASSES)


@pytest.mark.parametrize("fuse", ["all", "apart"])
@either(PICKS)
def test_picks(name: str, schedule: dict[str, str], fuse: str, interpreter: ProcessPoolExecutor) -> None:
    hold(interpreter, PICKS[name], False, fuse=fuse, **schedule)


@either(EDGES)
def test_nan_infinity_and_large_values(
    name: str, schedule: dict[str, str], interpreter: ProcessPoolExecutor
) -> None:
    wild = "torch.cat([torch.randn(9, 80), WILD * torch.ones(5, 80), torch.randn(5, 80).where(torch.rand(5, 80) > 0.1, WILD)])"
    numbers = "torch.tensor([float('nan'), float('inf'), float('-inf'), 1e-40, 88.5]).view(5, 1)"
    hold(interpreter, source(EDGES[name], wild.replace("WILD", numbers)), False, **schedule)


SCALARS = {
    "numbers beside elements": source(
        "y = F.elu(x.min())\n        return (z - x.min()).abs(), (y < y).to(y.dtype) * y, -y",
        "torch.randn(5), torch.randn(3000)",
        arguments="x, z",
    ),
    "conditions on a number": source(
        "return torch.minimum(torch.expm1(x.mean()), z).sum(), torch.maximum(z, x.mean())",
        "torch.randn(5), torch.randn(3000)",
        arguments="x, z",
    ),
    "numbers without a type beside them": source(
        "return torch.where(x > 0, 3_000_000, 0).sum(-1), torch.where(x > 0, 3, 0) * 1_000_000_000, (x ** 0).sum(-1)",
        "torch.rand(5, 1024) + 0.5",
    ),
    "rows of one number": source(
        "return w.expand(64, 100).sum(1), (w * 2).expand(64, 100).amax(1)", "torch.randn(1)", arguments="w"
    ),
    "zeros of both signs": source(
        "return 1 / torch.where(x > 0, x, 0.0), 1 / torch.where(y > 0, y, -0.0)",
        "torch.randn(40), torch.randn(40)",
        arguments="x, y",
    ),
    "small whole numbers": source(
        "return x + -3, x * 2, x.float() - 300", "torch.randint(0, 9, (40,), dtype=torch.uint8)"
    ),
    "what a forward makes": source(
        "return torch.arange(x.shape[1]) * x + torch.tensor([1.0, 2.0, 3.0]), torch.eye(3) * x[:3]",
        "torch.randn(4, 3)",
    ),
}


@pytest.mark.parametrize("name", SCALARS)
def test_numbers(name: str, interpreter: ProcessPoolExecutor) -> None:
    hold(interpreter, SCALARS[name], False)


@pytest.mark.timeout(0)
@graphs(8)
@given(references(), SCHEDULES)
def test_random_references(interpreter: ProcessPoolExecutor, text: str, schedule: dict[str, str]) -> None:
    assume(works(text) and not squares_denormals(text))
    hold(interpreter, text, True, **schedule)


@pytest.mark.timeout(0)
@graphs(4)
@given(st.sampled_from(["bfloat16", "float16"]).flatmap(references), SCHEDULES)
def test_random_references_in_16_bits(
    interpreter: ProcessPoolExecutor, text: str, schedule: dict[str, str]
) -> None:
    assume(works(text) and not squares_denormals(text))
    hold(interpreter, text, True, **schedule)


@pytest.mark.parametrize("name", {**CALLS, **SMALL, **WILD})
def test_attention(name: str, interpreter: ProcessPoolExecutor) -> None:
    hold(interpreter, {**CALLS, **SMALL, **WILD}[name], False, attention="own")


@pytest.mark.parametrize("knobs", [{"k0__rows": "16"}, {"k0__block": "128", "k0__rows": "128"}])
@pytest.mark.parametrize("name", ["more keys than a block", "a causal mask, fewer queries than keys"])
def test_attention_in_blocks_of_other_sizes(
    name: str, knobs: dict[str, str], interpreter: ProcessPoolExecutor
) -> None:
    hold(interpreter, CALLS[name], False, attention="own", **knobs)


def test_attention_reads_parts_of_a_projection_where_they_lie(interpreter: ProcessPoolExecutor) -> None:
    candidate = hold(interpreter, PROJECTED, False, attention="own")
    assert "contiguous()" not in candidate.source.partition("def forward")[2]


def test_attention_is_left_to_the_call_where_nothing_was_measured() -> None:
    candidate = propose(CALLS["a scale"], "triton")
    assert candidate.schedule["attention"] == "fused" and CALL in candidate.source


# The functions. The interpreter's exp, log and erf are numpy's: what is tested is what is built of them.

Exact = Callable[[np.ndarray], np.ndarray]
FUNCTIONS: dict[str, tuple[float, tuple[float, ...], Exact, float]] = {
    "expm1": (90.0, (), np.expm1, 3.0),
    "log1p": (4.0, (), np.log1p, 3.0),
    "tanh": (10.0, (), np.tanh, 5.0),
    "sigmoid": (80.0, (), lambda x: 1 / (1 + np.exp(-x)), 3.0),
    "softplus": (30.0, (1.0, 20.0), lambda x: np.where(x > 20, x, np.log1p(np.exp(x))), 5.0),
    "round_to_even": (9.0, (), np.round, 0.0),
    "trunc": (9.0, (), np.trunc, 0.0),
    "power": (9.0, (-3.0,), lambda x: x**-3.0, 0.51),
}
SPECIALS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3.4e38, -3.4e38, 1.0, -1.0, 88.8, -104.0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_to_their_error(name: str, interpreter: ProcessPoolExecutor) -> None:
    from tests.helpers.builtin import interpreting

    size, arguments, exact, most = FUNCTIONS[name]
    chance = np.random.default_rng(0)
    magnitudes = np.exp(chance.uniform(-90, 0, 4000)) * size * chance.choice([-1, 1], 4000)
    x = np.concatenate([chance.uniform(-size, size, 8000), magnitudes]).astype(np.float32)
    found = interpreter.submit(interpreting.applied, name, x, *arguments).result()
    with np.errstate(all="ignore"):
        right = exact(x.astype(np.float64))
        rounded = right.astype(np.float32)
    finite = np.isfinite(rounded) & (np.abs(rounded) > 1.2e-38)
    error = np.abs(found[finite] - right[finite]) / np.spacing(np.abs(rounded[finite]))
    assert error.max() <= most, f"{error.max():.2f} ulp at {x[finite][error.argmax()]!r}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_special_values(name: str, interpreter: ProcessPoolExecutor) -> None:
    from tests.helpers.builtin import interpreting

    _, arguments, exact, _ = FUNCTIONS[name]
    x = np.array(SPECIALS, dtype=np.float32)
    found = interpreter.submit(interpreting.applied, name, x, *arguments).result()
    with np.errstate(all="ignore"):
        right = exact(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-38)


@pytest.mark.parametrize("exponent", [2.5, 3.0, -1.0, 0.0, -2.5, 2.0])
def test_powers_of_special_values(exponent: float, interpreter: ProcessPoolExecutor) -> None:
    from tests.helpers.builtin import interpreting

    x = np.array([*SPECIALS, 2.0, -2.0, -1.0], dtype=np.float32)
    found = interpreter.submit(interpreting.applied, "power", x, exponent).result()
    with np.errstate(all="ignore"):
        right = np.power(x.astype(np.float64), exponent).astype(np.float32)
    np.testing.assert_allclose(found, right, rtol=1e-6)


def test_numbers_keep_their_digits() -> None:
    assert literal(0.1, "float32") == "0.1"
    assert literal(0.1, "float64") == "tl.full([], 0.1, tl.float64)"
    assert literal(-2.0, "bfloat16") == "(-2.0)"
    assert literal(math.inf, "float32") == 'float("inf")'
    assert literal(2.7, "int64") == "2"
    assert literal(1, "bool") == "True"


def test_offsets_that_32_bits_do_not_hold() -> None:
    large = source("return x * 2, x.argmax(-1)", "torch.randn(1, 1).expand(50_000, 50_000)")
    text = propose(large, "triton").source
    assert "tl.full([], 2, tl.int64)" in text and "[None, :].to(tl.int64)" in text
    assert "j.to(tl.int32)" in text  # the place is of this type
    pairs = source(
        "return (x[:, None] - y[None]).abs().sum()",
        "torch.randn(65536), torch.randn(65536)",
        arguments="x, y",
    )
    assert "tl.full([], 1024, tl.int64)" in propose(pairs, "triton").source
    small = propose(source("return x * 2", "torch.randn(500, 500)"), "triton").source
    assert "int64" not in small


# The file.


@pytest.mark.parametrize("name", ["layer norm, gelu, residual", "cross entropy", "losses over everything"])
def test_the_file_is_lint_clean(name: str, tmp_path: Path) -> None:
    text = propose(REFERENCES[name], "triton").source
    assert "All checks passed!" in ruff(text, tmp_path)
    defined = set(re.findall(r"^def (\w+)", text, re.MULTILINE)) - {"checked"}
    for function in defined:
        assert len(re.findall(rf"\b{function}\b", text)) > 1, f"{function} is never called"


SOFTMAX = source("return torch.softmax(torch.tanh(x) * 3, dim=-1)", "torch.randn(40, 3000)")


@pytest.mark.parametrize(
    ("knob", "value"),
    [("k0.rows", "4"), ("k0.warps", "4"), ("k0.keep", "off"), ("fuse", "apart")],
)
def test_a_move_changes_the_source_and_not_the_result(
    knob: str, value: str, interpreter: ProcessPoolExecutor
) -> None:
    before = propose(SOFTMAX, "triton")
    assert before.schedule[knob] != value
    after = hold(interpreter, SOFTMAX, False, **{knob.replace(".", "__"): value})
    assert after.schedule[knob] == value
    assert after.source.split("import torch", 1)[1] != before.source.split("import torch", 1)[1]


def test_a_loop_over_rows_that_no_program_holds_is_left_to_torch() -> None:
    loop = source(
        "h = torch.zeros_like(x[0])\n        for t in range(8):\n"
        "            h = torch.tanh(h * h.mean(-1, keepdim=True) + x[t])\n        return h",
        "torch.randn(8, 2, 100_000)",
    )
    candidate = propose(loop, "triton")
    assert candidate.language == "torch" and "100000 elements" in candidate.source


# Without a GPU: kernels are built for chips by name.


BUILT = {**REFERENCES, **TURNED, **PICKS, **LOOKUPS, **RANKS, **REPEATED}
LARGE = {
    f"{size} elements of {dtype}": call(", is_causal=True", vectors(1, 2, 300, size, count=3, dtype=dtype))
    for size in (128, 512)
    for dtype in ("float32", "bfloat16", "float16")
}


@pytest.mark.slow
@either(BUILT, first=1)
def test_kernels_are_built_for_chips(
    name: str, schedule: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(BUILT[name], (schedule,), tmp_path, monkeypatch)


KINDS = ("a condition", "a mask for each key", "one query", "groups of heads", "an odd size", "a matrix")
ATTENTION = {name: CALLS[name] for name in KINDS} | SMALL | LARGE


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_built_for_chips(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(ATTENTION[name], ({"attention": "own"},), tmp_path, monkeypatch)


def build(
    text: str, schedules: Sequence[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raises where a kernel cannot be built, or asks for more than a multiprocessor has."""

    def run() -> None:
        for schedule in schedules:
            candidate = propose(text, "triton", **schedule)
            _, model, inputs = models(text, candidate, tmp_path)
            with torch.no_grad(), pytest.MonkeyPatch.context() as patched:
                patched.setattr(torch, "empty", torch.zeros)  # what no kernel writes may be indices
                model(*inputs)

    build_launches(run, tmp_path, monkeypatch)
