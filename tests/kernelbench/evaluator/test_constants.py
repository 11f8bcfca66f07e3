"""Inputs that are the same in every draw are varied, and stay what a reference can take."""

from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.evaluator.correctness.constants import (
    is_plain,
    not_finite,
    partly_constant,
    variations,
)
from kernelwright.kernelbench.evaluator.correctness.families import infer_domain
from kernelwright.kernelbench.evaluator.reference.draws import Draws
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.references import oracle, task
from tests.helpers.evaluator.trial import Evaluate

CAUSAL = torch.ones(16, 16, dtype=torch.bool).tril()
OFFSETS = torch.tensor([0, 7, 16, 25, 32])
SEGMENTS = torch.arange(4).repeat_interleave(8)
CONSTANTS = {
    "ones": torch.ones(64),
    "zeros": torch.zeros(64),
    "square_zeros": torch.zeros(16, 16),
    "one_number": torch.tensor([0.7]),
    "a_number_alone": torch.tensor(0.0),
    "half_precision": torch.full((64,), 0.5, dtype=torch.bfloat16),
    "eight_bits": torch.ones(64).to(torch.float8_e4m3fn),
    "complex": torch.polar(torch.ones(64), torch.arange(64.0)),
    "a_grid": torch.linspace(0, 1, 64),
    "whole_numbers": torch.arange(64.0),
    "all_true": torch.ones(4, 1, 1, 64, dtype=torch.bool),
    "all_false": torch.zeros(4, 3, dtype=torch.bool),
    "one_flag": torch.tensor(True),
    "causal": CAUSAL,
    "causal_infinities": torch.full((16, 16), -torch.inf).triu(1),
    "identity": torch.eye(16),
    "signs": torch.tensor([1.0, -1.0]).repeat(16),
    "lengths": torch.full((32,), 64),
    "short_lengths": torch.full((32,), 2, dtype=torch.int32),
    "a_count": torch.tensor(5),
    "attention_mask": torch.ones(4, 16, dtype=torch.long),
    "labels": torch.zeros(32, dtype=torch.long),
    "positions": torch.arange(64),
    "expanded_positions": torch.arange(16).repeat(8, 1),
    "edges": torch.tensor([[5, 9, 7, 2], [100, 103, 101, 100]]),
    "bytes": torch.tensor([3, 200, 17, 255], dtype=torch.uint8),
    "wide_bytes": torch.tensor([3, 200, 17, 255], dtype=torch.uint16),
    "offsets": OFFSETS,
    "falling": OFFSETS.flip(0),
    "segments": SEGMENTS,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_becomes_something_else_of_its_kind(name: str) -> None:
    constant = CONSTANTS[name]
    made = [
        v(constant, Draws(seed)) for seed in range(8) for v in variations(constant, infer_domain(constant))
    ]
    assert made
    wide = torch.float64 if constant.is_floating_point() else torch.long
    wide = torch.complex128 if constant.is_complex() else wide
    for other in made:
        assert (other.shape, other.dtype) == (constant.shape, constant.dtype)
        assert not torch.equal(other.to(wide), constant.to(wide))
        assert not bool(other.to(wide).isnan().any())
        if wide is torch.long and len(constant.unique() if constant.dtype is not torch.uint16 else "..") > 1:
            assert other.to(wide).min() >= constant.to(wide).min()
            assert other.to(wide).max() <= constant.to(wide).max()


def every(constant: torch.Tensor) -> list[torch.Tensor]:
    """Of the first variation, many."""
    variation = next(variations(constant, infer_domain(constant)))
    return [variation(constant, Draws(seed)) for seed in range(50)]


def test_a_mask_leaves_something_of_every_row() -> None:
    for mask in (CAUSAL, torch.ones(64, 2, dtype=torch.bool), torch.ones(8, 64, dtype=torch.bool)):
        assert all(bool(other.any(-1).all()) for other in every(mask))
    assert all(bool((~other).any(-1).all()) for other in every(torch.zeros(8, 64, dtype=torch.bool)))


def test_one_hot_rows_stay_one_hot() -> None:
    for other in every(torch.eye(16)):
        assert torch.equal(other.sum(-1), torch.ones(16)) and torch.equal(other.sum(0), torch.ones(16))
    assert len(list(variations(torch.eye(16), "fixed"))) == 1


def test_lengths_are_at_most_what_they_were_and_one_stays() -> None:
    for other in every(torch.full((32,), 64)):
        assert other.max() == 64 and 32 <= other.min() < 64


def test_indices_keep_their_rows_and_positions_stay_distinct() -> None:
    for other in every(CONSTANTS["edges"]):
        assert other[0].max() < 100 <= other[1].min()
    for other in every(torch.arange(64)):
        assert torch.equal(other.sort().values, torch.arange(64))


def test_what_is_sorted_stays_so_with_its_ends() -> None:
    for other in every(OFFSETS):
        assert (int(other[0]), int(other[-1])) == (0, 32) and bool((other.diff() > 0).all())
    for other in every(OFFSETS.flip(0)):
        assert (int(other[0]), int(other[-1])) == (32, 0) and bool((other.diff() < 0).all())
    for other in every(SEGMENTS):
        assert torch.equal(other.unique(), torch.arange(4)) and bool((other.diff() >= 0).all())


def test_named_domains_are_kept() -> None:
    flips = list(variations(torch.ones(64), "mask"))
    assert all(set(v(torch.ones(64), Draws(3)).tolist()) <= {0.0, 1.0} for v in flips)
    signs = list(variations(torch.ones(64), "sign"))
    assert all(set(v(torch.ones(64), Draws(3)).tolist()) == {-1.0, 1.0} for v in signs)
    symmetric = next(variations(torch.full((8, 8), 0.5) + torch.eye(8).flip(0) * torch.rand(8, 1), "real"))
    assert not bool(torch.equal(symmetric(torch.ones(8, 8), Draws(3)), torch.ones(8, 8)))
    table = torch.rand(8, 8)
    scaled = next(variations(table + table.T, "symmetric"))(table + table.T, Draws(3))
    assert torch.equal(scaled, scaled.T) and not torch.equal(scaled, table + table.T)
    shares = next(variations(table.softmax(-1), "probability"))(table.softmax(-1), Draws(3))
    torch.testing.assert_close(shares.sum(-1), torch.ones(8))
    parts = next(variations(torch.linspace(0, 1, 9), "unit"))(torch.linspace(0, 1, 9), Draws(3))
    assert bool((parts >= 0).all()) and bool((parts <= 1).all())


def test_ones_zeros_and_two_values_show_no_domain() -> None:
    plain = {name for name, constant in CONSTANTS.items() if is_plain(constant)}
    floats = {"ones", "zeros", "square_zeros", "a_number_alone", "eight_bits"}
    assert plain == floats | {"causal_infinities", "identity", "signs"}


def test_the_share_that_is_not_finite() -> None:
    assert not_finite(torch.tensor([1.0, torch.inf, torch.nan, 2.0])) == 0.5
    assert not_finite(torch.tensor([3e38, 3e38])) == 0.0  # though their sum is not
    assert not_finite(torch.tensor([1, 2])) == not_finite(torch.zeros(0)) == 0.0
    assert not_finite(torch.tensor([complex(1, torch.nan), 1j])) == 0.25


def drawn(source: str, folder: Path, family: str, seeds: int = 3) -> list[list[torch.Tensor]]:
    """Inputs of a family, once for every seed."""
    made = oracle(source, folder)
    with torch.no_grad():
        for seed in range(seeds):
            made.slots.append([tensor.clone() for tensor in made.reference.first])
            made.fill([seed + 1], [seed], family)
    return made.slots[1:]


ATTENTION = task(
    "return torch.softmax((x @ x.mT).masked_fill(~mask, -torch.inf), -1) @ x",
    inputs=", x, mask",
    draw="[torch.randn(4, 16, 8), torch.ones(16, 16, dtype=torch.bool).tril()]",
)


@pytest.mark.parametrize("family", ["varied", "zero_centred", "dominated", "heavy_tailed", "needle", "edge"])
def test_every_family_varies_them_but_the_task_s_own(family: str, tmp_path: Path) -> None:
    assert all(not torch.equal(mask, CAUSAL) for _, mask in drawn(ATTENTION, tmp_path, family))
    assert all(torch.equal(mask, CAUSAL) for _, mask in drawn(ATTENTION, tmp_path, "task"))


# Where nothing is drawn again, or much that always comes from one seed, a kernel could remember what it made.
REMEMBERED = {
    "all": ("[torch.ones(64, 8), torch.arange(8)]", [False, False]),
    "from_one_seed": ("[torch.randn(64, 8), torch.randn(64, 8, generator=torch.Generator().manual_seed(3))]", [False, False]),
    "a_mask_beside": ("[torch.randn(64, 8), torch.ones(64, 8).tril()]", [False, True]),
}  # fmt: skip


@pytest.mark.parametrize("case", REMEMBERED)
def test_what_could_be_remembered_is_varied_in_every_call(case: str, tmp_path: Path) -> None:
    draw, alike = REMEMBERED[case]
    source = task("return x + y", inputs=", x, y", draw=draw)
    first, second = drawn(source, tmp_path, "task", seeds=2)
    assert [torch.equal(a, b) for a, b in zip(first, second, strict=True)] == alike


PADDED = "lambda ids: ids.masked_fill_(torch.arange(64) >= 40, 0)"


def test_what_is_always_padding_is_varied(tmp_path: Path) -> None:
    draw = f"[torch.randn(100, 8), ({PADDED})(torch.randint(1, 100, (16, 64)))]"
    source = task("return x[ids].sum(1)", inputs=", x, ids", draw=draw)
    for _, ids in drawn(source, tmp_path, "needle"):
        assert bool((ids[:, 40:] > 0).any()) and int(ids.max()) < 100
    assert all(not bool(ids[:, 40:].any()) for _, ids in drawn(source, tmp_path, "task"))


def test_what_is_in_order_or_of_few_values_is_not_taken_for_padding() -> None:
    def draw(number: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(number)
        drawn = torch.randint(0, 100, (4, 64), generator=generator)
        drawn[:, 32:] = 200
        return [drawn, drawn.sort(-1).values, (drawn > 5).long(), drawn.float()]

    assert list(partly_constant(draw(0), draw)) == [0]


def test_offsets_whose_longest_segment_is_told_stay(tmp_path: Path) -> None:
    source = task(
        "return torch.stack([x[a:b].mean(0) for a, b in zip(n[:-1].tolist(), n[1:].tolist())])",
        inputs=", x, n, longest",
        draw="[torch.randn(32, 8), torch.tensor([0, 8, 16, 24, 32]), 8]",
    )
    assert oracle(source, tmp_path).describe()["unvaried"]


def test_varied_inputs_are_the_task_s_own_beside(tmp_path: Path) -> None:
    source = task("return x * scale", inputs=", x, scale", draw="[torch.rand(64, 8), torch.full((8,), 0.5)]")
    for x, scale in drawn(source, tmp_path, "varied"):
        assert bool((x >= 0).all()) and bool(((scale - 0.5).abs() > 0.04).all()) and bool((scale > 0).all())


# What the reference fails on, or gives NaN for, in the first way to vary it.
GENTLE = {
    "additive_mask": (
        task("return torch.softmax(x + mask, -1)", inputs=", x, mask",
             draw="[torch.randn(4, 16, 16), torch.full((16, 16), -torch.inf).triu(1)]"), 1),
    "zeros_for_flags": (
        task("return torch.softmax(x.masked_fill(mask.bool(), -torch.inf), -1)", inputs=", x, mask",
             draw="[torch.randn(4, 16), torch.zeros(4, 16)]"), 1),
    "zeros_under_a_root": (task("return x * v.sqrt()", inputs=", x, v", draw="[torch.randn(64, 8), torch.zeros(8)]"), 1),
    "few_infinities": (
        task("return x.masked_fill(mask, -torch.inf)", inputs=", x, mask",
             draw="[torch.rand(64, 128), torch.zeros(64, 128, dtype=torch.bool)]"), 1),
    "sorted_lengths": (
        task("return nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True).batch_sizes.float().cumsum(0) + x.sum()",
             inputs=", x, n", draw="[torch.randn(8, 16, 4), torch.full((8,), 16)]"), 1),
    "an_index": (task("return x[:, i]", inputs=", x, i", draw="[torch.randn(64, 8), torch.arange(8)]"), 1),
    "jagged": (
        task("return torch.stack([x[a:b].mean(0) for a, b in zip(n[:-1].tolist(), n[1:].tolist())])", inputs=", x, n",
             draw="[torch.randn(32, 8), torch.tensor([0, 8, 16, 24, 32])]"), 1),
}  # fmt: skip


@pytest.mark.parametrize("case", GENTLE)
def test_what_the_reference_cannot_take_is_varied_more_gently(case: str, tmp_path: Path) -> None:
    source, position = GENTLE[case]
    made = oracle(source, tmp_path)
    assert made.describe()["unvaried"] == [] and all(made.constants.matter.values())
    with torch.no_grad():
        for seed in range(4):
            made.fill([0], [seed], "varied")
            assert not torch.equal(made.slots[0][position], made.reference.first[position])
            assert made.expect(0, None, False)["usable"]


LACKING = task("return x.view(n, -1).sum(0)", inputs=", x, n", draw="[torch.randn(7, 8), torch.tensor(7)]")


def test_what_cannot_be_varied_is_said(tmp_path: Path, evaluate: Evaluate) -> None:
    said = "input 1 is the same in every draw and could not be varied, so a candidate may ignore it"
    assert oracle(LACKING, tmp_path).describe()["effects"] == [said]
    evaluation = evaluate(LACKING.replace("class Model(", "class ModelNew("), LACKING)
    assert evaluation.verdict is Verdict.correct and said in evaluation.reason


def test_what_a_task_names_fixed_stays_so(tmp_path: Path) -> None:
    source = task("return x * s", inputs=", x, s", draw="[torch.randn(64, 8), torch.ones(8)]")
    source += 'input_domains = ["real", "fixed"]\n'
    assert all(torch.equal(s, torch.ones(8)) for _, s in drawn(source, tmp_path, "varied"))


def test_a_constant_that_no_output_depends_on_is_found(tmp_path: Path) -> None:
    """And no operation is called idle because it multiplies by what always are ones."""
    cases = {
        "return x.exp()": ["the output ignores input 1"],
        "return x.exp() * s": [],
        "return torch.amax(x.exp(), 0, out=s)": [],
    }
    for forward, findings in cases.items():
        made = oracle(task(forward, inputs=", x, s", draw="[torch.randn(64, 8), torch.ones(8)]"), tmp_path)
        with torch.no_grad():
            assert made.audit([1, 2, 3]) == findings


LOGITS = task(
    "return nn.functional.leaky_relu(x).masked_fill(mask, -torch.inf)",
    inputs=", x, mask",
    draw="[torch.rand(64, 128), torch.rand(64, 128) < 0.5]",
)


@pytest.mark.parametrize("family", ["zero_centred", "dominated", "heavy_tailed", "needle", "edge"])
def test_infinities_that_the_task_itself_gives_leave_no_family_out(family: str, tmp_path: Path) -> None:
    made = oracle(LOGITS, tmp_path)
    logarithm = oracle(task("return x.log()", draw="[torch.rand(64, 128) + 0.1]"), tmp_path)
    with torch.no_grad():
        made.fill([0], [5], family)
        assert made.expect(0, None, False)["usable"]
        logarithm.fill([0], [5], family)
        assert logarithm.expect(0, None, False)["usable"] is (family == "dominated")


CASES = {
    "an_affine": (
        task("return nn.functional.layer_norm(x, (128,)) * g + b", inputs=", x, g, b",
             draw="[torch.randn(64, 128), torch.ones(128), torch.zeros(128)]"),
        (" * g + b", ""), "nn.functional.layer_norm(x, (128,), g, b)"),
    "a_bool_mask": (
        task("return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=m)", inputs=", q, m",
             draw="[torch.randn(2, 4, 64, 32), torch.ones(2, 1, 1, 64, dtype=torch.bool)]"),
        (", attn_mask=m", ""), "torch.softmax((q @ q.mT / 32**0.5).masked_fill(~m, -torch.inf), -1) @ q"),
    "a_causal_mask": (
        ATTENTION, ("torch.softmax((x @ x.mT).masked_fill(~mask, -torch.inf), -1) @ x",
                    "nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True, scale=1.0)"),
        "nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask, scale=1.0)"),
    "a_state": (
        task("return self.cell(x, h)", init="self.cell = nn.GRUCell(64, 64)", inputs=", x, h",
             draw="[torch.randn(64, 64), torch.zeros(64, 64)]"),
        ("(x, h)", "(x)"), None),
    "lengths": (
        task("valid = torch.arange(64) < n[:, None]\nreturn (x * valid[..., None]).sum(1) / n[:, None]",
             inputs=", x, n", draw="[torch.randn(32, 64, 16), torch.full((32,), 64)]"),
        ("return (x * valid[..., None]).sum(1) / n[:, None]", "return x.mean(1)"), None),
    "a_number": (
        task("return torch.softmax(x / t, -1)", inputs=", x, t", draw="[torch.randn(64, 128), torch.tensor([0.7])]"),
        ("/ t", "/ 0.7"), "torch.softmax(x * t.reciprocal(), -1)"),
    "infinities": (LOGITS, ("nn.functional.leaky_relu(x)", "x"), "torch.where(mask, -torch.inf, torch.where(x < 0, 0.01 * x, x))"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_candidate_that_ignores_one_is_wrong_and_others_are_right(case: str, evaluate: Evaluate) -> None:
    source, change, other = CASES[case]
    same = source.replace("class Model(", "class ModelNew(")
    assert change[0] in same
    evaluation = evaluate(same.replace(*change), source)
    assert evaluation.verdict is Verdict.wrong_output, evaluation.reason
    honest = same.replace(
        source[source.index("return ") : source.index("\ndef get_inputs")].strip(), f"return {other}"
    )
    evaluation = evaluate(honest if other else same, source)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.correctness is not None and evaluation.correctness.inputs_tried >= 7


CAUSAL_LOGITS = task(
    "s = q @ k.mT\nreturn s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)",
    inputs=", q, k",
    draw="[torch.randn(8, 128, 64), torch.randn(8, 128, 64)]",
)


def test_infinities_are_looked_at_in_timed_calls(evaluate: Evaluate) -> None:
    same = CAUSAL_LOGITS.replace("class Model(", "class ModelNew(")
    late = same.replace("s = q @ k.mT", "s = q @ k.mT\n        self.n = getattr(self, 'n', 0) + 1\n"
                                        "        if self.n > 20: return s")  # fmt: skip
    for _ in range(2):
        assert evaluate(late, CAUSAL_LOGITS).verdict in (Verdict.cheating, Verdict.wrong_output)
    assert evaluate(same, CAUSAL_LOGITS).verdict is Verdict.correct
