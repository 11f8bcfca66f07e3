"""Evaluations with the profiles that a search goes by."""

from functools import partial

from kernelwright.kernelbench.evaluator import EvaluationPool, LocalEvaluator
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.profiling import ladder
from kernelwright.profiling.counters.time_shares import TimeShares
from kernelwright.profiling.emulated.emulation import Emulation
from kernelwright.profiling.records import Profile
from kernelwright.profiling.rung import Subject

_ALL = 0.95  # of the time in its own kernels, above which one kernel has all of it


class ProfilingPool(EvaluationPool):
    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile | None:
        """Profile a timed candidate: the roofline, and all that takes about a second."""
        if evaluation.timing is None:
            return None
        take = partial(_profile, task=task, candidate=candidate, evaluation=evaluation)
        return self.ask(task, take, task.id).result()


def _profile(evaluator: LocalEvaluator, task: Task, candidate: Candidate, evaluation: Evaluation) -> Profile:
    alone = len(candidate.kernels) == 1 and (evaluation.own_kernel_share or 0.0) > _ALL
    rungs = ladder.QUICK if alone else (*ladder.QUICK, TimeShares())
    if evaluator.emulating is not None:  # which has built it already
        rungs = (*rungs, Emulation())
    return ladder.profile(Subject(evaluator, task, candidate, evaluation), rungs)
