"""Error budgets: honest rounding fits, lower precision does not, special values count by their pattern."""

import math
from collections.abc import Callable

import pytest
import torch

from kernelwright.kernelbench.evaluator.correctness import row_errors
from kernelwright.kernelbench.evaluator.correctness.budget import Expected, expect
from kernelwright.kernelbench.evaluator.correctness.comparison import compare
from kernelwright.kernelbench.evaluator.correctness.families import infer_domain, perturb, rewrite
from kernelwright.kernelbench.evaluator.correctness.row_errors import columns_differ
from kernelwright.kernelbench.evaluator.correctness.tolerance import Tolerance
from kernelwright.kernelbench.evaluator.reference.draws import Draws, FastDraws


def budget_of(function, x: torch.Tensor, fan_in: float | None = None):  # type: ignore[no-untyped-def]
    exact = function(x.double())
    moved = function(x * (1 + 2**-23 * torch.randint(-1, 2, x.shape)))
    return expect(exact, function(x), [moved], fan_in or x.numel() / exact.numel())


def test_sums_in_another_order_fit() -> None:
    x = torch.randn(64, 4096)
    budget = budget_of(lambda t: t.sum(1), x)
    reordered = x.view(64, 16, 256).sum(1).flip(-1).cumsum(1)[:, -1]
    assert compare(budget, reordered).error <= 1.0
    assert compare(budget, x[:, ::2].sum(1) * 2).error > 100


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lower_precision_inside_does_not_fit(dtype: torch.dtype) -> None:
    a, b = torch.randn(64, 256), torch.randn(256, 64)
    budget = budget_of(lambda t: t @ b.to(t.dtype), a)
    assert compare(budget, a @ b).error <= 1.0
    assert compare(budget, (a.to(dtype) @ b.to(dtype)).float()).error > 10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_a_low_precision_are_held_to_what_they_are_summed_in(dtype: torch.dtype) -> None:
    """Results of long sums are not nearly anything, though a plain loop over them in bf16 would be."""
    x = torch.randn(64, 4096).to(dtype)
    moved = (x.float() * (1 + torch.finfo(dtype).eps * torch.randint(-1, 2, x.shape))).to(dtype)
    exact = x.double().square().mean(1)
    budget = expect(exact, x.square().mean(1), [moved.square().mean(1)], 4096)
    assert compare(budget, x.float().square().view(64, 16, 256).mean(1).mean(1).to(dtype)).error <= 1.0
    assert compare(budget, x.square().view(64, 16, 256).mean(1).mean(1)).error <= 1.0  # parts rounded, too
    assert compare(budget, (1.25 * exact).to(dtype)).error > 1.0
    assert compare(budget, torch.zeros(64, dtype=dtype)).error > 3.0


def test_nan_and_infinity_must_be_where_the_reference_has_them() -> None:
    x = torch.tensor([[1.0, math.inf, -math.inf, math.nan, 0.0]])
    budget = budget_of(torch.exp, x)
    right = torch.exp(x)
    assert compare(budget, right).error <= 1.0
    for position in range(5):
        wrong = right.clone()
        wrong[0, position] = 7.0 if not math.isfinite(right[0, position]) else math.nan
        assert compare(budget, wrong).error == math.inf or compare(budget, wrong).error > 1.0


def test_an_overflow_of_the_reference_may_be_matched_or_avoided() -> None:
    x = torch.tensor([[100.0, 1.0]])
    budget = budget_of(lambda t: torch.exp(t) / torch.exp(t), x)
    assert compare(budget, torch.tensor([[math.nan, 1.0]])).error <= 1.0
    assert compare(budget, torch.tensor([[1.0, 1.0]])).error <= 1.0
    assert compare(budget, torch.tensor([[2.0, 1.0]])).error > 1.0


