"""Attempts of a task: those profiled closely before a judge advises on them, and one that comes again."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kernelwright.agent.protocols import Attempt, ProfilingEvaluator, Recorder
from kernelwright.agent.search import Request, Search, Stop
from kernelwright.kernelbench.records import Candidate, Evaluation, Stages, Task


def next_step(
    task: Task, tried: list[Attempt], search: Search, evaluator: ProfilingEvaluator, recorder: Recorder
) -> Sequence[Request] | Stop:
    """Return the search's next step; what it has a judge advise on is profiled closely before.

    The profiles are extended in `tried` and in the record. Raises what `Search.step` does.
    """
    for attempt in search.advised_on(task, tried):
        number = next(i for i, other in enumerate(tried) if other is attempt)
        candidate, evaluation, known = attempt.candidate, attempt.evaluation, attempt.profile
        profile = evaluator.profile(task, candidate, evaluation, known, closely=True)
        if profile != known:
            tried[number] = replace(attempt, profile=profile)
            recorder.profile(task, number, tried[number])
    return search.step(task, tried)


def repeated(candidate: Candidate, tried: Iterable[Attempt]) -> Evaluation | None:
    """Return the evaluation of a candidate that was tried before, with stages of zero seconds."""
    same = [a.evaluation for a in tried if a.candidate.sha256 == candidate.sha256]
    return same[0].model_copy(update={"stages": Stages()}) if same else None
