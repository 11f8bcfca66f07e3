"""Evaluations with the profiles that a search goes by."""

from functools import partial

from kernelbench.evaluator import EvaluationPool, Evaluator
from kernelbench.records import Candidate, Evaluation, Task
from profiling import ladder
from profiling.records import Profile
from profiling.rung import Subject


class ProfilingPool(EvaluationPool):
    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile | None:
        """Of what was timed: the roofline, and what can be read in less than a second."""
        if evaluation.timing is None:
            return None
        take = partial(_profile, task=task, candidate=candidate, evaluation=evaluation)
        return self.ask(task, take, task.id).result()


def _profile(evaluator: Evaluator, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile:
    return ladder.profile(Subject(evaluator, task, candidate, evaluation), ladder.QUICK)
