"""Evaluation of a candidate at every size of a task, and what the results come to together.

Of a task of two sizes, one called nine times as often as the other:

    weight   candidate        eager          speedup
    9        10 µs            30 µs          3.0 [2.9, 3.1]
    1        30 µs            30 µs          1.0 [0.9, 1.1]
    both     120 / 10 µs      300 / 10 µs    300 / 120 = 2.5 [2.42, 2.58]

The speedup is that of all calls: eager's time by the weights over the candidate's. As eager's time at a size
counts the candidate's times the speedup, for these two were timed in turn, and their ratio is known better
than either. So it is the mean of the sizes' speedups, weighted by the candidate's time at each: here by 90
and 30 µs.

Sizes are timed apart, in processes of their own, so their errors are independent, and those of a speedup of
that of the time beside it. On a log scale each is as large as the interval's end is far from the median, and
adds by its share of the sum, in squares, for the lower and the upper end. For one size that is its interval.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator.protocol import Measurement
from kernelwright.kernelbench.records import (
    Candidate,
    Correctness,
    Evaluation,
    Interval,
    Size,
    SizeResult,
    Speedup,
    Stages,
    Task,
    Timing,
    Verdict,
)

HIDDEN = "a hidden size"  # all that a coder is told of one
_Weighted = Sequence[tuple[float, Interval]]


def at_every_size(
    evaluate: Callable[[Task, Candidate, Measurement], Evaluation],
    task: Task,
    candidate: Candidate,
    measurement: Measurement,
) -> Evaluation:
    """Return the evaluation of a candidate at all sizes of a task, or up to the first where it fails.

    `evaluate` is asked about tasks of one size. `to_beat` is a speedup of all sizes together, so that none of
    them ends early by it. Raises TaskError, about the size where the reference fails.
    """
    found: list[Evaluation] = []
    for size in task.workload:
        how = replace(measurement, to_beat=None, operators=measurement.operators and not found)
        try:
            found.append(evaluate(task.at(size), candidate, how))
        except TaskError as error:
            raise TaskError(f"at {size}: {error.message}", error.fix) from error
        if not found[-1].right or found[-1].verdict is not found[0].verdict:
            break
    return combined(task, found)


def combined(task: Task, found: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluation of all sizes together, of those at each in the order of the workload.

    It may be shown to a coder but for `sizes`: what is said of a hidden size does not tell its shapes.
    """
    sizes = task.workload[: len(found)]
    first, last = found[0], found[-1]
    passed = len(found) == len(task.workload) and last.right and last.verdict is first.verdict
    unknown = [e.own_kernel_share_unknown for s, e in zip(sizes, found, strict=True) if not s.hidden]
    timed = [each.timing for each in found if each.timing is not None]
    times = _timing(sizes, timed) if passed and len(timed) == len(found) else None
    return last.model_copy(
        update={
            "reason": _right(found) if passed else _wrong(sizes[-1], last),
            "correctness": worst(found),
            "timing": times,
            "speedup": _speedup(sizes, found) if times is not None else None,
            "own_kernel_share": _own_share(sizes, found),
            "own_kernel_share_unknown": next(filter(None, unknown), ""),
            "needs_default_dtype": _any(each.needs_default_dtype for each in found),
            "launched": tuple(sorted({kernel for each in found for kernel in each.launched})),
            "builds": first.builds,
            "operators": first.operators,
            "stages": total(found),
            "sizes": tuple(
                SizeResult(
                    size=size,
                    verdict=each.verdict,
                    reason=each.reason,
                    timing=each.timing,
                    speedup=each.speedup,
                )
                for size, each in zip(sizes, found, strict=True)
            ),
        }
    )


def mean(terms: _Weighted) -> Interval:
    """Return the mean of independent quantities by weight; see the module for its interval."""
    weight = math.fsum(weight for weight, _ in terms)
    total = math.fsum(weight * each.median for weight, each in terms)
    return _spread(total / weight, [(weight * each.median / total, each) for weight, each in terms])


def speedup_of_all(times: _Weighted, speedups: Sequence[Interval]) -> Interval:
    """Return the speedup of all calls, of the candidate's weighted times and its speedup at each size."""
    total = math.fsum(weight * time.median for weight, time in times)
    shares = [weight * time.median / total for weight, time in times]
    all_calls = math.fsum(share * each.median for share, each in zip(shares, speedups, strict=True))
    errors: list[tuple[float, Interval]] = []
    for share, (_, time), each in zip(shares, times, speedups, strict=True):
        errors.append((share * each.median / all_calls, each))
        errors.append((share * (each.median / all_calls - 1), time))  # its share of all would be another
    return _spread(all_calls, errors)


def _spread(median: float, errors: Iterable[tuple[float, Interval]]) -> Interval:
    """Return the interval around a median that relative errors reach by these factors."""
    downs, ups = [0.0], [0.0]
    for factor, each in errors:
        below, above = math.log(each.median / each.low), math.log(each.high / each.median)
        downs.append(factor * (below if factor > 0 else above))
        ups.append(factor * (above if factor > 0 else below))
    return Interval(
        median=median, low=median * math.exp(-math.hypot(*downs)), high=median * math.exp(math.hypot(*ups))
    )


