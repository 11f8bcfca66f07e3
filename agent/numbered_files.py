"""Files that somebody who calls tools has had evaluated, by their numbers.

The number of a file is its place among a task's attempts. A model that calls tools and a coding agent are
told the same of it.
"""

from collections.abc import Sequence
from dataclasses import replace

from kernelwright.agent.llm.prompting import outcome
from kernelwright.agent.protocols import Attempt, ProfilingEvaluator, Recorder
from kernelwright.agent.search import best_of
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.profiling.tables import described


def known_number(candidate: Candidate, timed: bool, tried: Sequence[Attempt]) -> int | None:
    """Return the number under which a file was evaluated so, or so that more would tell no more."""
    for number, attempt in reversed(list(enumerate(tried))):
        if attempt.candidate.sha256 == candidate.sha256 and not (timed and attempt.evaluation.only_checked):
            return number
    return None


def is_right(attempt: Attempt) -> bool:
    """Return True if the outputs of a file are right, timed or not."""
    return attempt.evaluation.right or attempt.evaluation.only_checked


def best_number(tried: Sequence[Attempt]) -> int | None:
    """Return the number of the fastest correct file; None if there is none."""
    best = best_of(tried)
    return next((number for number, attempt in enumerate(tried) if attempt is best), None)


def told(tried: Sequence[Attempt], number: int) -> str:
    """Return what is told of a file."""
    attempt, best = tried[number], best_number(tried)
    if attempt.evaluation.only_checked:
        found = attempt.evaluation.correctness
        error = f"; the largest error is {found.error:.2g} of the budget" if found and found.error else ""
        return f"File {number}. It is right{error}. Not timed: measure it."
    text = f"File {number}. {outcome(attempt)}"
    if best is None or best == number:
        return text
    speedup = tried[best].evaluation.speedup
    how = f", {speedup.eager.median:.3g} times as fast as eager" if speedup and speedup.eager else ""
    return f"{text}\nThe best so far is file {best}{how}."


def profiled_closely(
    task: Task, number: int, attempt: Attempt, evaluator: ProfilingEvaluator, recorder: Recorder
) -> Attempt:
    """Return a timed attempt with all that the profilers read of it, which is recorded."""
    profile = evaluator.profile(task, attempt.candidate, attempt.evaluation, attempt.profile, closely=True)
    if profile is None or profile == attempt.profile:
        return attempt
    attempt = replace(attempt, profile=profile)
    recorder.profile(task, number, attempt)
    return attempt


def profile_told(number: int, attempt: Attempt) -> str:
    """Return the metrics of a timed file, and why some profilers read nothing."""
    lines = [f"File {number}. {outcome(attempt)}"]
    if (profile := attempt.profile) is not None:
        lines += ["", "Metrics:", *(f"- {line}" for line in described(profile.metrics))]
        lines += [f"({rung.name} reads nothing: {rung.why})" for rung in profile.rungs if not rung.on]
    return "\n".join(lines)
