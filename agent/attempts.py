"""Steps of a search: what is profiled closely before it, how candidates are written, and one that repeats."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kernelwright.agent.abandonable_pool import abandonable_pool
from kernelwright.agent.protocols import Attempt, Coder, ProfilingEvaluator, Recorder
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


def written(
    coders: Mapping[str, Coder],
    task: Task,
    tried: Sequence[Attempt],
    requests: Sequence[Request],
    spent: Callable[[], str | None],
) -> Generator[tuple[Request, Callable[[], Candidate]]]:
    """Yield each request with what gives its candidate; several candidates are written side by side.

    Ends early once anything is `spent`. Where a model fails, what others wrote has been kept with its answer,
    for when the run goes on.
    """
    writing = [
        partial(coders[r.coder].propose, task, tried[: r.seen], r.advice, r.sample, r.afresh)
        for r in requests
    ]
    if len(requests) == 1:
        yield requests[0], writing[0]
        return
    with abandonable_pool(max(1, len(requests)), "coder") as executor:
        futures = [executor.submit(write) for write in writing]
        for request, candidate in zip(requests, futures, strict=True):
            if spent() is not None:
                return  # the next step says so
            yield request, candidate.result


def repeated(candidate: Candidate, tried: Iterable[Attempt]) -> Evaluation | None:
    """Return the evaluation of a candidate that was tried before, with stages of zero seconds."""
    same = [a.evaluation for a in tried if a.candidate.sha256 == candidate.sha256]
    return same[0].model_copy(update={"stages": Stages()}) if same else None
