"""Learning from recorded replies, without generating any: RRHF and A-LoL on transformers' Trainer.

The samples of all updates are drawn before the first, from the seed, so that a training resumed from a
checkpoint sees the same ones.
"""

import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pydantic import Field, model_validator
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Record
from kernelwright.rl_training.rewards.scheme import Scheme
from kernelwright.rl_training.trainers import a_lol
from kernelwright.rl_training.trainers.a_lol import Variant
from kernelwright.rl_training.trainers.checkpoints import WholeCheckpoints
from kernelwright.rl_training.trainers.guards import StopAtNaN
from kernelwright.rl_training.trainers.log_probs import Encoded, encode, padded, token_log_probs
from kernelwright.rl_training.trainers.policy import LoraSettings, Policy, keep_base
from kernelwright.rl_training.trainers.precision import Precision, autocasts, require_learnable
from kernelwright.rl_training.trainers.ranking import length_normalized, rrhf
from kernelwright.rl_training.trainers.recorded import Prompted

RRHF = "rrhf"


class OfflineSettings(Record):
    """Settings of offline learning.

    `batch`: per update, prompts with all replies (RRHF) or replies (A-LoL).
    """

    model: str
    method: str  # RRHF, or a Variant of A-LoL
    reward: Scheme  # of runs; a data set has scores
    steps: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    batch: int = Field(gt=0)
    seed: int
    lora: LoraSettings | None
    precision: Precision = "float32"
    max_length: int = Field(gt=0)  # tokens of a prompt with a reply; longer ones are left out
    clip: float = Field(default=0.9, gt=0)  # A-LoL's ε
    beta: float = Field(default=0.1, ge=0)  # a-lol-kl's β
    save_every: int = Field(default=10, gt=0)  # steps

    @model_validator(mode="after")
    def _learns(self) -> "OfflineSettings":
        require_learnable(self.precision, self.lora is not None)
        return self


@dataclass(frozen=True)
class RankedReplies:
    """Sample of RRHF: the replies to one prompt."""

    replies: tuple[Encoded, ...]
    rewards: tuple[float, ...]


@dataclass(frozen=True)
class Better:
    """Sample of A-LoL: a reply that is better than the reference policy's value of its prompt."""

    reply: Encoded
    advantage: float
    reference: torch.Tensor  # (T,), its tokens' log-probabilities by the reference policy, the prompt's 0


@dataclass(frozen=True)
class Samples:
    drawn: Sequence[Any]  # steps * batch of them, in their order
    replies: int  # that are learned from
    too_long: int


