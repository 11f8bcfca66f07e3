"""A training of a tiny policy (tiny_policy.py) that takes a second: sequences of random tokens by heart."""

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from kernelwright.rl_training.trainers.checkpoints import WholeCheckpoints
from kernelwright.rl_training.trainers.policy import load_policy


class Learning(WholeCheckpoints, Trainer):
    """Of sequences of random tokens."""


class Interrupt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def learning(model: Path, out: Path, *callbacks: TrainerCallback, steps: int = 6, **others: Any) -> Learning:
    policy = load_policy(str(model))
    tokens = torch.randint(0, 256, (7, 12), generator=torch.Generator().manual_seed(1))
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        save_steps=2,
        save_total_limit=2,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        use_cpu=True,
        disable_tqdm=True,
        **{"report_to": "none"} | others,
    )
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    return Learning(
        policy.model,
        arguments,
        train_dataset=rows,
        processing_class=policy.tokenizer,
        callbacks=list(callbacks),
    )


def weights(model: Any) -> torch.Tensor:
    found = load_policy(str(model)).model if isinstance(model, Path) else model
    return torch.cat([w.detach().flatten() for w in found.parameters()])
