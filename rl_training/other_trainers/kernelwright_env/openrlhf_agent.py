"""Agent for OpenRLHF's --agent_func_path, of several turns, as a file; `settings.json` has their number.

    --agent_func_path $(python -c 'import kernelwright_env.openrlhf_agent as m; print(m.__file__)')

Each turn adds its own reward; OpenRLHF sums them without a discount. Without a verdict `step` raises, which
ends the rollout without a reward.
"""

from typing import Any

import torch
from kernelwright_env.client import ServedRollout
from kernelwright_env.settings import connect, settings
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    """One task. `feedback`: the text between turns, which depends on the model's chat template."""

    feedback = "\n\n{text}\n\n"

    def __init__(self) -> None:
        self._rollout: ServedRollout | None = None

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        client = connect()
        self._rollout = await client.apart(client.begin, states["label"], settings().turns)
        return {"observation": states["observation"]}

    async def step(self, state_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Return the outcome of a reply. Raises UnknownRewardError, RefusedError."""
        client = connect()
        assert self._rollout is not None
        self._rollout = await client.apart(client.answer, self._rollout, state_dict["action_text"])
        turn = self._rollout.turns[-1]
        return {
            "rewards": torch.tensor(turn.known),
            "scores": torch.tensor(turn.numbers["correct"]),
            "environment_feedback": self.feedback.format(text=self._rollout.feedback),
            "done": bool(self._rollout.ended),
            "sampling_params": state_dict.get("sampling_params"),
            "extra_logs": {name: torch.tensor(value) for name, value in turn.numbers.items()},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """Executor that OpenRLHF looks for in the file."""

    def __init__(self) -> None:
        super().__init__(AgentInstance)
