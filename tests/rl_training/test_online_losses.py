"""The losses of online training against values computed by hand: ratios, clips, denominators, what is masked.

Three replies that teach, of 3, 1 and 2 tokens, and one of 3 that does not. Each token had the probability 1/4
when it was written, and has r times as much now:

    A =  2   r = 1, 3/2, 1/2      clipped to 0.8 … 1.28: -min(rA, clip(r)A) = -2, -2.56, -1
    A = -1   r = 2                                                          = 2
    A = -1   r = 1, 3/5                                                     = 1, 0.8
    nothing is known              r = 1, 1, 1
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.rl_training import tiny_policy

pytest.importorskip("trl")
import torch
from pydantic import ValidationError

from kernelwright.rl_training.environment.environment import TrainingEnvironment
from kernelwright.rl_training.rewards.scheme import SCHEMES
from kernelwright.rl_training.trainers import online_run
from kernelwright.rl_training.trainers.arguments import NOT_TRACKED, arguments
from kernelwright.rl_training.trainers.collapse import HealthLimits
from kernelwright.rl_training.trainers.online import OnlineTrainer, _Generated
from kernelwright.rl_training.trainers.policy import load_policy
from tests.helpers.rl_training.reading_pool import TASKS, settings

pytestmark = pytest.mark.training

RATIOS = torch.tensor([[1.0, 1.5, 0.5], [2.0, 1.0, 1.0], [1.0, 0.6, 1.0], [1.0, 1.0, 1.0]])
LENGTHS = (3, 1, 2, 0)  # of what teaches
MOST = 5  # tokens of a reply
LN = math.log


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy.save(tmp_path_factory.mktemp("model") / "tiny", tiny_policy.BRIEF_CHAT)


Losses = Callable[..., tuple[float, torch.Tensor]]


@pytest.fixture
def lost(model: Path, tmp_path: Path) -> Losses:
    """The loss with its gradient with respect to the log-probabilities (4, 3)."""

    def of(micro_batch: int = 4, **changed: object) -> tuple[float, torch.Tensor]:
        trainer = made(model, tmp_path, micro_batch=micro_batch, max_completion=MOST, **changed)
        log_probs = (RATIOS / 4).log().requires_grad_()
        entropies = torch.tensor([[0.3, 0.6, 0.9], [0.2, 7, 7], [0.4, 0.6, 7], [7, 7, 7]])

        def computed(_: Any, tokens: torch.Tensor, *__: Any, **___: Any) -> tuple[Any, Any, None]:
            rows = tokens[:, -1]  # each reply is its number, again and again
            return log_probs[rows], entropies[rows], None

        trainer._get_per_token_logps_and_entropies = computed
        trainer.current_gradient_accumulation_steps = 4 // micro_batch
        rows = torch.arange(4)[:, None]
        mask = torch.tensor([[place < length for place in range(3)] for length in LENGTHS])
        known = {
            "prompt_ids": rows,
            "prompt_mask": torch.ones(4, 1, dtype=torch.long),
            "completion_ids": rows.expand(4, 3),
            "completion_mask": mask.long(),
            "advantages": torch.tensor([2.0, -1.0, -1.0, 0.0]),
            "old_per_token_logps": torch.full((4, 3), 0.25).log(),
            # Twice as likely as now in the first reply; in what does not teach a hundred times.
            "ref_per_token_logps": log_probs.detach() + torch.tensor([[LN(2)], [0], [0], [LN(100)]]),
        }
        whole = {"num_items_in_batch": torch.tensor(6), "teaching": torch.tensor(3)}
        loss = torch.stack(
            [
                trainer._compute_loss(
                    trainer.model, whole | {k: v[i : i + micro_batch] for k, v in known.items()}
                )
                for i in range(0, 4, micro_batch)
            ]
        ).sum()
        loss.backward()
        assert log_probs.grad is not None
        return loss.item(), log_probs.grad

    return of


def made(model: Path, out: Path, **changed: object) -> OnlineTrainer:
    chosen = settings(model, **{"batch": 4, "micro_batch": 4, "group": 4} | changed)
    policy = load_policy(chosen.model)
    trainer = OnlineTrainer(
        policy.model,
        policy.tokenizer,
        online_run.rows(TASKS, chosen),
        TrainingEnvironment({}, type("Paying", (), {"scheme": SCHEMES["log-speedup"]})(), chosen.turns),
        chosen,
        online_run._arguments(chosen, arguments(chosen, out, NOT_TRACKED), HealthLimits()),
    )
    trainer.model.train()
    return trainer


# r of a whole reply is the geometric mean of its tokens'.
LONG, SHORT = (1 * 1.5 * 0.5) ** (1 / 3), 0.6**0.5


def soft(ratio: float, temperature: float) -> float:
    """SAPO's, whose slope is 1 where the ratio is 1 (arXiv:2511.20347)."""
    return 4 / temperature / (1 + math.exp(-temperature * (ratio - 1)))


