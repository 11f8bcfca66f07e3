"""verl's Ray reward loop and agent loop workers over an evaluation host in Ray: all of verl's trainer "v1" that
comes before a GPU is needed. Replies are scripted, for a rollout engine needs one.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl")

import ray
from omegaconf import DictConfig, OmegaConf

from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.rl_training.cluster import hosts
from tests.helpers.rl_training import swish, verl_model
from tests.helpers.rl_training.scripted import Scripted
from tests.helpers.rl_training.verl_runs import batch, composed, written

pytestmark = pytest.mark.timeout(1500)
ONE_OF_EACH = (
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "reward.num_workers=1",
    "data.dataloader_num_workers=0",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "algorithm.rollout_correction.bypass_mode=True",  # the actor's probabilities are the engine's: there is no actor
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return verl_model.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Two turns, three samples, RLOO."""
    made = tmp_path_factory.mktemp("verl") / "folder"
    return written(made, model, algorithm="rloo", turns=2, samples=3)


@pytest.fixture(scope="module")
def config(folder: Path) -> DictConfig:
    made = composed(folder, *ONE_OF_EACH, f"+data.cache_dir={folder.parent}")
    made.transfer_queue.enable = True
    OmegaConf.resolve(made)
    return made


@pytest.fixture(scope="module", autouse=True)
def cluster(folder: Path) -> Iterator[None]:
    root = Path(__file__).parents[2]  # of `tests`, whose helpers Ray's workers import
    paths = [str(folder), str(root), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "RAY_raylet_start_wait_time_s", "300"
        )  # Ray's own limits are too short for a busy machine
        patch.setenv("RAY_agent_register_timeout_ms", "300000")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", ":".join(filter(None, paths)))
        ray.init(num_cpus=2, resources={hosts.RESOURCE: 1}, include_dashboard=False, log_to_driver=False)
        yield
        hosts._actors.clear()
        ray.shutdown()


@pytest.fixture(scope="module")
def rewards(config: DictConfig) -> Any:
    from verl.experimental.reward_loop import RewardLoopManager

    return RewardLoopManager(config)


def test_the_reward_loop_pays_what_the_host_measured(rewards: Any, model: Path) -> None:
    from verl.utils import hf_tokenizer

    data = batch(hf_tokenizer(str(model)), [swish.RIGHT, swish.WRONG])
    found = rewards.compute_rm_score(data)
    right, wrong = found.batch["rm_scores"].sum(1).tolist()
    assert right >= 0.3 and wrong == 0.0
    assert found.non_tensor_batch["correct"].tolist() == [1.0, 0.0]
    ends = data.batch["attention_mask"][:, 2:].sum(1) - 1
    assert found.batch["rm_scores"][0, ends[0]].item() == pytest.approx(right)  # at the last token


def test_no_verdict_crosses_the_reward_loop_as_an_exception(rewards: Any, model: Path) -> None:
    from verl.utils import hf_tokenizer

    data = batch(hf_tokenizer(str(model)), [swish.RIGHT])
    broken = swish.TASK.model_copy(update={"source": "def get_inputs(): return []"})
    task = swish.DATA.model_copy(update={"task": broken}).model_dump_json()
    data.non_tensor_batch["reward_model"][0] = {"style": "rule", "ground_truth": task}
    with pytest.raises(ray.exceptions.RayTaskError, match="NoVerdict"):
        rewards.compute_rm_score(data)


def test_turns_of_rollouts_reach_the_trainer_with_their_advantages(config: DictConfig, rewards: Any) -> None:
    """Of three rollouts one has no verdict: the others are its task's group, each turn with its own advantage."""
    import transfer_queue
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls

    transfer_queue.init(config.transfer_queue)
    try:
        trainer = get_trainer_cls("sync")(config)
        trainer._init_tokenizer()
        trainer._init_dataloader()
        replies = [[swish.BROKEN, swish.RIGHT], [swish.WRONG, swish.BROKEN], []]
        trainer.agent_loop_manager = AgentLoopManagerTQ.create(
            config=config,
            llm_client=Scripted(trainer.tokenizer, replies),
            teacher_client=None,
            reward_loop_worker_handles=rewards.reward_loop_worker_handles,
        )
        trainer.global_steps = 1
        trainer._add_batch_to_generate()
        taken, _ = trainer.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=1)
        taken = trainer._compute_advantage(trainer._compute_old_log_prob(taken, {}), {})
        fields = ["advantages", "rm_scores", "extra_fields"]
        data = transfer_queue.kv_batch_get(keys=taken.keys, partition_id="train", select_fields=fields)
    finally:
        transfer_queue.close()
    assert len(taken.keys) == 4 and len({key.rsplit("_", 2)[0] for key in taken.keys}) == 1
    earned = [scores.sum().item() for scores in data["rm_scores"].unbind()]
    best = max(earned)
    assert best >= 0.3
    assert sorted(earned) == pytest.approx([0.0, 0.0, 0.4 * best, best])
    for one, advantages in zip(earned, data["advantages"].unbind(), strict=True):
        others = (sum(earned) - one) / 3
        assert advantages[0].item() == pytest.approx(one - others, abs=1e-5)
        assert advantages[-1].item() == pytest.approx(one - others, abs=1e-5)


def test_without_an_evaluation_machine_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    with pytest.raises(
        MissingPrerequisite, match=r"no node of the Ray cluster offers kernelwright_evaluation — start"
    ):
        hosts.count()
