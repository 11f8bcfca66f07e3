"""RRHF and A-LoL, against values computed by hand, and their gradients."""

import math

import pytest
import torch

from kernelwright.rl_training.trainers.a_lol import Variant, drawn, loss, ratios, values
from kernelwright.rl_training.trainers.log_probs import Encoded, padded, token_log_probs
from kernelwright.rl_training.trainers.ranking import length_normalized, rrhf

LN2, LN3 = math.log(2), math.log(3)


def test_log_probs_are_of_the_next_token_and_of_replies_only() -> None:
    # Two tokens in the vocabulary. Logits (0, ln 3) are probabilities 1/4 and 3/4; (0, 0) are 1/2 each.
    logits = torch.tensor([[[0.0, LN3], [0.0, 0.0], [0.0, LN3], [9.0, 9.0]]])
    tokens = torch.tensor([[0, 1, 1, 0]])
    reply = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    found = token_log_probs(logits, tokens, reply)
    torch.testing.assert_close(found, torch.tensor([[0.0, math.log(1 / 2), math.log(1 / 4)]]))
    assert length_normalized(found, reply[:, 1:]).item() == pytest.approx(math.log(1 / 8) / 2)


def test_padding_is_on_the_right_and_no_reply() -> None:
    batch = padded([Encoded((5, 6, 7), 1), Encoded((8, 9), 1)], pad=0)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["reply"].tolist() == [[0, 1, 1], [0, 1, 0]]


def test_rrhf_sums_over_pairs_that_are_the_wrong_way_round() -> None:
    # Rewards 3 > 1 > 0, scores -1.0, -0.4, -0.7. Pairs (worse, better), p_worse - p_better:
    # (1, 3): -0.4 + 1.0 = 0.6; (0, 3): -0.7 + 1.0 = 0.3; (0, 1): -0.7 + 0.4 = -0.3, so 0. Together 0.9.
    # The best has -(-1.0) = 1.0.
    scores = torch.tensor([-1.0, -0.4, -0.7], requires_grad=True)
    found = rrhf(scores, torch.tensor([3.0, 1.0, 0.0]), torch.tensor([0, 0, 0]))
    assert found.ranking == pytest.approx(0.9) and found.best == pytest.approx(1.0)
    assert found.ranked_right == pytest.approx(1 / 3)
    assert found.loss.item() == pytest.approx(1.9)
    found.loss.backward()
    # The best: -1 for each of the two pairs, -1 for SFT; each of the others +1.
    assert scores.grad is not None and scores.grad.tolist() == [-3.0, 1.0, 1.0]


def test_rrhf_holds_only_replies_to_one_prompt_against_each_other() -> None:
    # Prompt 0: rewards 1 > 0, scores -2, -1: 1.0 too much; best 2. Prompt 1: equal rewards, no pair; best
    # the first, 5. Means over two prompts: ranking 0.5, best 3.5.
    scores = torch.tensor([-2.0, -1.0, -5.0, -0.1])
    found = rrhf(scores, torch.tensor([1.0, 0.0, 7.0, 7.0]), torch.tensor([0, 0, 1, 1]))
    assert (found.ranking, found.best, found.ranked_right) == (0.5, 3.5, 0.0)


def test_rrhf_s_gradient_is_that_of_its_loss() -> None:
    torch.manual_seed(0)
    rewards, prompts = torch.tensor([0.0, 2.0, 1.0, 1.0, 5.0]), torch.tensor([0, 0, 0, 1, 1])
    scores = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: rrhf(s, rewards, prompts).loss, (scores,))


# Two tokens, each with probability 1/2 now and 1/4 by the reference: a ratio of 2 each, of 4 together.
NOW, THEN = [[-LN2, -LN2]], [[-2 * LN2, -2 * LN2]]


@pytest.mark.parametrize(
    ("variant", "clip", "value"),
    [
        (Variant.plain, 9.0, 3.0 * 4 * 2 * LN2),  # A · ratio · -ln(1/4)
        (Variant.plain, 0.9, 3.0 * 1.9 * 2 * LN2),  # the ratio is cut to 1 + 0.9
        (Variant.seq, 9.0, 3.0 * (2 * LN2 + 2 * LN2)),
        (Variant.seq, 0.5, 3.0 * (1.5 * LN2 + 1.5 * LN2)),
        (Variant.ref_free, 0.9, 3.0 * 2 * LN2),
        (Variant.kl, 0.9, 3.0 * 2 * LN2 + 0.1 * 2 * LN2),  # + β · ln 4
    ],
)
def test_a_lol_by_hand(variant: Variant, clip: float, value: float) -> None:
    found = loss(variant, torch.tensor(NOW), torch.tensor(THEN), torch.tensor([3.0]), clip, beta=0.1)
    assert found.item() == pytest.approx(value)


@pytest.mark.parametrize(
    ("variant", "gradient"),
    [
        (Variant.plain, -3.0 * 1.9),  # A · ratio on each token's log-probability, nothing through the ratio
        (Variant.seq, -3.0 * 1.9),
        (Variant.ref_free, -3.0),
        (Variant.kl, -3.0 + 0.1),
    ],
)
def test_a_lol_s_gradients_do_not_go_through_ratios(variant: Variant, gradient: float) -> None:
    now = torch.tensor(NOW, requires_grad=True)
    loss(variant, now, torch.tensor(THEN), torch.tensor([3.0]), 0.9, 0.1).backward()
    assert now.grad is not None
    torch.testing.assert_close(now.grad, torch.full((1, 2), gradient))


def test_a_lol_is_a_mean_over_replies() -> None:
    two = loss(Variant.ref_free, torch.tensor(NOW * 2), torch.tensor(THEN * 2), torch.tensor([3.0, 1.0]))
    assert two.item() == pytest.approx((3.0 + 1.0) / 2 * 2 * LN2)


def test_ratios_are_clipped_to_both_sides_and_never_infinite() -> None:
    now = torch.tensor([0.0, -5.0, 1000.0, -0.1])
    found = ratios(now, torch.tensor([0.0, 0.0, 0.0, -0.2]), 0.9)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.1, 1.9, math.exp(0.1)]))


def test_values_of_two_prompts_by_hand() -> None:
    # Features ±1, mean 0, squared norms 1, so the kernel is xx'. Rewards 4, 0 for one, 0, 0 for the other:
    # mean 1. The weight w minimizes sum (r - 1 - w x)² + w²: w = sum x (r - 1) / (sum x² + 1) = 4 / 5.
    found = values(torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]), torch.tensor([4.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(found, torch.tensor([1.8, 1.8, 0.2, 0.2], dtype=torch.float64))
    alike = values(torch.ones(3, 5), torch.tensor([1.0, 2.0, 6.0]))
    assert alike.tolist() == [3.0, 3.0, 3.0]


def test_replies_are_drawn_in_proportion_to_positive_advantages() -> None:
    found = drawn(torch.tensor([-5.0, 1.0, 0.0, 3.0]), 4000, seed=1)
    assert set(found) == {1, 3}
    assert found.count(3) / 4000 == pytest.approx(0.75, abs=0.03)
    assert drawn(torch.tensor([-5.0, 1.0, 0.0, 3.0]), 4000, seed=1) == found
