"""The builtin coder's own search on a task, as `kernelwright run` makes it: its schedules, its judge."""

from kernelwright.agent.builtin.codegen.backend import Language
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.advise import RulesJudge
from kernelwright.kernelbench.records import Candidate
from kernelwright.rl_training.demo.wide.tasks import WideTask
from kernelwright.rl_training.demo.wide.trial import WideTrial
from kernelwright.rl_training.environment.grader import Pool


def searched(task: WideTask, pool: Pool, language: Language, rounds: int) -> list[Candidate]:
    """Return the candidates of a search in order, at most `rounds`: it ends where nothing is worth a try.

    The reference itself is not among its candidates, for it is what is returned where none is faster.
    """
    coder = BuiltinCoder(lambda _: task.space.graph, language)
    judge = RulesJudge(rounds=None)
    history: list[Attempt] = []
    while len(history) < rounds:
        advice = judge.advise(task.task, history) if history else None
        if history and (advice is None or advice.schedule.get("kernels") == "none"):
            break
        made = coder.propose(task.task, history, advice)
        evaluation = WideTrial(pool).once(task, made).result()
        history.append(Attempt(made, evaluation, pool.profile(task.task, made, evaluation), advice))
    return [attempt.candidate for attempt in history]
