"""A run of online RL, from its settings to the trained policy.

It is resumed where it was, restored after a collapse, and ended early if nothing is left to learn.
"""

import logging
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig

from kernelwright.kernelbench.errors import UsageError
from kernelwright.rl_training.environment.environment import TrainingEnvironment
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.trainers.arguments import NOT_TRACKED, arguments
from kernelwright.rl_training.trainers.checkpoints import last_good
from kernelwright.rl_training.trainers.collapse import Collapsed, CollapseGuard, HealthLimits, restored
from kernelwright.rl_training.trainers.guards import StopAtNaN
from kernelwright.rl_training.trainers.online import OnlineTrainer
from kernelwright.rl_training.trainers.policy import Policy, keep_base
from kernelwright.rl_training.trainers.processes import from_first, is_first
from kernelwright.rl_training.trainers.settings import OnlineSettings

_log = logging.getLogger(__name__)
_LESS = 0.5  # of the learning rate, after each collapse


@dataclass(frozen=True)
class Finished:
    policy: Path  # its folder
    steps: int  # that were made
    settled: str = ""  # why they are fewer than were asked for


def train(
    load: Callable[[], Policy],
    environment: Callable[[], TrainingEnvironment] | None,
    tasks: Sequence[TaskData],
    settings: OnlineSettings,
    out: Path,
    callbacks: Sequence[Any] = (),
    limits: HealthLimits | None = None,
    reporting: Mapping[str, str] = NOT_TRACKED,
) -> Finished:
    """Train and write the policy, resuming from the last checkpoint in `out`.

    `environment`: in the first process; None in the others, which `torchrun` started beside it.
    After a collapse it resumes from the last checkpoint before that, with half the learning rate, `restores`
    times; if it collapses again, the policy of that checkpoint is written. Raises UsageError, Collapsed,
    Diverged, StorageError.
    """
    if len(tasks) < 1:
        raise UsageError("no task to train on", "give runs or a data set with tasks")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # of rollout_func
    limits = limits or HealthLimits()
    for attempt in range(settings.restores + 1):
        guard = CollapseGuard(limits)
        watching = [StopAtNaN(), guard, _Slower(_LESS**attempt), *callbacks]
        arrange = _arguments(settings, arguments(settings, out, reporting), limits)
        policy = load()
        if is_first():
            keep_base(policy.model, out)
        held = environment() if environment is not None else None
        trainer = OnlineTrainer(
            policy.model, policy.tokenizer, rows(tasks, settings), held, settings, arrange, watching
        )
        trainer.remove_callback(PrinterCallback)
        begun = from_first(lambda: last_good(out))
        if begun is not None:
            trainer.load_from(begun)
        try:
            trainer.train(resume_from_checkpoint=str(begun) if begun is not None else None)
        except Collapsed as collapse:
            kept = from_first(partial(restored, out, collapse.healthy))
            if attempt == settings.restores:
                raise _with_policy(collapse, trainer, kept) from None
            _log.warning("%s; resuming from %s", collapse.message, kept.name if kept else "the start")
            continue
        return Finished(trainer.save_policy(), trainer.state.global_step, guard.settled)
    raise AssertionError("the last attempt returns or raises")


def rows(tasks: Sequence[TaskData], settings: OnlineSettings) -> Dataset:
    """Return a row for each group, in the order of training: the tasks in turn, reshuffled for each pass."""
    rng = random.Random(settings.seed)
    groups = settings.steps * settings.batch // settings.group
    order: list[TaskData] = []
    while len(order) < groups:
        order += rng.sample(list(tasks), len(tasks))
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": data.task.id}], "task": data.task.id, "draw": draw}
            for draw, data in enumerate(order[:groups])
        ]
    )


def _with_policy(collapse: Collapsed, trainer: OnlineTrainer, kept: Path | None) -> Collapsed:
    """Write the last policy before a collapse, if a checkpoint has it, and name it in the error."""
    if kept is None:
        return Collapsed(f"{collapse.message}; there is no checkpoint from before that", collapse.healthy)
    trainer._load_from_checkpoint(str(kept))
    written = trainer.save_policy()
    return Collapsed(f"{collapse.message}; {written} is the policy of {kept.name}", collapse.healthy)


def _arguments(settings: OnlineSettings, common: Mapping[str, Any], limits: HealthLimits) -> GRPOConfig:
    # A collapse shows after `patience` batches, and the last checkpoint from before it must still be there.
    steps = limits.patience * settings.updates_per_batch
    checkpoints = max(common["save_total_limit"], math.ceil(steps / settings.save_every) + 1)
    loss: dict[str, Any] = {"loss_type": settings.loss, "importance_sampling_level": "token"}
    if settings.loss == "gspo":
        loss = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    chosen = {
        "epsilon": settings.clip_low,
        "epsilon_high": settings.clip_high,
        "vllm_gpu_memory_utilization": settings.vllm_memory,
        "vllm_tensor_parallel_size": settings.vllm_tensor_parallel,
        "vllm_max_model_length": settings.vllm_max_length,
        "vllm_server_base_url": settings.vllm_url,
    }
    return GRPOConfig(
        **{**common, "save_total_limit": checkpoints},
        **loss,
        **{name: value for name, value in chosen.items() if value is not None},
        num_generations=settings.group,
        generation_batch_size=settings.batch,
        max_completion_length=settings.max_completion,
        temperature=settings.temperature,
        top_p=settings.top_p,
        beta=settings.kl,
        entropy_coef=settings.entropy,
        num_iterations=settings.updates_per_batch,
        scale_rewards="none",  # advantages are our own
        shuffle_dataset=False,
        use_vllm=settings.vllm != "none",
        vllm_mode=settings.vllm if settings.vllm != "none" else "colocate",
        vllm_enable_sleep_mode=settings.vllm_sleep,
        remove_unused_columns=False,
        lr_scheduler_type="constant",
    )


class _Slower(TrainerCallback):
    """Callback that lowers the learning rates restored from a checkpoint after a collapse."""

    def __init__(self, share: float) -> None:
        self._share = share

    def on_train_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, lr_scheduler: Any = None, **_: Any
    ) -> None:
        lr_scheduler.base_lrs = [args.learning_rate * self._share for _ in lr_scheduler.base_lrs]
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = args.learning_rate * self._share
