"""A lower precision than the declared one shows, where rounding errors average out too; honest fp32 does not."""

import math
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelwright.kernelbench.evaluator.correctness.families import infer_domain, rewrite
from kernelwright.kernelbench.evaluator.correctness.oracle import Oracle
from kernelwright.kernelbench.evaluator.correctness.plain_sums import PlainSums
from kernelwright.kernelbench.evaluator.reference.draws import Draws
from kernelwright.kernelbench.evaluator.reference.loading import DTYPES
from kernelwright.kernelbench.evaluator.reference.rounded import follows, rounded

PRODUCT = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)

def get_inputs():
    return [torch.rand({rows}, {terms}), torch.rand({terms}, {rows})]

def get_init_inputs():
    return []
"""
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture
def oracle_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Oracle]:
    monkeypatch.chdir(tmp_path)

    def make(source: str, precision: str = "fp32") -> Oracle:
        with torch.no_grad():
            oracle = Oracle(source, precision, 1, vary_weights=True)
            oracle.slots = [[tensor.clone() for tensor in oracle._tensors(2)]]
        return oracle

    return make


def judged(oracle: Oracle, candidate: Callable[..., torch.Tensor], family: str, draws: int = 1) -> list[bool]:
    """Whether a candidate's outputs are taken for right, on fresh inputs of a family."""
    found = []
    with torch.no_grad():
        for _ in range(draws):
            oracle.fill([0], [secrets.randbits(60)], family)
            oracle.expect(0, None, rate=False)
            error = oracle.judged([candidate(*oracle.slots[0])])["error"]
            found.append(error is not None and error <= 1.0)
    return found


def bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def parts(x: torch.Tensor, count: int, cut: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for _ in range(count):
        found.append(cut(x - sum(found)))
    return found


def products_of_parts(count: int, cut: Callable[[torch.Tensor], torch.Tensor]) -> Product:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        left, right = parts(a, count, cut), parts(b, count, cut)
        terms = [left[i] @ right[j] for i in range(count) for j in range(count - i)]
        return sum(reversed(terms), torch.zeros(()))

    return product


def plain_loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total = torch.addcmul(total, a[:, k, None], b[k])
    return total


LOW: dict[str, Product] = {
    "fp16": lambda a, b: a.half().float() @ b.half().float(),
    "tf32": lambda a, b: rounded(a, 10) @ rounded(b, 10),
    "bf16": lambda a, b: bf16(a) @ bf16(b),
    "a_third_of_the_columns": lambda a, b: torch.cat(
        [rounded(a, 10) @ rounded(b[:, :22], 10), a @ b[:, 22:]], dim=1
    ),
    "half_of_the_terms": lambda a, b: rounded(a[:, ::2], 10) @ rounded(b[::2], 10) + a[:, 1::2] @ b[1::2],
    "one_operand": lambda a, b: rounded(a, 10) @ b,
    "with_noise_on_top": lambda a, b: (
        (rounded(a, 10) @ rounded(b, 10)) * (1 + 5e-6 * torch.randn(len(a), len(a)))
    ),
}
HONEST: dict[str, Product] = {
    "torch": torch.matmul,
    "exact": lambda a, b: (a.double() @ b.double()).float(),
    "split": lambda a, b: sum(x @ y for x, y in zip(a.chunk(16, 1), b.chunk(16, 0), strict=True)),
    "plain_loop": plain_loop,
    "bf16x6": products_of_parts(3, bf16),
    "3xtf32": products_of_parts(2, lambda x: rounded(x, 10)),
}


@pytest.mark.parametrize("terms", [1024, 4096, 16384])
@pytest.mark.parametrize("name", ["fp16", "tf32", "bf16"])
def test_low_precision_shows_on_positive_inputs(
    name: str, terms: int, oracle_of: Callable[..., Oracle]
) -> None:
    oracle = oracle_of(PRODUCT.format(rows=64, terms=terms))
    assert not any(judged(oracle, LOW[name], "task", 2))
    assert not any(judged(oracle, LOW[name], "dominated", 2))


@pytest.mark.parametrize(
    "name", ["a_third_of_the_columns", "half_of_the_terms", "one_operand", "with_noise_on_top"]
)
def test_low_precision_shows_however_it_is_dressed(name: str, oracle_of: Callable[..., Oracle]) -> None:
    assert not any(judged(oracle_of(PRODUCT.format(rows=64, terms=4096)), LOW[name], "task", 2))


def test_rounding_with_another_pattern_shows_where_few_products_dominate(
    oracle_of: Callable[..., Oracle],
) -> None:
    oracle = oracle_of(PRODUCT.format(rows=64, terms=4096))
    scaled: Product = lambda a, b: rounded(a * 1.3, 10) @ rounded(b / 1.3, 10)  # noqa: E731
    assert not any(judged(oracle, scaled, "dominated", 4))


@pytest.mark.parametrize("family", ["task", "dominated", "zero_centred", "heavy_tailed"])
@pytest.mark.parametrize("name", HONEST)
def test_honest_products_are_right(name: str, family: str, oracle_of: Callable[..., Oracle]) -> None:
    assert all(judged(oracle_of(PRODUCT.format(rows=64, terms=1024)), HONEST[name], family, 3))


def test_whole_numbers_have_no_precision_to_lose(oracle_of: Callable[..., Oracle]) -> None:
    """Where rounding the operands changes nothing, nothing can be told by it."""
    whole = re.sub(r"(torch.rand\(.*?\))", r"(4 * \1).ceil()", PRODUCT.format(rows=64, terms=256))
    assert all(judged(oracle_of(whole), LOW["bf16"], "task"))


@pytest.mark.parametrize("precision", [precision for precision in ("fp32", "task") if precision in DTYPES])
def test_float32_is_held_to_where_it_is_asked_for_or_the_task_s_own_type(
    precision: str, oracle_of: Callable[..., Oracle]
) -> None:
    oracle = oracle_of(PRODUCT.format(rows=64, terms=4096), precision)
    assert judged(oracle, HONEST["split"], "task") == [True]
    assert judged(oracle, LOW["tf32"], "task") == [False]


def test_the_tf32_precision_is_allowed_what_it_is(oracle_of: Callable[..., Oracle]) -> None:
    oracle = oracle_of(PRODUCT.format(rows=64, terms=4096), "tf32")
    assert judged(oracle, LOW["tf32"], "task") == [True]


def test_errors_that_have_nothing_to_do_with_a_shift_do_not_follow_it() -> None:
    torch.manual_seed(0)
    shift, own = torch.randn(128, 128), 0.01 * torch.randn(128, 128)
    assert follows([(shift + own, shift, own)])
    assert follows([(0.5 * shift + torch.randn(128, 128), shift, own)])
    assert not follows([(0.02 * shift + own, shift, own)])
    assert not follows([(torch.randn(128, 128), shift, own)])
    assert not follows([(-shift, shift, own)])
    assert not follows([(shift, shift, shift)])  # of which the reference has as much
    assert not follows([(torch.randn(4), torch.randn(4), torch.zeros(4))])


@pytest.mark.parametrize("verified", ["torch", "plain_loop"])
def test_timed_outputs_are_as_near_as_those_that_were_verified(
    verified: str, oracle_of: Callable[..., Oracle]
) -> None:
    oracle = oracle_of(PRODUCT.format(rows=64, terms=4096))
    oracle.begin()
    assert all(judged(oracle, HONEST[verified], "task", 2))
    a, b = oracle.slots[0]
    near = oracle._verified[0]
    assert oracle.leeway[0].covers(HONEST[verified](a, b), a @ b, near)
    assert oracle.leeway[0].covers(HONEST["split"](a, b), a @ b, near)
    assert not oracle.leeway[0].covers(LOW["bf16"](a, b), a @ b, near)
    if verified == "torch":
        assert not oracle.leeway[0].covers(LOW["tf32"](a, b), a @ b, near)


def drawn(family: str, draws: int = 12, **options: float) -> list[torch.Tensor]:
    made = []
    for seed in range(draws):
        tensor = torch.rand(128, 512)
        rewrite([tensor], ["real"], family, Draws(seed), distinct=False, **options)
        made.append(tensor)
    return made


@pytest.mark.parametrize("family", ["zero_centred", "heavy_tailed", "edge"])
def test_signs_that_a_task_does_not_draw_come_in_some_rows_only(family: str) -> None:
    counts = [int((tensor < 0).any(1).sum()) for tensor in drawn(family)]
    assert all(count > 0 for count in counts)
    assert any(count < 64 for count in counts) and any(count > 64 for count in counts)


def test_dominated_inputs_keep_signs_range_and_mean() -> None:
    for tensor in drawn("dominated", fan_in=1024.0):
        assert float(tensor.min()) >= 0 and float(tensor.max()) < 1
        assert abs(float(tensor.mean()) - 0.5) < 0.15
        large = (tensor > 1e-5).sum(1)
        assert int(large.min()) < 40  # in one row at least


@pytest.mark.parametrize("domain", ["symmetric", "probability", "lower_triangular"])
def test_dominated_inputs_stay_in_their_domain(domain: str) -> None:
    made = {
        "symmetric": lambda x: x + x.T,
        "probability": lambda x: x.softmax(1),
        "lower_triangular": torch.tril,
    }[domain](torch.rand(64, 64))
    before = made.clone()
    rewrite([made], [domain], "dominated", Draws(1), distinct=False, fan_in=64.0)
    assert infer_domain(made) == domain and not torch.equal(made, before)


@pytest.mark.parametrize("dims", [(1,), (0, 2), None])
def test_plain_sums_are_those_of_a_loop(dims: Sequence[int] | None) -> None:
    x = torch.rand(3, 5000, 2)
    with PlainSums() as loops:
        total = x.sum(dims) if dims else x.sum()
    exact = x.double().sum(dims) if dims else x.double().sum()
    long = dims != (0, 2)
    assert loops.taken == long
    error = float(((total - exact).abs() / exact).max())
    assert total.shape == exact.shape and error < 1e-4
    assert not long or error > float(((x.sum(dims) if dims else x.sum()) - exact).abs().max() / exact.max())


NORM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return NORM
def get_inputs():
    return [4 + torch.randn(SHAPE)]
def get_init_inputs():
    return []
"""
NORMS = {
    "layer_norm": ("torch.nn.functional.layer_norm(x, (768,))", "32, 768", (1,)),
    "group_norm": ("torch.nn.functional.group_norm(x.view(8, 16, 12, 12), 4)", "8, 2304", (2, 3)),
    "batch_norm": (
        "torch.nn.functional.batch_norm(x.view(4, 16, 144), None, None, training=True)",
        "4, 2304",
        (0, 2),
    ),
    "centred": ("x - x.mean(1, keepdim=True)", "32, 768", (1,)),
    "variance": ("x.var(1)", "32, 768", (1,)),
}


def loop(terms: torch.Tensor, dim: int) -> torch.Tensor:
    """Running sums in float32; torch's own are in double on a CPU."""
    return torch.from_numpy(np.cumsum(terms.numpy(), dim, dtype=np.float32))


def by_loops(name: str, x: torch.Tensor, flipped: bool) -> torch.Tensor:
    """A norm in float32, its sums taken from one end to the other."""

    def total(values: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        kept = [dim for dim in range(values.dim()) if dim not in dims]
        terms = values.permute(*dims, *kept).flatten(0, len(dims) - 1)
        terms = terms.flip(0) if flipped else terms
        shape = [1 if dim in dims else size for dim, size in enumerate(values.shape)]
        return loop(terms, 0)[-1].reshape(shape)

    dims = NORMS[name][2]
    x = {"group_norm": lambda: x.view(8, 4, 4, 144), "batch_norm": lambda: x.view(4, 16, 144)}.get(
        name, lambda: x
    )()
    count = math.prod(x.shape[dim] for dim in dims)
    off = x - total(x, dims) / count
    if name == "centred":
        return off
    squares = total(off.square(), dims)
    if name == "variance":
        return squares.flatten() / (count - 1)
    found = off * (squares / count + 1e-5).rsqrt()
    return found.view(8, 16, 12, 12) if name == "group_norm" else found


@pytest.mark.parametrize("family", ["task", "dominated", "needle", "small"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_by_plain_loops_are_right(name: str, family: str, oracle_of: Callable[..., Oracle]) -> None:
    """Around 4 the mean's error is that of every element of its row, and twenty of their ulps."""
    forward, shape, _ = NORMS[name]
    oracle = oracle_of(NORM.replace("NORM", forward).replace("SHAPE", shape))
    for flipped in (False, True):
        assert all(judged(oracle, lambda x, f=flipped: by_loops(name, x, f), family, 5))
    wrong = lambda x: by_loops(name, x, False) * (1 + 1e-4)  # noqa: E731
    assert name == "variance" or family != "task" or judged(oracle, wrong, family) == [False]


RUNNING = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x.cumsum(1).softmax(1)
def get_inputs():
    return [torch.randn(64, 1200)]
def get_init_inputs():
    return []
"""


def doubling(x: torch.Tensor) -> torch.Tensor:
    """Running sums as a block of a GPU takes them: of 2, 4, 8 … terms."""
    found, apart = x.clone(), 1
    while apart < x.shape[1]:
        found[:, apart:] = found[:, apart:] + found[:, :-apart].clone()
        apart *= 2
    return found


AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda y: y,
    ".softmax(1)": lambda y: y.softmax(1),
    "[:, 8:] - x.cumsum(1)[:, :-8]": lambda y: y[:, 8:] - y[:, :-8],
}


@pytest.mark.parametrize("family", ["task", "dominated", "heavy_tailed"])
@pytest.mark.parametrize("after", AFTER)
def test_running_sums_in_floats_are_right(after: str, family: str, oracle_of: Callable[..., Oracle]) -> None:
    """torch adds them in double on a CPU: 1.7e-6 off where its own are 4e-7.

    A loop before a softmax is refused in one draw of ten, of heavy-tailed inputs.
    """
    oracle = oracle_of(RUNNING.replace(".softmax(1)", after))
    for running in (doubling,) if "softmax" in after else (lambda x: loop(x, 1), doubling):
        assert all(judged(oracle, lambda x, f=running: AFTER[after](f(x)), family, 5))
    wrong = lambda x: AFTER[after](x.cumsum(1) * (1 + 1e-3))  # noqa: E731
    assert judged(oracle, wrong, family) == [False]


def test_sums_of_one_number_are_no_loops() -> None:
    with PlainSums() as loops:
        assert float(torch.tensor(2.0).sum(-1)) == 2 and float(torch.tensor(2.0).softmax(0)) == 1
    assert not loops.taken


SOFTMAX = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x.SOFTMAX(dim=1)
def get_inputs():
    return [torch.rand(16, 4096)]
def get_init_inputs():
    return []
"""


def softmax_by_loops(name: str, x: torch.Tensor) -> torch.Tensor:
    """Softmax and the like in float32, with terms added one after the other."""
    terms = (x - x.amax(1, keepdim=True)).exp()
    total = torch.zeros(len(x))
    for column in terms.T:
        total += column
    match name:
        case "softmax":
            return terms / total[:, None]
        case "log_softmax":
            return x - x.amax(1, keepdim=True) - total.log()[:, None]
    return x.amax(1) + total.log()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_a_loop_over_equal_terms_that_round_the_same_way_is_right(
    name: str, oracle_of: Callable[..., Oracle]
) -> None:
    """Two large elements, and 4094 whose terms are each 1.5 ulps of the sum: a third of them is lost."""
    oracle = oracle_of(SOFTMAX.replace("SOFTMAX", name))
    x = oracle.slots[0][0].zero_()
    x[:, 7] = x[:, 99] = 14.856
    oracle._families[0] = "perturbed"
    oracle.expect(0, None, rate=False)
    looped = softmax_by_loops(name, x)
    assert oracle.judged([looped])["error"] <= 1.0 < oracle.judged([looped * (1 + 2e-3)])["error"]


def test_what_is_not_finite_is_not_rounded() -> None:
    patterns = torch.tensor([-1, 0x7F800000, -0x800000, 0x7F800001], dtype=torch.int32)
    found = rounded(patterns.view(torch.float32), 7)
    assert found.isnan().tolist() == [True, False, False, True]
    assert found[1:3].tolist() == [float("inf"), -float("inf")]


DISCRETE: dict[str, tuple[str, Callable[..., list[torch.Tensor]]]] = {
    "int8": (
        "s = a.abs().amax(-1, keepdim=True) / 127\n        return (a / s).round().to(torch.int8), s",
        lambda a, b: [
            (a * (127 / (m := a.abs().amax(-1, keepdim=True)))).round().to(torch.int8),
            m / 127,
        ],
    ),
    "rounded_and_scaled": (
        "s = a.abs().amax(-1, keepdim=True) / 127\n        return (a / s).round() * s",
        lambda a, b: [(a * (127 / (m := a.abs().amax(-1, keepdim=True)))).round() * (m / 127)],
    ),
    "floor": ("return torch.floor(16 * (a @ b))", lambda a, b: [torch.floor(16 * HONEST["split"](a, b))]),
    "positive": ("return a @ b > 0.25 * a.shape[1]", lambda a, b: [HONEST["split"](a, b) > 0.25 * a.shape[1]]),
    "argmax": ("return (a @ b).argmax(1)", lambda a, b: [HONEST["split"](a, b).argmax(1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", DISCRETE)
def test_what_rounding_puts_on_the_other_side_of_a_jump_is_right(
    name: str, oracle_of: Callable[..., Oracle]
) -> None:
    forward, candidate = DISCRETE[name]
    oracle = oracle_of(
        PRODUCT.format(rows=256, terms=512).replace("return torch.matmul(a, b)", forward), "task"
    )
    wrong: Callable[..., list[torch.Tensor]] = lambda a, b: candidate(1.001 * bf16(a), bf16(b))  # noqa: E731
    drawn_again = 0
    for _ in range(4):
        oracle.fill([0], [secrets.randbits(60)], "task")
        oracle.expect(0, None, rate=False)
        found = oracle.judged(candidate(*oracle.slots[0]))
        assert found["error"] <= 1.0 or found["few"]  # then another draw of the family decides
        drawn_again += found["error"] > 1.0
        assert (oracle.judged(wrong(*oracle.slots[0]))["error"] or math.inf) > 1.0
    assert drawn_again <= 2  # one in twenty, as a rule


@pytest.mark.parametrize("forward", ["a.round().argmax(1)", "(a @ b).round().argmax(1)"])
def test_of_equal_values_argmax_names_the_first(forward: str, oracle_of: Callable[..., Oracle]) -> None:
    source = PRODUCT.format(rows=64, terms=256).replace("torch.matmul(a, b)", forward)
    oracle = oracle_of(source.replace("torch.rand(", "torch.randn("), "task")
    oracle.fill([0], [secrets.randbits(60)], "task")
    oracle.expect(0, None, rate=False)
    a, b = oracle.slots[0]
    values = (a if "@" not in forward else a @ b).round()
    last = values.shape[1] - 1 - values.flip(1).argmax(1)
    assert oracle.judged([values.argmax(1)])["error"] == 0.0
    assert oracle.judged([last])["error"] is None
