"""A run's folder as `train verl` writes it, verl's configuration of it, and rollouts as verl hands them on."""

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from tensordict import TensorDict
from verl import DataProto

from kernelwright.rl_training.cluster.folder import write
from kernelwright.rl_training.cluster.plan import ClusterPlan
from kernelwright.rl_training.rewards.scheme import SCHEMES
from kernelwright.rl_training.tasks import Tasks
from tests.helpers.rl_training import swish


def written(folder: Path, model: Path, **options: Any) -> Path:
    plan = ClusterPlan.model_validate(
        {
            "model": str(model),
            "tasks": 1,
            "samples": 4,
            "prompt_tokens": 40_000,
            "response_tokens": 2000,
            **options,
        }
    )
    write(
        folder, Tasks((swish.DATA,), (swish.DATA,)), plan, SCHEMES["log-speedup"], "kernelwright train verl …"
    )
    swish.settings(folder)
    return folder


def composed(folder: Path, *more: str) -> DictConfig:
    """verl's configuration with the overrides of launch.sh, as the shell gives them."""
    text = (folder / "launch.sh").read_text()
    script = re.sub(r"\nexec python -m verl.*", '\nprintf "%s\\\\n" "${overrides[@]}"\n', text)
    script = re.sub(r"\npython -m rl_training.*", "", script)
    (folder / "overrides.sh").write_text(script)
    told = subprocess.run(["bash", folder / "overrides.sh"], capture_output=True, text=True, check=True)
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[*told.stdout.splitlines(), *more])


def batch(tokenizer: Any, replies: list[str]) -> DataProto:
    """Rollouts of one task as verl hands them to its reward managers: prompts left, responses right."""
    tokens = [tokenizer.encode(reply) for reply in replies]
    longest = max(map(len, tokens))
    responses = torch.full((len(replies), longest), tokenizer.pad_token_id)
    mask = torch.zeros((len(replies), 2 + longest), dtype=torch.int64)
    for i, some in enumerate(tokens):
        responses[i, : len(some)] = torch.tensor(some)
        mask[i, : 2 + len(some)] = 1
    prompts = torch.zeros((len(replies), 2), dtype=torch.int64)
    rewards = {"style": "rule", "ground_truth": swish.DATA.model_dump_json()}
    return DataProto(
        batch=TensorDict(
            {"prompts": prompts, "responses": responses, "attention_mask": mask}, batch_size=len(replies)
        ),
        non_tensor_batch={
            "data_source": np.array(["kernelwright"] * len(replies), dtype=object),
            "reward_model": np.array([rewards] * len(replies), dtype=object),
            "extra_info": np.array([{"index": 0} for _ in replies], dtype=object),
        },
    )
