"""The records that an evaluation has of its timings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.kernelbench.evaluator.timing.statistics import Timings
from kernelwright.kernelbench.records import TRAFFIC, Ceilings, GpuClocks, Interval, Speedup, Timing, Work
from kernelwright.kernelbench.speed_of_light import floor_us


@dataclass(frozen=True)
class Baselines:
    """Outcomes of starting baselines, by name.

    `compile_s`: seconds until a compiled one was ready. `failed`: why there is none. `same_code`: the
    baseline that runs the same generated code, and is timed instead.
    """

    compile_s: Mapping[str, float]
    failed: Mapping[str, str]
    same_code: Mapping[str, str]


def timing(
    timings: Timings, clocks: Sequence[GpuClocks], baselines: Baselines, work: Work, ceilings: Ceilings
) -> Timing:
    """Return times of a call in microseconds, with 95% intervals, and how they were taken."""

    def of(name: str) -> Interval | None:
        return timings.time_us(name) if name in timings.blocks else None

    first, traffic = timings.blocks["candidate"][0], of(TRAFFIC)
    return Timing(
        candidate_us=timings.time_us("candidate"),
        eager_us=timings.time_us("eager"),
        compile_us=of("compile"),
        max_autotune_us=of("max-autotune"),
        cuda_graphs_us=of("cuda-graphs"),
        traffic_us=traffic,
        floor_us=floor_us(work, ceilings, traffic),
        calls_per_block=first.calls // first.messages,
        rounds=len(timings.processes) // 2,
        processes=len(set(timings.processes)),
        disturbed=len(timings.processes) - len(timings.undisturbed("candidate", "eager")),
        busy=timings.busy,
        alone_factor=timings.alone.factor,
        compile_s=dict(baselines.compile_s),
        failed_baselines=dict(baselines.failed),
        same_code=dict(baselines.same_code),
        device_us=timings.device_us("candidate"),
        clocks_differ=timings.clocks_differ,
        clocks=next(iter(clocks), None),
    )


def speedup(timings: Timings) -> Speedup:
    """Return the speedups over the baselines that were timed, and over the fastest of them."""

    def over(name: str) -> Interval | None:
        return timings.speedup(name) if name in timings.blocks else None

    return Speedup(
        eager=over("eager"),
        compile=over("compile"),
        max_autotune=over("max-autotune"),
        cuda_graphs=over("cuda-graphs"),
        fastest=over(timings.fastest_baseline()),
    )
