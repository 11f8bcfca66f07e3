"""A wrong output's pattern is named where the numbers show it, and nothing is said where they do not."""

from collections.abc import Callable

import pytest
import torch

from kernelwright.kernelbench.evaluator.correctness.budget import Expected, expect
from kernelwright.kernelbench.evaluator.correctness.comparison import compare
from kernelwright.kernelbench.evaluator.correctness.mismatch import pattern_of
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import Evaluate, variant

Change = Callable[[torch.Tensor], torch.Tensor]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def budget(exact: torch.Tensor, kind: torch.dtype = torch.float32) -> Expected:
    """The budget of results that the reference has rounded a few times."""
    if not kind.is_floating_point:
        return expect(exact.to(kind), exact.to(kind), [], 1.0)
    eps = torch.finfo(torch.float32).eps
    reference, moved = (exact * (1 + eps * normal(*exact.shape, seed=seed)) for seed in (7, 8))
    return expect(exact, reference.to(kind), [moved.to(kind)], 64.0)


def said(exact: torch.Tensor, found: torch.Tensor, kind: torch.dtype = torch.float32) -> str:
    expected, found = budget(exact, kind), found.to(kind)
    assert not compare(expected, found).error <= 1.0
    return pattern_of(expected, found)


def with_part(exact: torch.Tensor, part: tuple[object, ...], change: Change) -> torch.Tensor:
    """A copy in which a part is changed."""
    found = exact.clone()
    found[part] = change(found[part])  # type: ignore[index]
    return found


def noisy(x: torch.Tensor) -> torch.Tensor:
    """Numbers that have nothing to do with these."""
    return normal(*x.shape, seed=3)


