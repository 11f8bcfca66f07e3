"""The roofline of a task and how far a candidate is from it (Williams, Waterman, Patterson 2009).

The floor counts the bytes of the reference's inputs, weights and outputs, once each, and the FLOPs of its
matrix products and convolutions, each at the ceiling of its operands' precision. It needs no counters, so it
is available everywhere. Memory's floor is the time of the baseline "traffic" in the candidate's own rounds
where it was run, else the bytes over the machine's measured bandwidth: on a shared machine that changes from
hour to hour. A rate that could not be measured leaves its side of the floor unknown.

A product of two bf16 matrices of 4096 rows and columns, on a GPU that copies 3.35 TB/s and multiplies 989
TFLOP/s in bf16, and that takes 200 µs:

    memory      3 * 2 * 4096**2 bytes = 101 MB     30 µs
    compute     2 * 4096**3 FLOP = 137 GFLOP      139 µs    the floor, so compute is the bottleneck
    speed of light 139 / 200 = 0.69, a share of "bf16 products"
"""

from kernelwright.kernelbench.records import Ceilings, Evaluation, Target, Work
from kernelwright.kernelbench.speed_of_light import floors_us
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Bottleneck, Metric, Profile

# Time of a call, in µs, below which launching and dispatching weigh as much as the work, and what each launch
# after the first adds. Chosen by hand: on a CPU a torch operator and a parallel region take a few µs each,
# waking threads up to tens. On a GPU a kernel of 2.9 µs took 9.6 µs where the host waited for it and 3.8 µs
# where it went on (A. Gray, "Getting Started with CUDA Graphs", NVIDIA 2019); torch's own part is a few µs.
_OVERHEAD_US = {"cpu": 50.0, "cuda": 5.0}
_LAUNCH_US = {"cpu": 0.0, "cuda": 2.0}


def overhead_us(device: str, launches: float = 1) -> float:
    """Return the time of a call of so many launches on "cpu" or "cuda:0", below which it is all overhead."""
    kind = device.partition(":")[0]
    return _OVERHEAD_US[kind] + max(0.0, launches - 1) * _LAUNCH_US[kind]


def roofline(work: Work, target: Target, evaluation: Evaluation) -> Profile | None:
    """Return the profile of a timed candidate; None if it was not timed."""
    if evaluation.timing is None:
        return None
    time_us = evaluation.timing.candidate_us.median
    memory_us, compute_us = floors_us(work, target.ceilings, evaluation.timing.traffic_us)
    metrics: tuple[Metric, ...] = (
        metric("minimal_bytes", work.moved_bytes),
        metric("flops", work.flops),
        metric("achieved_bandwidth", 1e6 * work.moved_bytes / time_us),
    )
    if memory_us is not None:
        metrics += (metric("memory_floor", memory_us), metric("bandwidth_share", memory_us / time_us))
    if compute_us is not None:
        metrics += (metric("compute_floor", compute_us), metric("compute_share", compute_us / time_us))
    if (own := evaluation.own_kernel_share) is not None:
        metrics += (metric("own_kernel_share", own),)
    bottleneck: Bottleneck = "unknown"
    light, ceiling = None, ""
    if memory_us is not None and compute_us is not None:
        bottleneck = "memory" if memory_us >= compute_us else "compute"
        light = max(memory_us, compute_us) / time_us
        ceiling = "memory bandwidth" if bottleneck == "memory" else products_in_words(work, target.ceilings)
    if time_us < overhead_us(target.device):
        bottleneck = "overhead"
    return Profile(metrics=metrics, bottleneck=bottleneck, speed_of_light=light, ceiling=ceiling)


def with_floor(evaluation: Evaluation, profile: Profile | None) -> Evaluation:
    """Return the evaluation with its floor, which in older databases stands in the profile alone.

    A profile is of the first size: of a task of several sizes the floor stays unknown.
    """
    timing, light = evaluation.timing, profile.speed_of_light if profile is not None else None
    if timing is None or timing.floor_us is not None or light is None or evaluation.sizes:
        return evaluation
    floor = timing.model_copy(update={"floor_us": light * timing.candidate_us.median})
    return evaluation.model_copy(update={"timing": floor})


def with_launches(profile: Profile, evaluation: Evaluation) -> Profile:
    """Return the profile, with overhead as its bottleneck if it is that by the launches in a trace."""
    launches, timing = profile.value("launches"), evaluation.timing
    if launches is None or timing is None:
        return profile
    short = timing.candidate_us.median < overhead_us(evaluation.target.device, launches)
    return profile.model_copy(update={"bottleneck": "overhead"}) if short else profile


def products_in_words(work: Work, ceilings: Ceilings) -> str:
    """Name the ceilings that a task's products are held against: "bf16 products", "fp8 products, in bf16"."""
    of = [*work.products, *([None] if work.unknown_flops else [])]
    names = []
    for precision in of:
        way = ceilings.fastest(precision)
        name = f"{precision or 'untyped'} products"
        names.append(name if way in (precision, None) else f"{name}, in {way}")
    return " and ".join(names)


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
        if "products" in profile.ceiling or profile.bottleneck == "compute"
        else "the bandwidth was measured too low, or the data lay in the cache"
    )
    of = f" of {profile.ceiling}" if profile.ceiling else ""  # older databases name none
    wrong = f"the ceiling{of} is wrong: " if profile.ceiling_is_wrong else ""
    return f"{light:.2f} times faster than the roofline's floor: {wrong}{why}"