class OfflineTrainer(WholeCheckpoints, Trainer, ABC):
    """Trainer on samples in their order; values given to `measured` go into the next log, as a mean."""

    def __init__(self, policy: Policy, samples: Samples, arguments: TrainingArguments, **others: Any) -> None:
        self._measured: dict[str, list[float]] = defaultdict(list)
        self.pad = policy.tokenizer.pad_token_id
        super().__init__(
            policy.model,
            arguments,
            train_dataset=samples.drawn,
            data_collator=self.collate,
            processing_class=policy.tokenizer,
            **others,
        )

    @abstractmethod
    def collate(self, samples: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return the padded inputs of `compute_loss`."""

    def measured(self, name: str, value: float) -> None:
        self._measured[name].append(value)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        means = {name: fmean(found) for name, found in self._measured.items()}
        self._measured.clear()
        super().log({**logs, **means}, start_time)

    def log_probs(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        return token_log_probs(logits, inputs["input_ids"], inputs["reply"])

    def _get_train_sampler(self, *_: Any) -> Any:
        return SequentialSampler(self.train_dataset)


class RankingTrainer(OfflineTrainer):
    def collate(self, samples: Sequence[RankedReplies]) -> dict[str, torch.Tensor]:
        prompts = [number for number, one in enumerate(samples) for _ in one.replies]
        return {
            **padded([reply for one in samples for reply in one.replies], self.pad),
            "rewards": torch.tensor([reward for one in samples for reward in one.rewards]),
            "prompts": torch.tensor(prompts),
        }

    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], *_: Any, **__: Any) -> torch.Tensor:
        scores = length_normalized(self.log_probs(model, inputs), inputs["reply"][:, 1:])
        found = rrhf(scores, inputs["rewards"], inputs["prompts"])
        self.measured("ranking_loss", found.ranking)
        self.measured("best_loss", found.best)
        self.measured("ranked_right", found.ranked_right)
        return found.loss


class ALolTrainer(OfflineTrainer):
    def __init__(self, *given: Any, settings: OfflineSettings, **others: Any) -> None:
        self.settings = settings
        super().__init__(*given, **others)

    def collate(self, samples: Sequence[Better]) -> dict[str, torch.Tensor]:
        references = [one.reference for one in samples]
        return {
            **padded([one.reply for one in samples], self.pad),
            "advantages": torch.tensor([one.advantage for one in samples]),
            "reference": torch.nn.utils.rnn.pad_sequence(references, batch_first=True),
        }

    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], *_: Any, **__: Any) -> torch.Tensor:
        log_probs, reference = self.log_probs(model, inputs), inputs["reference"]
        whole = (log_probs - reference).detach().sum(-1)
        self.measured("advantage", inputs["advantages"].mean().item())
        self.measured("log_ratio", whole.mean().item())
        clip, beta = self.settings.clip, self.settings.beta
        clipped = (whole.exp() - 1).abs() > clip
        self.measured("clipped_share", clipped.float().mean().item())
        return a_lol.loss(
            Variant(self.settings.method), log_probs, reference, inputs["advantages"], clip, beta
        )


def samples_of(
    policy: Policy, prompts: Sequence[Prompted], settings: OfflineSettings, device: str = "cpu"
) -> Samples:
    """Return the samples to learn from. A-LoL's reference policy runs on `device`.

    Raises UsageError if nothing is left to learn from.
    """
    most = min(settings.max_length, getattr(policy.model.config, "max_position_embeddings", None) or 1 << 62)
    kept, too_long = [], 0
    for one in prompts:
        replies = [encode(policy.tokenizer, one.messages, reply) for reply in one.replies]
        fits = [len(reply.tokens) <= most for reply in replies]
        too_long += fits.count(False)
        short = [(reply, r) for reply, r, ok in zip(replies, one.rewards, fits, strict=True) if ok]
        if short:
            kept.append(RankedReplies(*zip(*short, strict=True)))
    if not kept:
        raise UsageError(
            f"none of {too_long} replies has at most {most} tokens with its prompt",
            "use a larger --max-length",
        )
    count = settings.steps * settings.batch
    if settings.method == RRHF:
        kept = [one for one in kept if len(set(one.rewards)) > 1]
        _require(bool(kept), "no prompt has replies with different rewards", too_long, most)
        drawn: list[Any] = _shuffled(kept, count, settings.seed)
        return Samples(drawn, sum(len(one.replies) for one in kept), too_long)
    better, advantages = _better(policy, kept, device, autocasts(settings.precision))
    _require(bool(better), "no reply is better than the value of its prompt", too_long, most)
    order = a_lol.drawn(torch.tensor(advantages), count, settings.seed)
    return Samples([better[index] for index in order], len(better), too_long)


def train(
    policy: Policy,
    samples: Samples,
    settings: OfflineSettings,
    out: Path,
    checkpoint: Path | None,
    device: str,
    reporting: dict[str, str],
    callbacks: Sequence[TrainerCallback] = (),
) -> Path:
    """Train and return the folder of the trained policy. Raises StorageError, Diverged."""
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        seed=settings.seed,
        save_steps=settings.save_every,
        save_total_limit=2,
        logging_steps=1,
        remove_unused_columns=False,
        use_cpu=device == "cpu",
        bf16=autocasts(settings.precision),
        disable_tqdm=True,
        **reporting,
    )
    keep_base(policy.model, out)
    listening = [StopAtNaN(), *callbacks]
    trainer: OfflineTrainer
    if settings.method == RRHF:
        trainer = RankingTrainer(policy, samples, arguments, callbacks=listening)
    else:
        trainer = ALolTrainer(policy, samples, arguments, callbacks=listening, settings=settings)
    trainer.remove_callback(PrinterCallback)  # which writes to stdout
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
    return trainer.save_policy()


def _better(
    policy: Policy, kept: Sequence[RankedReplies], device: str, autocast: bool
) -> tuple[list[Better], list[float]]:
    """Return the replies with an advantage above 0, and these advantages."""
    pairs = [(reply, reward) for one in kept for reply, reward in zip(one.replies, one.rewards, strict=True)]
    policy.model.to(device).eval()
    seen = [_by_reference(policy, reply, device, autocast) for reply, _ in pairs]
    rewards = torch.tensor([reward for _, reward in pairs])
    values = a_lol.values(torch.stack([feature for _, feature in seen]), rewards)
    better = [
        Better(reply, advantage, reference)
        for (reply, _), (reference, _), advantage in zip(
            pairs, seen, (rewards - values).tolist(), strict=True
        )
        if advantage > 1e-9
    ]
    return better, [one.advantage for one in better]


def _by_reference(
    policy: Policy, reply: Encoded, device: str, autocast: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (T,) log-probabilities of a reply's tokens, and (D,) last-layer features of the prompt's end."""
    batch = {name: held.to(device) for name, held in padded([reply], 0).items()}
    # In the precision of the training, so that ratios begin at 1.
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=autocast):
        found = policy.model(input_ids=batch["input_ids"], output_hidden_states=True)
    log_probs = token_log_probs(found.logits, batch["input_ids"], batch["reply"])
    return log_probs[0].cpu(), found.hidden_states[-1][0, reply.prompt - 1].float().cpu()


def _shuffled(kept: Sequence[RankedReplies], count: int, seed: int) -> list[RankedReplies]:
    """Return samples in equal numbers, shuffled again for each pass."""
    rng, drawn = random.Random(seed), list[RankedReplies]()
    while len(drawn) < count:
        drawn += rng.sample(kept, len(kept))
    return drawn[:count]


def _require(found: bool, message: str, too_long: int, most: int) -> None:
    if not found:
        long = f" ({too_long} with more than {most} tokens were left out)" if too_long else ""
        raise UsageError(message + long, "give data in which some kernels of a task are faster than others")