X = normal(96, 100)
PLACES: dict[str, tuple[torch.Tensor, tuple[object, ...], str]] = {
    "the last columns": (X, (slice(None), slice(97, None)), "indices 97 to 99 of dimension 1 (the last 3 of 100)"),
    "the last rows": (X, (slice(90, None),), "indices 90 to 95 of dimension 0 (the last 6 of 96)"),
    "the first row": (X, (0,), "index 0 of dimension 0 (the first of 96)"),
    "the tail of the flattened output": (X, (95, slice(60, None)), "the last 40 elements of the flattened output"),
    "the last element": (X, (95, 99), "the last element of the flattened output"),
    "a block": (X, (slice(32, 64), slice(64, 80)),
                "indices 32 to 63 of dimension 0 (32 of 96) and indices 64 to 79 of dimension 1 (16 of 100)"),
    "every fourth column": (X, (slice(None), slice(1, None, 4)), "indices i of dimension 1 with i % 4 == 1 (every 4th)"),
    "one lane of a vector, in rows of odd length": (normal(4001), (slice(3, None, 4),), "i % 4 == 3 (every 4th)"),
    "half of each tile": (normal(8, 512), (slice(None), torch.arange(512) % 64 >= 32),
                          "indices i of dimension 1 with i % 64 from 32 to 63"),
    "some rows": (X, (torch.tensor([3, 17, 40, 41, 77, 80]),), "6 of the 96 indices of dimension 0 (3, 17, 40, 41, …)"),
    "one head of a batch": (normal(2, 8, 16, 16), (slice(None), 5), "index 5 of dimension 1 (1 of 8)"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_where_the_wrong_elements_are_is_named(case: str) -> None:
    exact, part, named = PLACES[case]
    assert named in said(exact, with_part(exact, part, noisy))


@pytest.mark.parametrize("count", [1, 2, 8, 200, 3000])
def test_random_errors_in_random_places_have_no_name(count: int) -> None:
    for seed in range(5):
        chosen = torch.randperm(9600, generator=torch.Generator().manual_seed(seed))[:count]
        chosen = chosen[chosen != 9599]
        found = X.clone().view(-1)
        found[chosen] += normal(len(chosen), seed=seed)
        assert said(X, found.view_as(X)) == ""
        assert said(X.view(-1), found) == ""


def test_nonsense_everywhere_has_no_name() -> None:
    for shape in ((9600,), (96, 100), (4, 8, 20, 15), (64, 64)):
        for kind in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            assert said(normal(*shape), normal(*shape, seed=3), kind) == ""
    assert said(X, X * (1 + 0.1 * noisy(X))) == ""
    assert said(X, X + 1e-4 * noisy(X).sign() * 10 ** (4 * noisy(X))) == ""


VALUES: dict[str, tuple[Change, str]] = {
    "a constant added": (lambda x: x + 1.0, "Every wrong element is too large by 1."),
    "a small constant left out": (lambda x: x - 1e-3, "Every wrong element is too small by 0.001"),
    "a scale that is missing": (lambda x: 8 * x, "Every wrong element is 8 times what is expected."),
    "a division too many": (lambda x: x / 96, "Every wrong element is 0.0104167 (1/96) times what is expected."),
    "n - 1 for n": (lambda x: x * (1 + 1 / 1023), "Every wrong element is 1.00098 times what is expected."),
    "the wrong sign": (lambda x: -x, "Every wrong element has the wrong sign and the right size."),
    "zeros": (torch.zeros_like, "The values found there are all 0."),
    "a constant": (lambda x: torch.full_like(x, 0.25), "The values found there are all 0.25."),
    "the next row": (lambda x: x.roll(-1, 0), "Index i along dimension 0 holds what belongs at i + 1."),
    "the column before": (lambda x: x.roll(1, 1), "Index i along dimension 1 holds what belongs at i - 1."),
    "a tile further": (lambda x: x.roll(-32, 0), "Index i along dimension 0 holds what belongs at i + 32."),
    "transposed, in the same memory": (lambda x: x.T.reshape(x.shape), "transposed: dimensions 0 and 1 are swapped"),
    "reversed": (lambda x: x.flip(1), "in reverse order along dimension 1"),
    "the first row everywhere": (lambda x: x[:1].expand_as(x), "Every index along dimension 0 holds what belongs at index 0."),
    "rounded to bf16": (lambda x: x.bfloat16().double(), "Every wrong element is a bf16 number"),
    "rounded to fp16": (lambda x: x.half().double(), "Every wrong element is a fp16 number"),
    "another scale in each row": (
        lambda x: x * (1 + 0.1 * normal(len(x), 1, seed=2)), "Along dimension 1 all elements are off by the same factor"),
    "another scale in each column": (
        lambda x: x * (1 + 0.1 * normal(x.shape[1], seed=2)), "Along dimension 0 all elements are off by the same factor"),
    "another mean in each row": (
        lambda x: x + 0.01 * normal(len(x), 1, seed=2), "Along dimension 1 all elements are off by the same amount"),
    "a sum that drifts": (
        lambda x: x + 1e-3 * (0.1 + normal(*x.shape, seed=2).abs()).cumsum(1) ** 2, "The error grows along dimension 1"),
    "NaN": (lambda x: torch.full_like(x, torch.nan).copysign(torch.ones(())), "All of the wrong elements are NaN where a number"),
    "an overflow": (lambda x: torch.where(x > 1, torch.inf, x), "All of the wrong elements are infinite where a finite number"),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_what_they_hold_is_named(case: str) -> None:
    change, named = VALUES[case]
    assert named in said(X, change(X))


def test_an_activation_that_is_missing_is_named() -> None:
    assert "All of them should be 0 and are negative numbers" in said(X.relu(), X)


def test_a_place_and_its_values_are_named_together() -> None:
    found = with_part(X, (slice(None), slice(97, None)), torch.zeros_like)
    assert said(X, found) == (
        "All wrong elements are at indices 97 to 99 of dimension 1 (the last 3 of 100). The values found there are all 0."
    )
    found = with_part(X, (slice(64, 96),), lambda part: 2 * part)
    assert said(X, found).endswith("(the last 32 of 96). Every wrong element is 2 times what is expected.")


def test_memory_that_was_not_written_is_named() -> None:
    found = X.float()
    found[90:].view(torch.int32)[:, :16] = -1  # as the worker fills it, in part
    found[90:, 16:] = 0
    pattern = pattern_of(budget(X), found)
    assert "the last 6 of 96" in pattern and "96 of them hold what fresh memory is filled with" in pattern
    found = X.float()
    found[90:] = torch.nan
    assert "never written" not in pattern_of(budget(X), found)


def test_infinities_that_are_expected_hide_no_pattern() -> None:
    exact = X.clone()
    exact[0] = torch.inf
    expected = expect(exact, exact.float(), [exact.float()], 1.0)
    assert (
        pattern_of(expected, -exact.float()) == "Every wrong element has the wrong sign and the right size."
    )
    assert "finite where an infinity or NaN is expected" in pattern_of(expected, X.float())


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(96, 100), (3,), ()])
def test_outputs_of_any_dtype_and_size_are_looked_at(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    exact = normal(*shape).abs().to(kind)
    expected = expect(exact.double() if kind.is_floating_point else exact, exact, [exact], 1.0)
    unwritten = torch.full(shape, 0xFF, dtype=torch.uint8).view(kind)
    if kind.is_floating_point and shape:
        assert "never written" in pattern_of(expected, unwritten)
    else:
        assert "never written" not in pattern_of(expected, unwritten)


def test_an_overflow_that_zeros_the_rest_of_its_row_is_named() -> None:
    hot = X.clone()
    hot[5, 7], hot[5, 20:52] = 100.0, 88.0
    unscaled = hot.float().exp()
    pattern = pattern_of(budget(hot.softmax(1)), unscaled / unscaled.sum(1, keepdim=True))
    assert "3% of the wrong elements are NaN where a number is expected" in pattern
    assert pattern.endswith("The others are 0.")


A, B = normal(128, 512), normal(512, 96)


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2 ** (bits + 1)).round(), exponent - bits - 1)