def test_what_is_too_large_for_the_precision_may_be_infinite() -> None:
    """Infinities are right where the reference is NaN, their sum: a kernel may sum in another order."""
    x = torch.tensor([[60.0, 1.0]])
    large = budget_of(lambda t: torch.exp(2 * t) * 3 - torch.exp(t + 60), x)
    assert torch.isnan(large.reference).tolist() == [[True, False]] and large.exact[0, 0] > 1e52
    right = torch.exp(2 * x) * 3 - torch.exp(x + 60)
    for value, fits in ((math.nan, True), (math.inf, True), (-math.inf, False), (1.0, False)):
        right[0, 0] = value
        assert (compare(large, right).error <= 1.0) == fits, value


def test_the_detail_says_where_and_how_much() -> None:
    x = torch.randn(4, 8)
    budget = budget_of(lambda t: t * 2, x)
    wrong = x * 2
    wrong[2, 3] += 1
    assert "1 of 32 elements differ, first at [2, 3]" in compare(budget, wrong).detail


DOMAINS = {
    "lower_triangular": lambda: torch.randn(8, 8).tril(),
    "upper_triangular": lambda: torch.randn(8, 8).triu(),
    "symmetric": lambda: (lambda a: a + a.T)(torch.randn(8, 8)),
    "probability": lambda: torch.randn(8, 5).softmax(1),
    "sorted": lambda: torch.rand(3, 40).sort(-1).values,
    "sign": lambda: torch.randn(8, 5).sign(),
    "mask": lambda: torch.rand(8, 5) > 0.5,
    "index": lambda: torch.randint(5, (8,)),
    "real": lambda: torch.rand(8, 5),
}


@pytest.mark.parametrize("family", ["zero_centred", "heavy_tailed", "needle", "edge"])
@pytest.mark.parametrize("domain", DOMAINS)
def test_families_keep_inputs_within_their_domain(domain: str, family: str) -> None:
    torch.manual_seed(3)
    tensor = DOMAINS[domain]()
    assert infer_domain(tensor) == domain
    made = tensor.clone()
    rewrite([made], [domain], family, Draws(11), distinct=False)
    assert made.shape == tensor.shape and made.dtype == tensor.dtype
    if domain == "real":
        assert bool((made <= 0).any())
    else:
        assert infer_domain(made) == domain or not made.any() or family == "needle"


@pytest.mark.parametrize("family", ["zero_centred", "heavy_tailed", "needle", "edge"])
def test_complex_inputs_are_rewritten_in_both_parts(family: str) -> None:
    made = torch.rand(64, 32).to(torch.complex64)
    assert infer_domain(made) == "real"
    rewrite([made], ["real"], family, Draws(11), distinct=False)
    assert bool((made.imag.abs() > 0.01).any()) and bool((made.real < 0.5).any())
    assert infer_domain(made @ made.mH) == infer_domain(made[:32].tril()) == "fixed"


def test_columns_of_one_quantity_with_heavy_tails_have_their_rows_budgets() -> None:
    """In each column another element may be the largest of all: that makes no quantity of its own."""
    torch.manual_seed(0)
    exact = torch.exp(3 * torch.randn(300, 1024, dtype=torch.float64))
    assert not columns_differ(exact.float())


def test_few_elements_are_perturbed_and_some_at_least() -> None:
    counts = set()
    for seed in range(20):
        made = [torch.rand(64, 64), torch.zeros(64, dtype=torch.complex64)]
        before = [tensor.clone() for tensor in made]
        perturb(made, ["real", "real"], Draws(seed))
        changed = [int((a != b).sum()) for a, b in zip(made, before, strict=True)]
        assert 6 <= changed[0] <= 2 * 64**0.5 and 1 <= changed[1] <= 8  # some of them twice
        counts.add(changed[0])
    assert len(counts) > 3


@pytest.mark.parametrize("family", ["zero_centred", "heavy_tailed", "needle", "edge"])
def test_a_single_number_is_an_input_like_others(family: str) -> None:
    """As the gradient of a loss is."""
    made = torch.tensor(0.3)
    rewrite([made], ["real"], family, Draws(11), distinct=True)
    assert made.shape == () and made != 0.3