def worst(found: Sequence[Evaluation]) -> Correctness | None:
    """Return the largest error of several evaluations of a candidate, of all inputs that were tried."""
    known = [each.correctness for each in found if each.correctness is not None]
    if not known:
        return None
    largest = max(known, key=lambda each: each.error or 0.0)
    return largest.model_copy(update={"inputs_tried": sum(each.inputs_tried for each in known)})


def total(found: Sequence[Evaluation]) -> Stages:
    """Return the seconds of several evaluations, stage by stage."""
    names = Stages.model_fields
    return Stages(**{name: round(sum(getattr(each.stages, name) for each in found), 4) for name in names})


def _right(found: Sequence[Evaluation]) -> str:
    if found[0].verdict is not Verdict.correct:
        return f"{found[0].reason}, at all {len(found)} sizes"
    tried = sum(each.correctness.inputs_tried for each in found if each.correctness is not None)
    busy = any(each.timing is not None and each.timing.busy for each in found)
    but = "; timed on a busy machine: every round was disturbed" if busy else ""
    return f"{tried} inputs within the error budget at all {len(found)} sizes{but}"


def _wrong(size: Size, found: Evaluation) -> str:
    if size.hidden:
        return f"{found.verdict.replace('_', ' ')} at {HIDDEN}: the file has to be right at any size"
    return f"at {size}: {found.reason}"


def _timing(sizes: Sequence[Size], times: Sequence[Timing]) -> Timing:
    """Return the time of a call in the mean, and how often it was timed in all."""
    first = times[0]
    same = _same_code(times)
    candidate = [(size.weight, each.candidate_us) for size, each in zip(sizes, times, strict=True)]

    def of(name: str) -> Interval | None:
        known = [] if name in same else [_of_baseline(each, each, name, "_us") for each in times]
        return _mean_of_known(sizes, known)

    return Timing(
        candidate_us=mean(candidate),
        eager_us=of("eager"),
        compile_us=of("compile"),
        max_autotune_us=of("max-autotune"),
        cuda_graphs_us=of("cuda-graphs"),
        traffic_us=of("traffic"),
        floor_us=_weighted(sizes, [each.floor_us for each in times]),
        calls_per_block=first.calls_per_block,
        rounds=sum(each.rounds for each in times),
        processes=sum(each.processes for each in times),
        disturbed=sum(each.disturbed for each in times),
        busy=any(each.busy for each in times),
        alone_factor=max(each.alone_factor for each in times),
        compile_s=_summed(each.compile_s for each in times),
        failed_baselines={
            name: f"at {HIDDEN}" if size.hidden else f"at {size}: {why}"
            for size, each in zip(sizes, times, strict=True)
            for name, why in each.failed_baselines.items()
        },
        same_code=same,
        device_us=_weighted(sizes, [each.device_us for each in times]),
        clocks_differ=first.clocks_differ,
        clocks=first.clocks,
    )


def _speedup(sizes: Sequence[Size], found: Sequence[Evaluation]) -> Speedup | None:
    pairs = [(e.timing, e.speedup) for e in found if e.timing is not None and e.speedup is not None]
    if len(pairs) < len(found):
        return None
    times = [(size.weight, timing.candidate_us) for size, (timing, _) in zip(sizes, pairs, strict=True)]
    same = _same_code([timing for timing, _ in pairs])

    def over(name: str) -> Interval | None:
        known = [found for pair in pairs if name not in same and (found := _of_baseline(*pair, name))]
        return speedup_of_all(times, known) if len(known) == len(pairs) else None

    return Speedup(
        eager=over("eager"),
        compile=over("compile"),
        max_autotune=over("max-autotune"),
        cuda_graphs=over("cuda-graphs"),
        fastest=over("fastest"),
    )


def _same_code(times: Sequence[Timing]) -> dict[str, str]:
    """Return the baselines that are the same code as another at every size."""
    return dict(set.intersection(*(set(each.same_code.items()) for each in times)))


def _of_baseline(timing: Timing, record: Timing | Speedup, name: str, suffix: str = "") -> Interval | None:
    """Return what a record has of a baseline, or of the one that is the same code at this size."""
    found: Interval | None = getattr(record, timing.same_code.get(name, name).replace("-", "_") + suffix)
    return found


def _mean_of_known(sizes: Sequence[Size], times: Sequence[Interval | None]) -> Interval | None:
    known = [(size.weight, each) for size, each in zip(sizes, times, strict=False) if each is not None]
    return mean(known) if len(known) == len(sizes) else None


def _weighted(sizes: Sequence[Size], values: Sequence[float | None]) -> float | None:
    known = [(size.weight, each) for size, each in zip(sizes, values, strict=True) if each is not None]
    if len(known) < len(sizes):
        return None
    return math.fsum(w * v for w, v in known) / math.fsum(w for w, _ in known)


def _own_share(sizes: Sequence[Size], found: Sequence[Evaluation]) -> float | None:
    """Return the share of all calls' time that is spent in the candidate's own kernels, if it is known."""
    spent = [
        (size.weight * each.timing.candidate_us.median, each.own_kernel_share)
        for size, each in zip(sizes, found, strict=True)
        if each.timing is not None and each.own_kernel_share is not None
    ]
    if len(spent) < len(found):
        return None
    return math.fsum(time * share for time, share in spent) / math.fsum(time for time, _ in spent)


def _any(known: Iterable[bool | None]) -> bool | None:
    found = [each for each in known if each is not None]
    return any(found) if found else None


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    together: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            together[name] = together.get(name, 0.0) + value
    return together
