"""The agent loop as verl makes it from agent_loop.yaml, over the real evaluator; replies are scripted. No Ray."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl")

import hydra
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.utils import hf_tokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset

from kernelwright.rl_training.cluster import hosts
from kernelwright.rl_training.cluster.folder import write
from kernelwright.rl_training.cluster.host import EvaluationHost
from kernelwright.rl_training.cluster.plan import ClusterPlan
from kernelwright.rl_training.cluster.scored import NoVerdict
from kernelwright.rl_training.rewards.scheme import SCHEMES
from kernelwright.rl_training.tasks import Tasks
from tests.helpers.rl_training import swish, verl_model
from tests.helpers.rl_training.scripted import Scripted

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}


@pytest.fixture(scope="module")
def host() -> Iterator[EvaluationHost]:
    made = EvaluationHost(swish.evaluation())
    yield made
    made.close()


@pytest.fixture
def walked(host: EvaluationHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """What a rollout gives verl, with these replies."""
    monkeypatch.setattr(hosts._Here, "_host", host)
    monkeypatch.syspath_prepend(str(tmp_path / "verl"))
    monkeypatch.delitem(sys.modules, "agent_loop", raising=False)
    model = verl_model.save(tmp_path / "model")
    tokenizer = hf_tokenizer(str(model))

    def walk(
        replies: list[str], greedy: str = "", sampling: dict[str, Any] = SAMPLING, **options: Any
    ) -> list[dict[str, Any]]:
        plan = ClusterPlan.model_validate({"model": str(model), "tasks": 1, **options})
        write(
            tmp_path / "verl",
            Tasks((swish.DATA,), ()),
            plan,
            SCHEMES["log-speedup"],
            "kernelwright train verl …",
        )
        swish.settings(tmp_path / "verl")
        lengths = [
            f"data.max_prompt_length={plan.prompt_tokens}",
            f"data.max_response_length={plan.response_tokens}",
        ]
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=[*lengths, "actor_rollout_ref.rollout.name=vllm"])
        (made,) = OmegaConf.load(tmp_path / "verl" / "agent_loop.yaml")
        client = Scripted(tokenizer, [replies], greedy)

        async def run() -> list[Any]:
            loop = hydra.utils.instantiate(
                config=made,
                trainer_config=DictConfigWrap(config),
                server_manager=client,
                tokenizer=tokenizer,
                processor=None,
                hf_model_type="qwen2",
                dataset_cls=RLHFDataset,
                data_config=DictConfigWrap(config.data),
                tools=None,
            )
            task = {"style": "rule", "ground_truth": swish.DATA.model_dump_json()}
            found: list[Any] = await loop.run(sampling, reward_model=task, raw_prompt=[])
            return found

        outputs = asyncio.run(run())
        return [
            {**output.as_dict(), "prompt": tokenizer.decode(output.prompt_ids), "output": output}
            for output in outputs
        ]

    return walk


def test_each_turn_is_a_sample_with_its_own_prompt_and_credit(walked) -> None:  # type: ignore[no-untyped-def]
    first, second = walked([swish.BROKEN, swish.RIGHT], algorithm="rloo", turns=2, prompt_tokens=40_000)
    assert "Result: build_error" in second["prompt"] and "Result: build_error" not in first["prompt"]
    earned = second["rm_scores"].sum().item()
    assert earned >= 0.3 and earned == pytest.approx(second["rm_scores"][-1].item())
    assert first["rm_scores"].sum().item() == pytest.approx(0.4 * earned)
    for turn in (first, second):
        assert len(turn["responses"]) == len(turn["response_mask"]) == len(turn["rollout_log_probs"])
        assert turn["response_mask"].min() == 1
        assert turn["extra_fields"]["max_global_steps"] == 0  # what staleness is counted by
        assert turn["output"].num_turns == 4
    keys = [set(turn["extra_fields"]["reward_extra_info"]) for turn in (first, second)]
    assert keys[0] == keys[1]


def test_verl_s_overwriting_of_rewards_does_not_change_credits(walked) -> None:  # type: ignore[no-untyped-def]
    """As AgentLoopWorkerTQ does with all outputs but the last."""
    first, second = walked([swish.BROKEN, swish.RIGHT], algorithm="rloo", turns=2, prompt_tokens=40_000)
    first["output"].reward_score = second["output"].reward_score
    assert first["output"].as_dict()["rm_scores"].sum().item() == pytest.approx(
        0.4 * second["rm_scores"].sum().item()
    )


def test_remax_takes_off_what_a_greedy_reply_earns(walked) -> None:  # type: ignore[no-untyped-def]
    options = {"algorithm": "remax", "prompt_tokens": 40_000}
    (better,) = walked([swish.WRONG], greedy=swish.RIGHT, **options)
    assert better["rm_scores"].sum().item() <= -0.3
    assert better["extra_fields"]["reward_extra_info"]["score"] == 0.0


def test_validation_has_nothing_taken_off(walked) -> None:  # type: ignore[no-untyped-def]
    greedy = {**SAMPLING, "temperature": 0}
    (only,) = walked([], greedy=swish.RIGHT, sampling=greedy, algorithm="remax", prompt_tokens=40_000)
    assert only["rm_scores"].sum().item() >= 0.3


def test_a_prompt_that_is_too_long_ends_the_rollout(walked) -> None:  # type: ignore[no-untyped-def]
    """The first one has some 3900 bytes, which are tokens here; the second one holds the file that was written."""
    (first,) = walked([swish.RIGHT], algorithm="rloo", turns=2, prompt_tokens=4100)
    assert first["rm_scores"].sum().item() >= 0.3


def test_a_first_prompt_that_is_too_long_is_no_reward(walked) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NoVerdict, match="the first prompt is too long"):
        walked([swish.RIGHT], algorithm="rloo", turns=2, prompt_tokens=500)
