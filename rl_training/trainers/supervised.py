"""SFT: prompts with the completions that a policy is to give, through TRL's SFTTrainer.

Rows have `prompt` and `completion` as conversations; the loss is on the completion alone.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from kernelbench.errors import UsageError
from rl_training.trainers.arguments import NOT_TRACKED, arguments
from rl_training.trainers.checkpoints import WholeCheckpoints, last_good
from rl_training.trainers.guards import StopAtNaN
from rl_training.trainers.policy import Policy, keep_base
from rl_training.trainers.settings import SftSettings


class SupervisedTrainer(WholeCheckpoints, SFTTrainer):
    """TRL's, with checkpoints that are whole."""


def train(
    policy: Policy,
    rows: Sequence[dict[str, Any]],
    settings: SftSettings,
    out: Path,
    callbacks: Sequence[Any] = (),
    reporting: Mapping[str, str] = NOT_TRACKED,
) -> Path:
    """The folder of the trained policy. Goes on from the last checkpoint in `out`. Raises UsageError,
    Diverged.
    """
    kept = _short_enough(policy, rows, settings.max_length)
    keep_base(policy.model, out)
    config = SFTConfig(
        **arguments(settings, out, reporting),
        completion_only_loss=True,
        max_length=None,
        packing=False,
        lr_scheduler_type=settings.schedule,
        warmup_steps=round(settings.warmup_share * settings.steps),
    )
    trainer = SupervisedTrainer(
        model=policy.model,
        args=config,
        train_dataset=kept,
        processing_class=policy.tokenizer,
        callbacks=[StopAtNaN(), *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    begun = last_good(out)
    trainer.train(resume_from_checkpoint=str(begun) if begun is not None else None)
    return trainer.save_policy()


def _short_enough(policy: Policy, rows: Sequence[dict[str, Any]], most: int) -> Dataset:
    length: Callable[[dict[str, Any]], int] = lambda row: len(  # noqa: E731
        policy.tokenizer.apply_chat_template(
            [*row["prompt"], *row["completion"]], tokenize=True, return_dict=True
        )["input_ids"]
    )
    kept = [{"prompt": row["prompt"], "completion": row["completion"]} for row in rows if length(row) <= most]
    if not kept:
        raise UsageError(
            f"none of {len(rows)} samples has at most {most} tokens"
            if rows
            else "there is no sample to learn from",
            "give --max-length more" if rows else "curate runs that have correct kernels",
        )
    return Dataset.from_list(kept)
