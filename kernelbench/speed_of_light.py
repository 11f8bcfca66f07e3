"""The speed-of-light score: how much of the way from eager's time to the roofline's floor a kernel has gone.

Eager takes T_ref = 80 µs, and the floor is T_sol = 20 µs. A kernel of

    80 µs   scores 0.50    as fast as eager
    50 µs          0.67
    20 µs          1.00    as fast as the machine allows
   200 µs          0.25
    19 µs          1.00    below the floor by no more than noise
    15 µs          none    the floor is wrong, or the kernel computes less: nothing may rest on it

The floor is that of the roofline (Williams, Waterman, Patterson 2009): the bytes of the reference's inputs,
weights and outputs, once each, or the FLOPs of its matrix products and convolutions, each at the ceiling that
was measured for its operands' precision on this machine; whichever takes longer. Of a task of several sizes
T, T_sol and T_ref are means over its calls, by the sizes' weights.
"""

from collections.abc import Callable

from kernelwright.kernelbench.records import Ceilings, Evaluation, Interval, SizeResult, Verdict, Work

BEYOND = 1.05  # share of a ceiling, from which it was measured too low; below, noise of both may explain it
EAGER = 0.5  # score of eager


def floor_us(work: Work, ceilings: Ceilings, traffic: Interval | None = None) -> float | None:
    """Return the least time of a call, in µs; None if a ceiling that it needs was not measured."""
    memory, compute = floors_us(work, ceilings, traffic)
    return None if memory is None or compute is None else max(memory, compute)


def floors_us(
    work: Work, ceilings: Ceilings, traffic: Interval | None = None
) -> tuple[float | None, float | None]:
    """Return the least µs of moving the data, and of the products; None for what was not measured.

    `traffic`: time of the baseline of that name beside the candidate, which says what memory allowed just
    then. On a shared machine that changes from hour to hour.
    """
    copy_s, products_s = work.copy_s(ceilings), work.products_s(ceilings)
    copy_us = None if copy_s is None else 1e6 * copy_s
    return (
        traffic.median if traffic is not None else copy_us,
        None if products_s is None else 1e6 * products_s,
    )


def speed_of_light_score(time_us: float, floor_us: float, reference_us: float) -> float | None:
    """Return 1 / (1 + (T - T_sol) / (T_ref - T_sol)), which is 0.5 for the reference and 1 for the floor.

    The score of SOL-ExecBench (NVIDIA 2026, github.com/NVIDIA/SOL-ExecBench), whose T_sol is an analytical
    bound. None for a time below the floor by more than noise, and for a reference at the floor, which leaves
    nothing to gain.
    """
    if floor_us > BEYOND * time_us or reference_us <= floor_us:
        return None
    return 1 / (1 + max(0.0, time_us - floor_us) / (reference_us - floor_us))


def score_of(result: Evaluation | SizeResult) -> float | None:
    """Return the score of a correct candidate against eager; None if it was not timed, or has none.

    T_ref is T times the speedup over eager, which is better known than either time: the two are timed in
    turn. So a kernel scores above 0.5 where it is faster than eager.
    """
    return _score(result, lambda speedup: speedup.median)


def lowest_score(result: Evaluation | SizeResult) -> float | None:
    """Return the score at the lower bound of the speedup over eager; None where there is none."""
    return _score(result, lambda speedup: speedup.low)


def _score(result: Evaluation | SizeResult, bound: Callable[[Interval], float]) -> float | None:
    share, eager = trusted_share(result), _over_eager(result)
    if share is None or eager is None:
        return None
    # In units of T: the floor is `share`, and eager takes its speedup.
    return speed_of_light_score(eager.median / bound(eager), share, eager.median)


def share_of_light(result: Evaluation | SizeResult) -> float | None:
    """Return T_sol / T, whose inverse is the most that is left to gain; above 1 for a time below the floor.

    None for what is not correct or was not timed, and where the floor is not known.
    """
    timing = result.timing
    if result.verdict is not Verdict.correct or timing is None or timing.floor_us is None:
        return None
    return timing.floor_us / timing.candidate_us.median


def trusted_share(result: Evaluation | SizeResult) -> float | None:
    """Return `share_of_light`; None of a time that is below the floor by more than noise."""
    share = share_of_light(result)
    return None if share is None or share > BEYOND else share


def below_floor(result: Evaluation | SizeResult) -> bool:
    """Return True if a correct candidate is faster than its floor by more than noise."""
    share = share_of_light(result)
    return share is not None and share > BEYOND


def _over_eager(result: Evaluation | SizeResult) -> Interval | None:
    return result.speedup.eager if result.speedup is not None else None


def score_in_words(result: Evaluation | SizeResult) -> str:
    """Describe the score and what is left to gain, in a phrase; empty if the floor is not known."""
    share, score = share_of_light(result), score_of(result)
    if not share:
        return ""
    if share > BEYOND:
        return f"none: {share:.2f} times faster than the floor, so a ceiling is wrong or less was computed"
    eager = "was not timed" if _over_eager(result) is None else "is at the floor"
    said = f"none, for eager {eager}" if score is None else f"{score:.2f}"
    return f"{said}; {left_in_words(result)}"


def left_in_words(result: Evaluation | SizeResult) -> str:
    """Say how much faster than a correct candidate a kernel can be; empty if the floor is not known."""
    share = trusted_share(result)
    return f"at most {max(1.0, 1 / share):.2f} times faster is left" if share else ""
