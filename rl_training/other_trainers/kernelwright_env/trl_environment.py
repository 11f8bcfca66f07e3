"""Environment for TRL's GRPOTrainer: the policy submits its kernels by a tool, and is told what came of them.

    from datasets import load_dataset
    from kernelwright_env.trl_environment import TRLEnvironment
    data = load_dataset("json", data_files="kernelwright_env/tasks/train.jsonl", split="train")
    GRPOTrainer(model, args=config, train_dataset=data, environment_factory=TRLEnvironment)

The model's chat template must know tools. Without a verdict the reward is None: TRL leaves the reply out of
its group, with the advantage 0.
"""

from typing import Any

from .client import ServedRollout, UnknownRewardError
from .settings import connect, settings

_USE = (
    "\n\nHand in the whole Python file with the tool submit_kernel; you may do so {turns} times,"
    " and are told what came of each."
)


class TRLEnvironment:
    """One task, of as many submissions as `settings.json` has turns; its reward is that of the rollout."""

    def __init__(self) -> None:
        self._rollout: ServedRollout | None = None
        self._task, self._no_verdict = "", ""

    def reset(self, answer: str, **_: Any) -> str:
        """Begin a row of the data."""
        self._rollout, self._task, self._no_verdict = None, answer, ""
        return _USE.format(turns=settings().turns)

    def submit_kernel(self, code: str) -> str:
        """
        Evaluate a kernel: build it, verify its outputs, and time it against PyTorch.

        Args:
            code: The whole Python file, which defines ModelNew.

        Returns:
            What came of it, and what to do next.
        """
        try:
            rollout = self._answered(f"```python\n{code}\n```\n")
        except UnknownRewardError as error:
            self._no_verdict = str(error)
            return "There is no verdict. Stop here."
        turn = rollout.turns[-1]
        if turn.verdict is None:
            return f"There is no verdict: {turn.reason}. Stop here."
        said = f"{turn.verdict}: {turn.reason}" if turn.reason else f"{turn.verdict}"
        if turn.speedup is not None:
            said += f", {turn.speedup:.3g} times as fast as PyTorch"
        return said if rollout.ended else f"{said}\n\n{rollout.feedback}"

    def get_reward(self) -> float | None:
        """Return the reward of the rollout; None without a verdict.

        A turn without a submitted file is graded as a reply without one.
        """
        try:
            while not self._no_verdict and (self._rollout is None or not self._rollout.ended):
                self._answered(" ")
            return None if self._no_verdict or self._rollout is None else self._rollout.total
        except UnknownRewardError:
            return None

    def _answered(self, reply: str) -> ServedRollout:
        """Return the state after a reply. Raises UnknownRewardError, RefusedError."""
        client = connect()
        if self._rollout is None:
            self._rollout = client.begin(self._task, settings().turns)
        if not self._rollout.ended:
            self._rollout = client.answer(self._rollout, reply)
        return self._rollout
