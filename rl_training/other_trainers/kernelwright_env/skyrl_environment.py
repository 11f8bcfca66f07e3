"""Environment for SkyRL (skyrl-gym), of several turns as `settings.json` says.

    from skyrl_gym.envs import register
    register(id="kernelwright", entry_point="kernelwright_env.skyrl_environment:SkyRLEnvironment")

Rows need `env_class` and `reward_spec`: `rows_for_skyrl` has them. Each turn has its own reward. Without a
verdict `step` raises: SkyRL has no value for it, ends, and goes on from its checkpoint; it never learns from
a 0.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from .settings import connect, rows, settings


class SkyRLEnvironment(BaseTextEnv):
    """One task. `extras`: the row, with the task in `reward_spec`."""

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.max_turns = settings().turns
        self._client = connect()
        self._rollout = self._client.begin((extras or {})["reward_spec"]["ground_truth"], self.max_turns)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Return the outcome of a reply. Raises UnknownRewardError, RefusedError."""
        self.turns += 1
        self._rollout = self._client.answer(self._rollout, action)
        turn = self._rollout.turns[-1]
        reward, feedback = turn.known, self._rollout.feedback
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": feedback}] if feedback else [],
            reward=reward,
            done=bool(self._rollout.ended),
            metadata={"verdict": turn.verdict, **turn.numbers},
        )

    def get_metrics(self) -> dict[str, Any]:
        return dict(self._rollout.turns[-1].numbers) if self._rollout.turns else {}


def rows_for_skyrl(split: str = "train") -> Iterator[dict[str, Any]]:
    """Yield the rows of a split as SkyRL's data sets have them."""
    for row in rows(split):
        yield {
            "data_source": "kernelwright",
            "prompt": row.prompt,
            "env_class": "kernelwright",
            "reward_spec": {"method": "rule", "ground_truth": row.answer},
            "extra_info": row.info,
        }
