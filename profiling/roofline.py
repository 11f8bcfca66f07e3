"""The roofline of a task and how far a candidate is from it (Williams, Waterman, Patterson 2009).

The floor counts what the reference's inputs, weights and outputs weigh, once each, and the FLOPs of its
matrix products and convolutions. It needs no counters, so it is available everywhere. Memory's side of it is
what moving them took in the same rounds as the candidate, where the baseline "traffic" was among them, else
what it takes at the machine's measured bandwidth: on a shared machine that changes from hour to hour.
"""

from kernelbench.records import Evaluation, Target, Work
from profiling.catalogue import metric
from profiling.records import Bottleneck, Metric, Profile

_OVERHEAD_US = 50.0  # below this, launching and dispatching weigh as much as the work


def roofline(work: Work, target: Target, evaluation: Evaluation) -> Profile | None:
    """The profile of a timed candidate; None where there is no timing."""
    if evaluation.timing is None:
        return None
    time_us = evaluation.timing.candidate_us.median
    moved = work.input_bytes + work.weight_bytes + work.output_bytes
    beside = evaluation.timing.traffic_us
    memory_us = beside.median if beside is not None else 1e6 * moved / target.ceilings.copy_bytes_s
    compute_us = 1e6 * work.flops / target.ceilings.fp32_flops_s
    floor_us = max(memory_us, compute_us)
    metrics: tuple[Metric, ...] = (
        metric("minimal_bytes", moved),
        metric("flops", work.flops),
        metric("memory_floor", memory_us),
        metric("compute_floor", compute_us),
        metric("achieved_bandwidth", 1e6 * moved / time_us),
        metric("bandwidth_share", memory_us / time_us),
        metric("compute_share", compute_us / time_us),
    )
    if (own := evaluation.own_kernel_share) is not None:
        metrics += (metric("own_kernel_share", own),)
    bottleneck: Bottleneck = "memory" if memory_us >= compute_us else "compute"
    if time_us < _OVERHEAD_US:
        bottleneck = "overhead"
    return Profile(metrics=metrics, bottleneck=bottleneck, speed_of_light=floor_us / time_us)
