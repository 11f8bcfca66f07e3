"""Gold check of an environment: the stored winner must score full marks, the reference nothing.

The reference is submitted in three ways: unchanged; renamed to ModelNew; and renamed, with a kernel beside it
that is never called.
"""

from kernelwright.agent.builtin.frontend.reference import renamed
from kernelwright.agent.llm.coder import asked_for
from kernelwright.kernelbench.records import Language, Record
from kernelwright.rl_training.environment.grader import GradedReply, Grader
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.outcome import Outcome
from kernelwright.rl_training.rewards.reward_input import RewardInput

# Kernels that nobody calls, so that a file has some of its own.
_DISGUISE: dict[Language, str] = {
    "cpp": "from kernelwright import jit\nKERNEL = jit.compile_cpp('extern \"C\" void f() {}')\n",
    "cuda": "from kernelwright import jit\n"
    "KERNEL = jit.compile_cuda('extern \"C\" __global__ void f() {}')\n",
    "triton": "import triton\n\n\n@triton.jit\ndef kernel(x):\n    pass\n\n\n",
    "torch": "",
}


class GoldCheck(Record):
    """Result of a gold check. `problems`: descriptions of what is wrong; empty if nothing is."""

    task: str
    winner: Outcome | None  # None: the task has none
    winner_reward: float | None
    reference_rewards: dict[str, float | None]
    nothing: float | None  # what a file that does not build earns
    problems: tuple[str, ...]


def gold_check(grader: Grader, data: TaskData) -> GoldCheck:
    """Run the gold check of a task."""
    nothing = grader.scheme(RewardInput(_wrong(grader, data).outcome, "")).value
    problems = []
    winner = _judged(grader, data, data.winner.candidate.source) if data.winner is not None else None
    if winner is not None and data.winner is not None:
        problems += _of_winner(winner, data.winner.speedup.low, nothing)
    source = renamed(data.task.source)
    tried = {
        "as it stands": _judged(grader, data, data.task.source),
        "renamed": _judged(grader, data, source),
        "disguised": _judged(grader, data, _DISGUISE[data.language] + source),
    }
    for how, judged in tried.items():
        reward = judged.reward.value
        if judged.outcome.kind == "infrastructure":
            problems.append(f"the reference, {how}, has no verdict: {judged.outcome.reason}")
        elif reward is not None and nothing is not None and reward > nothing:
            problems.append(f"the reference, {how}, earns {reward:.3g}, a wrong file {nothing:.3g}")
    return GoldCheck(
        task=data.task.id,
        winner=winner.outcome if winner is not None else None,
        winner_reward=winner.reward.value if winner is not None else None,
        reference_rewards={how: judged.reward.value for how, judged in tried.items()},
        nothing=nothing,
        problems=tuple(problems),
    )


def _of_winner(winner: GradedReply, stored_low: float, nothing: float | None) -> list[str]:
    speedup = winner.outcome.speedup.eager if winner.outcome.speedup is not None else None
    if winner.outcome.kind != "correct" or speedup is None:
        return [f"the winner is {winner.outcome.verdict or winner.outcome.kind}: {winner.outcome.reason}"]
    problems = []
    if speedup.high < stored_low:
        problems.append(
            f"the winner's speedup is at most {speedup.high:.3g}, and was at least {stored_low:.3g}"
        )
    value = winner.reward.value
    if value is None or (nothing is not None and value <= nothing):
        problems.append("the winner earns no more than a wrong file")
    return problems


def _wrong(grader: Grader, data: TaskData) -> GradedReply:
    return _judged(grader, data, "")


def _judged(grader: Grader, data: TaskData, source: str) -> GradedReply:
    asked = asked_for(data.situation, data.language, (), None)
    return grader.begin(data, asked, f"```python\n{source}\n```\n").result()
