"""What `train verl` writes, in verl itself: its configuration, data, reward managers and estimators. No GPU, no Ray.

Skipped where verl is not installed, as in the project's own environment; `make test-verl` runs them.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl")

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.reward import load_reward_manager
from verl.trainer.ppo.utils import create_rl_dataset, need_critic, need_reference_policy
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils import hf_tokenizer
from verl.utils.config import omega_conf_to_dataclass, validate_config

from kernelwright.rl_training.cluster import hosts
from kernelwright.rl_training.cluster.host import EvaluationHost
from kernelwright.rl_training.cluster.scored import NoVerdict
from tests.helpers.rl_training import swish, verl_model
from tests.helpers.rl_training.verl_runs import batch, composed, written

PLANS = {
    "grpo": {"algorithm": "grpo"},
    "rloo": {"algorithm": "rloo"},
    "remax": {"algorithm": "remax"},
    "dapo": {"algorithm": "dapo"},
    "grpo, three turns": {"algorithm": "grpo", "turns": 3},
    "dapo, partial rollouts, two turns": {"algorithm": "dapo", "partial_rollouts": True, "turns": 2},
    "remax, partial rollouts": {"algorithm": "remax", "partial_rollouts": True, "staleness": 1},
    "rloo, fully asynchronous": {
        "algorithm": "rloo",
        "fully_async": True,
        "staleness": 3,
        "rollout_nodes": 2,
    },
    "dapo, fully asynchronous, sglang": {"algorithm": "dapo", "fully_async": True, "engine": "sglang"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return verl_model.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def host() -> Iterator[EvaluationHost]:
    made = EvaluationHost(swish.evaluation())
    yield made
    made.close()


@pytest.mark.parametrize("name", PLANS)
def test_verl_accepts_the_configuration(name: str, tmp_path: Path, model: Path) -> None:
    """As far as main_ppo gets before it needs a GPU: composed, validated, made into dataclasses, a trainer begun."""
    config = composed(written(tmp_path / "verl", model, **PLANS[name]))
    validate_config(config, need_reference_policy(config), need_critic(config))
    omega_conf_to_dataclass(config.algorithm)
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    environment = OmegaConf.merge(
        get_ppo_ray_runtime_env(config), config.ray_kwargs.ray_init.runtime_env
    ).env_vars
    assert str(tmp_path / "verl") in environment.PYTHONPATH.split(":")
    assert ("VERL_USE_EXTERNAL_MODULES" in environment) == ("remax" in name)
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    assert not trainer.use_critic and not trainer.use_reference_policy
    buffer = trainer.replay_buffer
    assert buffer.filter_groups_metric == ("reward" if "dapo" in name else None)
    if "asynchronous" in name or "partial" in name:
        lag = PLANS[name].get("staleness", 2)
        assert (buffer.max_off_policy_threshold, buffer.max_off_policy_strategy) == (lag + 1, "drop")
    else:
        assert buffer.sync_refill_failed_groups


def test_verl_loads_the_data(tmp_path: Path, model: Path) -> None:
    config = composed(written(tmp_path / "verl", model, algorithm="grpo"), f"+data.cache_dir={tmp_path}")
    data = create_rl_dataset(config.data.train_files, config.data, hf_tokenizer(str(model)), None)
    assert len(data) == 1  # the prompt is short enough
    row = data[0]
    assert row["data_source"] == "kernelwright" and row["index"] == 0
    assert "torch.sigmoid(x) * x + 1.0" in row["raw_prompt"][-1]["content"]
    assert row["reward_model"]["ground_truth"] == swish.DATA.model_dump_json()


def test_verl_knows_our_estimator_where_the_environment_names_it() -> None:
    script = "from verl.trainer.ppo.core_algos import get_adv_estimator_fn as of; of('kernelwright_remax')"
    for modules, status in (("kernelwright.rl_training.cluster.estimators", 0), ("", 1)):
        environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": modules}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
        assert done.returncode == status, done.stderr.decode()


@pytest.fixture
def managed(host: EvaluationHost, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """What a reward manager of verl's makes of replies."""
    monkeypatch.setattr(hosts._Here, "_host", host)

    def managed_by(algorithm: str, replies: list[str], *more: str) -> list[dict[str, Any]]:
        config = composed(written(tmp_path / "verl", model, algorithm=algorithm), *more)
        tokenizer = hf_tokenizer(str(model))
        manager = load_reward_manager(config, tokenizer)
        data = batch(tokenizer, replies)
        loop = asyncio.get_event_loop()
        return [loop.run_until_complete(manager.run_single(data[i : i + 1])) for i in range(len(replies))]

    return managed_by


def test_the_naive_reward_manager_pays_what_was_measured(managed) -> None:  # type: ignore[no-untyped-def]
    right, wrong = managed("grpo", [swish.RIGHT, swish.WRONG])
    assert right["reward_score"] >= 0.3 and right["reward_extra_info"]["speedup"] > 0
    assert wrong["reward_score"] == 0.0
    assert set(right["reward_extra_info"]) == set(wrong["reward_extra_info"])


def test_dapo_s_reward_manager_takes_off_for_what_is_overlong(managed) -> None:  # type: ignore[no-untyped-def]
    """2000 tokens at most, the last 400 of which cost up to 1; a token is a byte here."""
    long = "x" * (1900 - len(swish.WRONG.encode())) + "\n" + swish.WRONG
    long, short = managed("dapo", [long, swish.WRONG])
    assert long["reward_score"] == pytest.approx(-301 / 400)
    assert short["reward_score"] == 0.0


def test_no_verdict_is_an_exception_for_verl(
    managed, host: EvaluationHost, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(host._grader, "patience_s", 0.0)
    with pytest.raises(NoVerdict):
        managed("grpo", [swish.reply("x[i] / (1 + std::exp(-x[i])) + 1.0f")])


def test_estimators_on_rewards_that_were_measured(managed) -> None:  # type: ignore[no-untyped-def]
    """One right file, two wrong ones, of one task; and one that is alone of its task."""
    import kernelwright.rl_training.cluster.estimators  # noqa: F401 - registers

    found = managed("rloo", [swish.RIGHT, swish.WRONG, swish.BROKEN])
    r = found[0]["reward_score"]
    scores = [*(one["reward_score"] for one in found), r]
    assert scores[1:3] == [0.0, 0.0]
    index = np.array(["a", "a", "a", "alone"], dtype=object)
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]])
    rewards = torch.zeros(4, 2)
    rewards[torch.arange(4), mask.sum(1) - 1] = torch.tensor(scores)

    def first(name: str) -> list[float]:
        arguments = {
            "token_level_rewards": rewards.clone(),
            "response_mask": mask,
            "index": index,
            "config": None,
        }
        advantages, _ = get_adv_estimator_fn(name)(**arguments)
        assert advantages[1, 1] == 0  # beyond the reply
        return advantages[:, 0].tolist()

    deviation = r / 3**0.5  # of r, 0, 0
    expected = [(r - r / 3) / deviation, -r / 3 / deviation, -r / 3 / deviation]
    assert first("grpo")[:3] == pytest.approx(expected, abs=1e-4)
    assert first("grpo_vectorized")[:3] == pytest.approx(expected, abs=1e-4)
    assert first("rloo_vectorized") == pytest.approx([r, -r / 2, -r / 2, 0.0])
    assert first("kernelwright_remax") == pytest.approx(scores)  # the loop has taken the baseline off
