"""SFT: prompts with target completions, through TRL's SFTTrainer.

Rows have `prompt` and `completion` as conversations, perhaps a `reasoning` that led there; the loss is on the
completion only, including its reasoning if that is to be learned.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from kernelwright.kernelbench.errors import UsageError
from kernelwright.rl_training.trainers.arguments import NOT_TRACKED, arguments
from kernelwright.rl_training.trainers.checkpoints import WholeCheckpoints, last_good
from kernelwright.rl_training.trainers.guards import StopAtNaN
from kernelwright.rl_training.trainers.policy import Policy, keep_base
from kernelwright.rl_training.trainers.processes import from_first, is_first
from kernelwright.rl_training.trainers.settings import Reasoning, SftSettings


class SupervisedTrainer(WholeCheckpoints, SFTTrainer):
    """Trainer of TRL with whole checkpoints."""


def train(
    policy: Policy,
    rows: Sequence[dict[str, Any]],
    settings: SftSettings,
    out: Path,
    callbacks: Sequence[Any] = (),
    reporting: Mapping[str, str] = NOT_TRACKED,
) -> Path:
    """Train and return the folder of the policy, resuming from the last checkpoint in `out`.

    Raises UsageError, Diverged.
    """
    kept = _short_enough(
        policy, conversations(policy.tokenizer, rows, settings.reasoning), settings.max_length
    )
    if is_first():
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
    begun = from_first(lambda: last_good(out))
    trainer.train(resume_from_checkpoint=str(begun) if begun is not None else None)
    return trainer.save_policy()


def has_place_for_reasoning(tokenizer: Any) -> bool:
    """Return True if the chat template shows the `reasoning_content` of a reply, as most name it."""
    said = {"role": "assistant", "content": "Here it is.", "reasoning_content": "First of all"}
    asked = {"role": "user", "content": "Write one."}
    return "First of all" in str(tokenizer.apply_chat_template([asked, said], tokenize=False))


def conversations(
    tokenizer: Any, rows: Sequence[dict[str, Any]], reasoning: Reasoning
) -> list[dict[str, Any]]:
    """Return `prompt` and `completion` of each row. Raises UsageError if there is no place for reasoning."""
    thinks = reasoning == "think" and any(row.get("reasoning") for row in rows)
    if thinks and not has_place_for_reasoning(tokenizer):
        raise UsageError(
            "the model's chat template has no place for the samples' reasoning (reasoning_content)",
            "use --reasoning drop, or a model that reasons",
        )
    if not thinks:
        return [{"prompt": row["prompt"], "completion": row["completion"]} for row in rows]
    return [
        {
            "prompt": row["prompt"],
            "completion": [{**row["completion"][0], "reasoning_content": row.get("reasoning") or ""}],
        }
        for row in rows
    ]


def _short_enough(policy: Policy, rows: Sequence[dict[str, Any]], most: int) -> Dataset:
    length: Callable[[dict[str, Any]], int] = lambda row: len(  # noqa: E731
        policy.tokenizer.apply_chat_template(
            [*row["prompt"], *row["completion"]], tokenize=True, return_dict=True
        )["input_ids"]
    )
    kept = [row for row in rows if length(row) <= most]
    if not kept:
        raise UsageError(
            f"none of {len(rows)} samples has at most {most} tokens" if rows else "no sample to learn from",
            "use a larger --max-length" if rows else "curate runs that have correct kernels",
        )
    return Dataset.from_list(kept)