@pytest.mark.parametrize("columns", [1, 7, 4096])
def test_the_fused_passes_say_what_torch_would_say(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(48, columns)
    fused = budget_of(torch.exp, x)
    wrong = torch.exp(x)
    wrong[5, int(x[5].argmax())] *= 1 + 1e-4
    errors = [compare(fused, y).error for y in (torch.exp(x), wrong)]
    monkeypatch.setattr(row_errors, "library", lambda name: None)
    assert [compare(fused, y).error for y in (torch.exp(x), wrong)] == pytest.approx(errors)
    assert errors[0] < 1.0 < errors[1]


@pytest.mark.parametrize("columns", [1, 7, 4096])
def test_the_fused_rows_are_those_of_torch(columns: int) -> None:
    exact = torch.randn(300, columns, dtype=torch.float64) * torch.logspace(-20, 20, 300).view(-1, 1)
    exact[5] = 0
    reference = (exact * (1 + 1e-6 * torch.randn(300, columns))).float()
    moved = [(exact * (1 + 1e-5 * torch.randn(300, columns))).float() for _ in range(2)]
    fused = row_errors.fused_rows(exact, reference, moved, row_errors.FULL)
    plain = row_errors.rows_of(exact, reference, moved, row_errors.FULL)
    assert fused is not None
    for a, b in ((fused.spread, plain.spread), (fused.size, plain.size), (fused.ratio, plain.ratio)):
        assert torch.allclose(a, b, rtol=1e-9)
    assert torch.allclose(fused.pooled_ratio(), plain.pooled_ratio())
    assert 1e-6 < float(fused.pooled_ratio()[100]) < 2e-5


def test_a_plain_loop_over_a_row_fits() -> None:
    x = torch.rand(512, 4096)
    numerator = torch.exp(x - x.amax(1, keepdim=True))
    in_one_variable = numerator.cumsum(1)[:, -1:]
    budget = budget_of(lambda t: torch.softmax(t, 1), x, fan_in=4096)
    assert compare(budget, numerator / in_one_variable).error <= 1.0
    assert compare(budget, numerator / in_one_variable.half().float()).error > 5


def test_rows_that_one_element_dominates_are_judged_together() -> None:
    """Where the reference was lucky in such a row, another honest result is not wrong."""
    torch.manual_seed(0)
    x = 6 * torch.randn(2048, 16)

    def terms(t: torch.Tensor) -> list[torch.Tensor]:
        other = t.roll(1, 0)
        pairs = (t * t, other * other, -2 * t * other)
        return [pair.sum(1, keepdim=True) for pair in pairs]

    def kernel(t: torch.Tensor) -> torch.Tensor:
        one, two, cross = terms(t)
        return torch.exp(-0.05 * (one + two + cross))

    one, two, cross = terms(x)
    in_another_order = torch.exp(-0.05 * (one + cross) - 0.05 * two)
    budget = budget_of(kernel, x, fan_in=32)
    assert compare(budget, kernel(x)).error <= 1.0
    assert compare(budget, in_another_order).error <= 1.0
    assert compare(budget, in_another_order * (1 + 1e-3)).error > 1.0


def test_rows_that_a_relu_has_left_few_elements_of_are_judged_by_their_neighbours() -> None:
    """Else honest sums in another order are rejected where the reference was lucky (a U-Net, channels last)."""
    generator = torch.Generator().manual_seed(3)
    shape = (2, 24, 64, 64)
    before = torch.randn(shape, dtype=torch.float64, generator=generator) - 2.2  # one in seventy is left

    def with_errors_of(size: float) -> torch.Tensor:
        moved = before + size * torch.randn(shape, dtype=torch.float64, generator=generator)
        return moved.clamp(min=0).float()

    expected = expect(before.clamp(min=0), with_errors_of(3e-7), [with_errors_of(3e-7).double()], 9.0)
    assert compare(expected, with_errors_of(6e-7)).error <= 1.0
    assert compare(expected, with_errors_of(6e-6)).error > 1.0


@pytest.mark.parametrize("columns", [1, 3])
def test_short_rows_are_judged_by_their_neighbours(columns: int) -> None:
    exact = torch.rand(1000, columns, dtype=torch.float64) + 1
    reference = (exact * (1 + 1e-7 * torch.randn_like(exact))).float()
    expected = expect(exact, reference, [reference.double()], 9.0)
    assert float(expected.spread.min()) == float(expected.spread.median())
    far = torch.tensor([[1e-3], [1e3]], dtype=torch.float64).expand(2, 40) * torch.rand(40).double()
    assert not torch.equal(*expect(far, far.float(), [far], 9.0).spread)  # each has enough of its own


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bits_are_right_or_wrong(kind: torch.dtype) -> None:
    x = torch.randn(64, 256)
    scaled = x * (torch.finfo(kind).max / x.abs().amax(-1, keepdim=True))
    right = scaled.to(kind)
    budget = expect(right.double(), right, [(scaled * (1 + 2**-23)).to(kind)], 256)
    assert compare(budget, right).error == 0.0
    truncated = (scaled * (1 - 0.4 * torch.finfo(kind).eps)).to(kind)
    for wrong in (torch.zeros_like(x), truncated, -scaled, scaled.bfloat16()):
        assert compare(budget, wrong.to(kind)).error > 1.0
    nothing = torch.tensor([math.nan, 0.0, 1.0]).to(kind)
    budget = expect(nothing.double(), nothing, [nothing], 1.0)
    assert compare(budget, torch.tensor([math.nan, -0.0, 1.0]).to(kind)).error == 0.0
    assert compare(budget, torch.tensor([math.nan, 0.0, math.nan]).to(kind)).error > 1.0


def in_bf16(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> Expected:
    """The budget of what a reference computes in bf16."""
    moved = [t * (1 + 2**-8 + 2**-7 * torch.randint(-1, 1, t.shape)).to(t.dtype) for t in given]
    exact = function(*(t.double() for t in given))
    return expect(exact, function(*given), [function(*moved)], 512.0, coarse=True)


def test_a_bf16_result_has_room_for_a_few_roundings() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(64, 512).bfloat16(), (torch.rand(512, 256) - 0.5).bfloat16()
    budget = in_bf16(lambda a, b: a @ b, x, weight)

    def with_weight_of(levels: int) -> torch.Tensor:
        step = 0.5 / levels
        return (x.float() @ ((weight.float() / step).round() * step)).bfloat16()

    halves = x[:, :256] @ weight[:256], x[:, 256:] @ weight[256:]
    assert compare(budget, (x.float() @ weight.float()).bfloat16()).error <= 1.0
    assert compare(budget, sum(halves, torch.zeros((), dtype=x.dtype))).error <= 1.0
    assert compare(budget, with_weight_of(31)).error > 1.0
    assert compare(budget, with_weight_of(7)).error > 5.0


def test_an_elementwise_bf16_result_has_room_for_roundings_that_the_reference_has_not() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 64, 512).bfloat16()

    def fused(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * torch.sigmoid(a) * b

    def rounded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(a) * b

    for function in (fused, rounded):
        budget = in_bf16(function, x, y)
        assert compare(budget, fused(x, y)).error <= 1.0
        assert compare(budget, rounded(x, y)).error <= 1.0
        assert compare(budget, fused(x.float(), y.float()).bfloat16()).error <= 1.0
        coarse = ((y.view(torch.int16) + 8) & ~15).view(torch.bfloat16)  # three bits of mantissa
        assert compare(budget, rounded(x, coarse)).error > 1.0


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_one_element_that_jumps_does_not_make_its_row_right(kind: torch.dtype) -> None:
    exact = torch.randn(64, 512, dtype=torch.float64).sign()
    jumped = exact.clone()
    jumped[:, 7] *= -1
    for reference, moved in ((exact, jumped), (jumped, exact)):
        budget = expect(exact, reference.to(kind), [moved.to(kind)], 512.0)
        assert compare(budget, exact.to(kind)).error <= 1.0
        assert compare(budget, jumped.to(kind)).error <= 1.0
        wrong = exact.clone()
        wrong[3, 9] = 0.0
        assert compare(budget, wrong.to(kind)).error > 50
        assert compare(budget, torch.zeros_like(exact).to(kind)).error > 50


def test_few_elements_may_be_on_the_other_side_of_a_jump() -> None:
    """Values that the reference gives for moved inputs, in about the number in which its own runs differ."""
    whole = torch.randint(-99, 99, (100, 1000), dtype=torch.int8)
    up = whole + 1
    exactly = expect(whole, whole, [], 1.0)

    def with_changed(count: int, other: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(whole.numel()).view_as(whole) < count, other, whole)

    ambiguous = with_changed(50, up)
    budget = exactly.across([whole], [ambiguous])
    assert compare(exactly, with_changed(1, up)).error == math.inf
    assert compare(budget, whole).error == 0.0
    assert compare(budget, with_changed(1, up)).error == 0.0
    assert compare(budget, with_changed(1, whole - 1)).error == math.inf
    assert compare(budget, with_changed(4, up)).error == 0.0  # 1 + 3 * sqrt(1) of a hundred thousand
    assert compare(budget, with_changed(5, up)).error == math.inf
    jumpy = exactly.across([with_changed(3, up)], [ambiguous])
    assert compare(jumpy, with_changed(9, up)).error == 0.0  # 3 + 3 * sqrt(3)
    assert compare(jumpy, with_changed(10, up)).error == math.inf
    small = expect(whole[:9], whole[:9], [], 1.0).across([whole[:9]], [ambiguous[:9]])
    assert compare(small, with_changed(1, up)[:9]).error == 0.0
    assert compare(small, with_changed(2, up)[:9]).error == math.inf
    real = expect(whole.double(), whole.float(), [whole.float()], 1.0)
    assert real.across([whole.float()], [ambiguous.float()]).few == 1
    for budget, allowed in ((real, 0), (real.across([whole.float()], [ambiguous.float()]), 1)):
        for count in range(3):
            assert (compare(budget, with_changed(count, up).float()).error <= 1.0) == (count <= allowed)


def test_fast_draws_have_the_right_distribution() -> None:
    draws = Draws(42)
    normal, uniform = draws.normal(1 << 20), draws.uniform(1 << 20)
    assert float(normal.mean()) == pytest.approx(0, abs=5e-3)
    assert float(normal.std()) == pytest.approx(1, abs=5e-3)
    assert float((normal.abs() > 2).float().mean()) == pytest.approx(0.0455, abs=2e-3)
    assert float(normal.pow(4).mean()) == pytest.approx(3.0, abs=0.05)
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    assert float(uniform.var()) == pytest.approx(1 / 12, abs=1e-3)
    assert not torch.equal(Draws(43).normal(1 << 20), normal)
    assert torch.equal(Draws(42).normal(1 << 20), normal)
    integers = draws.below(10, 1 << 20)
    assert integers.dtype is torch.int64
    assert torch.allclose(integers.bincount() / (1 << 20), torch.full((10,), 0.1), atol=2e-3)
    halves = torch.stack([normal[: 1 << 19], normal[1 << 19 :]])
    neighbours = torch.stack([normal[1:], normal[:-1]])
    for pair in (halves, neighbours):
        assert float(torch.corrcoef(pair)[0, 1]) == pytest.approx(0, abs=5e-3)
        assert float(torch.corrcoef(pair.square())[0, 1]) == pytest.approx(0, abs=5e-3)


def test_randint_is_served_within_its_limits_whatever_its_size() -> None:
    for shape in ((4,), (300, 400)):
        with FastDraws(7):
            made = [torch.randint(3, shape), torch.randint(-127, 128, shape), torch.randint(9, 10, shape)]
        assert [(int(t.min()) >= low, int(t.max()) < high) for t, low, high in zip(
            made, (0, -127, 9), (3, 128, 10), strict=True)] == [(True, True)] * 3  # fmt: skip
        assert all(t.shape == shape and t.dtype is torch.int64 for t in made)
        with FastDraws(7):
            assert torch.equal(torch.randint(3, shape), made[0])
            assert torch.randint(0, 9, shape, dtype=torch.int8).dtype is torch.int8


def test_where_outputs_are_indices_the_largest_elements_of_a_row_are_distinct() -> None:
    for seed in range(12):
        made = torch.randn(256, 8192, generator=torch.Generator().manual_seed(seed))
        rewrite([made], ["real"], "edge", Draws(seed), distinct=True)
        largest = made.topk(9).values
        assert bool((largest[:, 1:] < largest[:, :-1]).all())


def test_few_elements_may_be_farther_apart_than_those_that_were_verified() -> None:
    """By chance the outputs of one element that were verified are those of eager; two ulp are no other precision."""
    leeway = Tolerance(spread=0.0, relative=8 * torch.finfo(torch.float32).eps)
    ones = torch.ones(1)
    two_ulp = ones + 2 * torch.finfo(torch.float32).eps
    assert leeway.covers(two_ulp, ones, verified=0.0)
    assert not leeway.covers(two_ulp.expand(4096), ones.expand(4096), verified=0.0)
    assert not leeway.covers(1.001 * ones, ones, verified=0.0)


def test_what_is_not_finite_must_be_so_in_timed_outputs() -> None:
    leeway = Tolerance(spread=1e-6, relative=1e-6)
    other = torch.randn(64, 64).masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), -math.inf)
    other[0, 1], other[1, 2] = math.nan, math.inf
    finite = other.nan_to_num(0.5, 0.5, 0.5)
    assert leeway.covers(other.clone(), other) and leeway.unlike(other, other) == 0.0
    for wrong in (finite, -other, other.abs(), other.nan_to_num(math.inf, math.inf, math.nan)):
        assert not leeway.covers(wrong, other)
    assert leeway.unlike(finite, other) == pytest.approx(2016 / 4096)
    assert leeway.covers(finite, other, unlike=0.2)  # as when it was verified: the reference overflows
    few = other.clone()
    few[0, 1] = few[1, 2] = 7.0
    assert leeway.covers(few, other)
    assert not leeway.covers(torch.complex(finite, finite), torch.complex(other, other))
    assert not leeway.covers(torch.where(torch.rand(64, 64) < 0.1, math.inf, finite), finite)