BY_HAND = {
    "grpo": ((-5.56 / 3 + 2 / 1 + 1.8 / 2) / 3, {}),  # a mean over replies of means over tokens
    "dr_grpo": ((-5.56 + 2 + 1.8) / (3 * MOST), {}),  # over all tokens that there might be
    "dapo": ((-5.56 + 2 + 1.8) / 6, {}),  # over all tokens
    "bnpo": ((-5.56 + 2 + 1.8) / 6, {}),  # over those of a micro-batch, which is all of them here
    # -min(r, most) A ln p, where p = r / 4
    "cispo": (
        (-2 * (LN(1 / 4) + 1.5 * LN(3 / 8) + 0.5 * LN(1 / 8)) + 2 * LN(1 / 2) + LN(1 / 4) + 0.6 * LN(3 / 20))
        / 6,
        {},
    ),
    "cispo, no ratio above 1.2": (
        (
            -2 * (LN(1 / 4) + 1.2 * LN(3 / 8) + 0.5 * LN(1 / 8))
            + 1.2 * LN(1 / 2)
            + LN(1 / 4)
            + 0.6 * LN(3 / 20)
        )
        / 6,
        {"clip_high": 1.2},
    ),
    "sapo": (
        (
            -2 * (soft(1, 1) + soft(1.5, 1) + soft(0.5, 1)) / 3
            + soft(2, 1.05)
            + (soft(1, 1.05) + soft(0.6, 1.05)) / 2
        )
        / 3,
        {},
    ),
    # Clipped to 0.9997 … 1.0004: that of A = 2 is below, which counts as it is, that of the last is cut.
    "gspo": ((-2 * LONG + 2 + 0.9997) / 3, {}),
    "gspo, clipped otherwise": ((-2 * LONG + 2 + SHORT) / 3, {"clip_low": 0.5}),
    "dr_grpo, clipped otherwise": (
        (-2 - 3 - 1 + 2 + 1 + 0.6) / (3 * MOST),
        {"clip_low": 0.7, "clip_high": 2},
    ),
}


@pytest.mark.parametrize("micro_batch", [4, 1])
@pytest.mark.parametrize("case", BY_HAND)
def test_a_loss_by_hand(lost: Losses, case: str, micro_batch: int) -> None:
    """In micro-batches it is the same; but for BNPO, of which it is a mean over micro-batches."""
    value, changed = BY_HAND[case]
    if (case, micro_batch) == ("bnpo", 1):
        value = BY_HAND["grpo"][0]
    loss, gradient = lost(micro_batch, loss=case.partition(",")[0], **changed)
    assert loss == pytest.approx(value, rel=1e-5)
    assert gradient[[1, 1, 2, 3, 3, 3], [1, 2, 2, 0, 1, 2]].tolist() == [0.0] * 6  # masked, all of them


