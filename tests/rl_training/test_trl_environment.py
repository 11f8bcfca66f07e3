"""The environment for TRL's GRPOTrainer, with TRL."""

import math
from pathlib import Path

import pytest

from tests.helpers.rl_training import tiny_policy
from tests.helpers.rl_training.packaged import written
from tests.helpers.rl_training.served import FilePool, file, served

TASK = "builtin:level1/relu"
pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore::UserWarning")]


def test_grpo_trainer_takes_its_tools_and_its_reward(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from trl.chat_template_utils import qwen3_chat_template

    model = tiny_policy.save(tmp_path / "model", qwen3_chat_template)
    rows = [{"prompt": [{"role": "user", "content": "Write."}], "answer": TASK, "info": {"level": 1}}] * 2
    arguments = trl.GRPOConfig(
        str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, num_generations=2,
        max_completion_length=4, use_cpu=True, bf16=False, report_to=[], disable_tqdm=True,
        gradient_checkpointing=False, logging_steps=1,
    )  # fmt: skip
    with (
        served(tmp_path / "requests.db", FilePool()) as address,
        written(tmp_path / "environment", address, turns=2) as package,
    ):
        factory = package.module("trl_environment").TRLEnvironment
        trainer = trl.GRPOTrainer(
            str(model), args=arguments, train_dataset=Dataset.from_list(rows), environment_factory=factory
        )
        assert [tool.__name__ for tool in trainer.tools] == ["submit_kernel"]
        trainer.train()  # the policy submits nothing, which is a reply without a file
        logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
        assert logged["reward"] == logged["rewards/TRLEnvironment/mean"] == 0.0

        environments = [factory() for _ in range(4)]
        for environment in environments:
            assert "submit_kernel" in environment.reset(**rows[0])
        right, wrong, dies, _ = environments
        assert "times as fast as PyTorch" in right.submit_kernel(file(2.0))
        assert "it is wrong" in wrong.submit_kernel(file(1.0, "wrong"))
        assert "correct" in wrong.submit_kernel(file(2.0))  # two turns: this is the last
        assert "no verdict" in dies.submit_kernel(file(1.0, "dies"))
        trainer.environments = environments
        rewards = trainer._calculate_rewards(rows * 2, [[]] * 4, [[]] * 4, [[]] * 4)[:, 0].tolist()
    assert rewards[0] > 2 and rewards[1] == pytest.approx(0.4 * rewards[0])
    assert math.isnan(rewards[2]) and rewards[3] == 0.0  # TRL leaves out what is NaN