@pytest.mark.parametrize(("bits", "named"), [(10, "TF32 or fp16 arithmetic"), (7, "bf16 arithmetic")])
def test_a_lower_precision_inside_is_named(bits: int, named: str) -> None:
    assert f"looks like {named}" in said(A @ B, rounded(A, bits) @ rounded(B, bits))
    assert f"looks like {named}" in said(A @ B, rounded(A, bits) @ B)
    for function in (torch.exp, torch.nn.functional.gelu, lambda x: x.softmax(-1)):
        assert f"looks like {named}" in said(function(X), function(rounded(X, bits)))


def test_fp32_inside_is_named_in_float64_only() -> None:
    exact = A @ B
    found = A.float().double() @ B.float().double()
    assert "looks like fp32 arithmetic where float64 is needed" in pattern_of(
        expect(exact, exact, [exact], 512.0), found
    )
    assert "looks like" not in said(exact, (A.bfloat16() @ B.bfloat16()).double() * 1.01, torch.bfloat16)


def test_smooth_errors_of_that_size_are_no_precision() -> None:
    """The tanh form of gelu is off by 2^-12 or so, and so is a wrong epsilon; neither rounds."""
    gelu = torch.nn.functional.gelu
    assert "looks like" not in said(gelu(X), gelu(X, approximate="tanh"))
    assert "looks like" not in said(X.exp(), X.exp() * (1 + 2**-12 * torch.sin(3 * X)))
    assert "looks like" not in said(X, X * (1 + 2**-12 * normal(96, 1)))


def test_a_wrong_function_of_the_right_arguments_is_named() -> None:
    gelu = torch.nn.functional.gelu
    for exact, found in (
        (gelu(X), gelu(X, approximate="tanh")),
        (gelu(X), X * (1.7 * X).sigmoid()),
        (X.tanh(), X.sigmoid()),
        (X.exp(), 1 + X + X**2 / 2 + X**3 / 6 + X**4 / 24),
    ):
        assert "function applied to them" in said(exact, found)
    positive = A.abs()
    half = positive[:, :256] @ B.abs()[:256]
    right = positive @ B.abs()
    for exact, found in ((right, half), (right, 2 * half), (X, X.sort(1).values), (X, 1e-3 * noisy(X))):
        assert said(exact, found) == ""