def test_gradients_by_hand(lost: Losses) -> None:
    """d(-rA)/d ln p = -rA, and 0 where it is clipped; CISPO's, whose ratio is a constant, is -min(r, most) A."""
    _, gradient = lost(loss="dr_grpo")
    expected = torch.tensor([[-2.0, 0.0, -1.0], [2.0, 0, 0], [1.0, 0.0, 0], [0, 0, 0]]) / (3 * MOST)
    torch.testing.assert_close(gradient, expected)
    _, gradient = lost(loss="cispo", clip_high=1.2)
    expected = torch.tensor([[-2.0, -2.4, -1.0], [1.2, 0, 0], [1.0, 0.6, 0], [0, 0, 0]]) / 6
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(("micro_batch", "mean"), [(4, 3.0 / 6), (1, (0.6 + 0.2 + 0.5) / 3)])
@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "cispo", "gspo"])
def test_an_entropy_bonus_is_of_what_teaches(lost: Losses, loss: str, micro_batch: int, mean: float) -> None:
    """A mean over the tokens of a micro-batch, which counts as much as it has replies."""
    without, _ = lost(micro_batch, loss=loss)
    found, _ = lost(micro_batch, loss=loss, entropy=0.1)
    assert found - without == pytest.approx(-0.1 * mean, abs=1e-6)


@pytest.mark.parametrize("micro_batch", [4, 1])
@pytest.mark.parametrize(
    ("loss", "over"), [("grpo", 3), ("dr_grpo", 3 * MOST / 3), ("dapo", 6 / 3), ("cispo", 6 / 3)]
)
def test_a_divergence_is_of_what_teaches(lost: Losses, loss: str, over: float, micro_batch: int) -> None:
    """Of the reply of three tokens, to which the first policy gives twice the probability: 2 - ln 2 - 1 each."""
    without, _ = lost(micro_batch, loss=loss)
    found, _ = lost(micro_batch, loss=loss, kl=0.5)
    assert found - without == pytest.approx(0.5 * (1 - LN(2)) / over, abs=1e-6)


def test_what_has_no_gradient_has_none_at_all(model: Path, tmp_path: Path) -> None:
    trainer = made(model, tmp_path, entropy=0.1, kl=0.1)
    rows = torch.zeros(4, 3, dtype=torch.long)
    trainer._compute_loss(trainer.model, {"completion_mask": rows}).backward()
    assert all(weights.grad is None for weights in trainer.model.parameters())


def test_what_teaches_is_what_has_a_return_and_was_sampled(model: Path, tmp_path: Path) -> None:
    """Not the greedy replies of remax, nor the copies that stand for turns which a rollout did not come to."""
    trainer = made(model, tmp_path, turns=2, estimator="remax")
    ids = [_Generated([1], [2], None), _Generated([1, 2], [3], None)]

    def samples(*rewards: float | None, greedy: bool = False) -> list[bool]:
        return [sample.teaches for sample in trainer._samples(rewards, ids[: len(rewards)], greedy)]

    assert samples(1.0, 0.0) == [True, True]
    assert samples(1.0, 0.0, greedy=True) == [False, False]
    assert samples(1.0, None) == [False, False]  # the return of the first is not known without the second
    assert samples(None, 1.0) == [False, True]
    assert samples(1.0) == [True, False]  # and its copy


def test_replies_that_are_cut_off_teach_nothing_where_that_is_asked_for(model: Path, tmp_path: Path) -> None:
    """They have their credit, though: it is part of the group's mean."""
    for masks in (False, True):
        trainer = made(model, tmp_path, max_completion=3, mask_truncated=masks)
        end = trainer._tokenizer.eos_token_id
        for completion, cut_off in (([5, 6, 7], True), ([5, 6, end], False), ([5, end], False)):
            (sample,) = trainer._samples([1.5], [_Generated([1], completion, None)], False)
            assert sample.credited.value == 1.5
            assert sample.teaches == (not (masks and cut_off))


def test_bounds_are_those_of_the_loss(model: Path) -> None:
    found = {loss: settings(model, loss=loss) for loss in ("dapo", "gspo", "cispo", "sapo")}
    assert {loss: (each.clip_low, each.clip_high) for loss, each in found.items()} == {
        "dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4), "cispo": (None, 5.0), "sapo": (None, None),
    }  # fmt: skip
    assert settings(model, loss="gspo", clip_high=1e-3).clip_low == 3e-4
    for loss, clip, words in (
        ("cispo", {"clip_low": 0.2}, "clip low: cispo has no such bound"),
        ("cispo", {"clip_high": 0.28}, "clip high: 0.28 would cut every ratio"),
        ("sapo", {"clip_high": 0.28}, "clip high: sapo has no such bound"),
    ):
        with pytest.raises(ValidationError, match=words):
            settings(model, loss=loss, **clip)
