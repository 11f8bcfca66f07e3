"""Settings as transformers' trainers take them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.trainers.settings import TrainingSettings

NOT_TRACKED: Mapping[str, str] = {"report_to": "none"}


def arguments(settings: TrainingSettings, out: Path, reporting: Mapping[str, str]) -> dict[str, Any]:
    """Of any `TrainingArguments`. `reporting`: as trackers have it."""
    return {
        **reporting,
        "output_dir": str(out),
        "max_steps": settings.steps,
        "learning_rate": settings.learning_rate,
        "per_device_train_batch_size": settings.micro_batch,
        "gradient_accumulation_steps": settings.batch // settings.micro_batch,
        "seed": settings.seed,
        "use_cpu": settings.cpu,
        "bf16": settings.dtype == "bfloat16" and not settings.cpu,
        "fp16": False,
        "optim": settings.optimizer,
        "deepspeed": settings.deepspeed,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "max_grad_norm": settings.max_grad_norm,
        "save_strategy": "steps",
        "save_steps": settings.save_every,
        "save_total_limit": 3,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
    }