def test_one_of_many_elements_may_jump_while_timed() -> None:
    leeway, zeros = Tolerance(spread=1e-6), torch.zeros(4096)
    one, two = zeros.clone(), zeros.clone()
    one[7], two[7:9] = 1.0, 1.0
    assert leeway.covers(one, zeros, verified=0.0)
    assert not leeway.covers(two, zeros, verified=0.0)
    assert not leeway.covers(one[:64], zeros[:64], verified=0.0)


def test_columns_of_other_sizes_have_budgets_of_their_own() -> None:
    torch.manual_seed(5)
    x = 100 * torch.randn(256, 2048)

    def both(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.square().sum(-1), x.mean(-1)], -1)

    assert columns_differ(both(x))
    expected = expect(both(x.double()), both(x), [both(x * (1 + 1e-7))], 2048.0, by_column=True)
    other = x.view(256, 32, 64).mT.contiguous().view(256, 2048)  # summed in another order
    assert compare(expected, both(other)).error <= 1.0
    without = both(x)
    without[:, 1] *= 1 + 1e-3
    assert compare(expected, without).error > 10.0
    room = expected.with_room_for(both(other))
    assert room.spread.shape == expected.spread.shape and bool((room.spread >= expected.spread).all())


def test_a_column_in_which_the_reference_is_exact_has_room_by_its_size() -> None:
    torch.manual_seed(5)
    exact = torch.stack([1e4 * torch.randn(256), torch.randn(256).float()], -1).double()
    reference = exact.float()
    reference[:, 0] *= 1 + 1e-6
    expected = expect(exact, reference, [reference], 1.0, by_column=True)
    actual = exact.float()
    actual[:, 1] *= 1 + 2e-6
    assert compare(expected, actual).error <= 1.0


def test_complex_results_have_a_distance() -> None:
    leeway = Tolerance(spread=1.0)
    zeros = torch.zeros(8, dtype=torch.complex64)
    assert leeway.distance(zeros + 1j, torch.view_as_real(zeros)) == pytest.approx(0.5**0.5)
    assert leeway.distance((zeros + 1j).conj(), zeros) == pytest.approx(0.5**0.5)
