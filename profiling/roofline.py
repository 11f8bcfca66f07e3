"""The roofline of a task and how far a candidate is from it (Williams, Waterman, Patterson 2009).

The floor counts what the reference's inputs, weights and outputs weigh, once each, and the FLOPs of its
matrix products and convolutions. It needs no counters, so it is available everywhere. Memory's side of it is
what moving them took in the same rounds as the candidate, where the baseline "traffic" was among them, else
what it takes at the machine's measured bandwidth: on a shared machine that changes from hour to hour.
"""

from kernelbench.records import Evaluation, Target, Work
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
    metrics = (
        Metric(name="minimal_bytes", value=moved, unit="bytes", provenance="roofline"),
        Metric(name="flops", value=work.flops, unit="FLOP", provenance="roofline"),
        Metric(name="memory_floor", value=memory_us, unit="us", provenance="roofline"),
        Metric(name="compute_floor", value=compute_us, unit="us", provenance="roofline"),
        Metric(name="achieved_bandwidth", value=1e6 * moved / time_us, unit="bytes/s", provenance="roofline"),
        Metric(name="bandwidth_share", value=memory_us / time_us, unit="1", provenance="roofline"),
        Metric(name="compute_share", value=compute_us / time_us, unit="1", provenance="roofline"),
    )
    bottleneck: Bottleneck = "memory" if memory_us >= compute_us else "compute"
    if time_us < _OVERHEAD_US:
        bottleneck = "overhead"
    return Profile(metrics=metrics, bottleneck=bottleneck, speed_of_light=floor_us / time_us)