def test_a_weight_and_a_bias_that_are_missing_are_named() -> None:
    weight, bias = normal(100, seed=4), normal(100, seed=5)
    assert "Along dimension 0 all elements are off by the same factor and amount" in said(
        X * weight + bias, X
    )


def test_right_elements_beside_wrong_ones_hide_no_pattern() -> None:
    """Small errors that are within the budget, and places that are right by chance."""
    honest = (X + 1.0) * (1 + 2e-7 * noisy(X))
    assert "too large by 1." in said(X, honest)
    sparse = (X + 0.5).relu()
    found = with_part(sparse, (slice(None), slice(64, None)), lambda part: 2 * part)
    assert "(the last 36 of 100). Every wrong element is 2 times" in said(sparse, found)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_patterns_are_those_of_any_precision(kind: torch.dtype) -> None:
    exact = X.to(kind).double()
    assert "(1/4) times" in said(exact, exact / 4, kind)
    assert "i + 1" in said(exact, exact.roll(-1, 0), kind)
    assert "(the last 3 of 100)" in said(
        exact, with_part(exact, (slice(None), slice(97, None)), torch.neg), kind
    )


def test_integers_and_complex_numbers_have_patterns() -> None:
    whole = (100 * X).round()
    assert "too large by 1" in said(whole, whole + 1, torch.int64)
    assert "swapped" in said(whole, whole.T.reshape(whole.shape), torch.int32)
    exact = torch.complex(X, normal(96, 100, seed=1))
    expected = expect(exact, exact.to(torch.complex64), [exact.to(torch.complex64)], 1.0)
    assert "index 1 of dimension 2 (the last of 2). Every wrong element has the wrong sign" in pattern_of(
        expected, exact.to(torch.complex64).conj()
    )


def test_the_patterns_are_found_in_blocks_and_in_strided_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.kernelbench.evaluator.correctness.wrong_sample._BLOCK", 300)
    for case, (exact, part, named) in PLACES.items():
        found = with_part(exact, part, noisy)
        assert named in said(exact, found.mT.contiguous().mT if found.dim() > 1 else found), case
    assert "(1/96) times" in said(X, X / 96)


def test_the_numbers_say_what_is_allowed() -> None:
    found = X.float()
    found[2, 3] = X[2, 3] + 1e-4
    detail = compare(budget(X), found).detail
    wanted, allowed = detail.partition(", not ")[2].removesuffix(")").split(" (allowed difference ")
    assert float(wanted) == pytest.approx(float(X[2, 3]), rel=1e-5)
    assert 1e-7 < float(allowed) < 1e-5
    assert float(allowed) == pytest.approx(float(budget(X).tolerance()[2, 3]), rel=0.05)
    close = with_part(X, (2, 3), lambda x: x * (1 + 1e-9))
    got, wanted = (
        compare(expect(X, X, [X], 1.0), close).detail.partition("]: ")[2].partition(" (")[0].split(", not ")
    )
    assert got != wanted  # as many digits as it takes
    assert "allowed" not in compare(budget(X, torch.int64), X.to(torch.int64) + 1).detail


RETURN = "return torch.nn.functional.gelu(self.norm(x))"


def test_the_evaluator_names_a_tail_that_is_not_written(evaluate: Evaluate) -> None:
    unmasked = variant(RETURN, RETURN.replace("return", "y =") + "; y[:, 1000:] = 0; return y")
    evaluation = evaluate(unmasked)
    assert evaluation.verdict is Verdict.wrong_output
    assert "indices 1000 to 1023 of dimension 1 (the last 24 of 1024)" in evaluation.reason
    assert "all 0." in evaluation.reason and "(allowed difference " in evaluation.reason


def test_the_evaluator_names_what_was_added_and_where_it_was_right(evaluate: Evaluate) -> None:
    added = variant(RETURN, RETURN + " + 1.0 * bool((x[0] == 0).any())")  # in the edge family alone
    evaluation = evaluate(added)
    assert evaluation.verdict is Verdict.wrong_output, evaluation.reason
    assert "too large by 1." in evaluation.reason, evaluation.reason
