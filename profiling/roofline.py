"""The roofline of a task and how far a candidate is from it (Williams, Waterman, Patterson 2009).

The floor counts the bytes of the reference's inputs, weights and outputs, once each, and the FLOPs of its
matrix products and convolutions. It needs no counters, so it is available everywhere. Memory's floor is the
time of the baseline "traffic" in the candidate's own rounds where it was run, else the bytes over the
machine's measured bandwidth: on a shared machine that changes from hour to hour. A rate that could not be
measured leaves its side of the floor unknown.
"""

from kernelwright.kernelbench.records import Evaluation, Target, Work
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Bottleneck, Metric, Profile

_OVERHEAD_US = 50.0  # below this, launching and dispatching weigh as much as the work


def roofline(work: Work, target: Target, evaluation: Evaluation) -> Profile | None:
    """Return the profile of a timed candidate; None if it was not timed."""
    if evaluation.timing is None:
        return None
    time_us = evaluation.timing.candidate_us.median
    moved = work.input_bytes + work.weight_bytes + work.output_bytes
    beside, ceilings = evaluation.timing.traffic_us, target.ceilings
    memory_us = beside.median if beside is not None else _floor_us(moved, ceilings.copy_bytes_s)
    compute_us = _floor_us(work.flops, ceilings.fp32_flops_s)
    metrics: tuple[Metric, ...] = (
        metric("minimal_bytes", moved),
        metric("flops", work.flops),
        metric("achieved_bandwidth", 1e6 * moved / time_us),
    )
    if memory_us is not None:
        metrics += (metric("memory_floor", memory_us), metric("bandwidth_share", memory_us / time_us))
    if compute_us is not None:
        metrics += (metric("compute_floor", compute_us), metric("compute_share", compute_us / time_us))
    if (own := evaluation.own_kernel_share) is not None:
        metrics += (metric("own_kernel_share", own),)
    bottleneck: Bottleneck = "unknown"
    light = None
    if memory_us is not None and compute_us is not None:
        bottleneck = "memory" if memory_us >= compute_us else "compute"
        light = max(memory_us, compute_us) / time_us
    if time_us < _OVERHEAD_US:
        bottleneck = "overhead"
    return Profile(metrics=metrics, bottleneck=bottleneck, speed_of_light=light)


def _floor_us(amount: float, rate: float | None) -> float | None:
    """Return the least time for an amount of bytes or FLOPs; None if the rate is unknown."""
    if not amount:
        return 0.0
    return None if rate is None else 1e6 * amount / rate


def in_words(profile: Profile) -> str:
    """Describe how near a candidate is to its roofline; empty if unknown.

    A time below the floor is no achievement: it means that the floor was measured wrongly.
    """
    light = profile.speed_of_light
    if light is None:
        return ""
    if light <= 1.005:
        return f"{light:.0%} of what the roofline allows"
    why = (
        "the peak was measured too low, or it computes less or in a faster precision"
        if profile.bottleneck == "compute"
        else "the bandwidth was measured too low, or the data lay in the cache"
    )
    return f"{light:.2f} times faster than the roofline's floor: {why}"
