"""What binds a candidate: each finding rests on metrics that it cites, and nothing is said without them."""

from typing import Any

import pytest

from kernelwright.profiling.catalogue import CATALOGUE, metric
from kernelwright.profiling.diagnosis import diagnose
from kernelwright.profiling.records import Bottleneck, Profile
from tests.helpers.profiling.evaluated import evaluation_of


def profile(
    *known: tuple[str, float] | tuple[str, float, str],
    light: float | None = None,
    bound: Bottleneck = "memory",
) -> Profile:
    return Profile(metrics=tuple(metric(*each) for each in known), bottleneck=bound, speed_of_light=light)


def test_of_nothing_nothing_is_said() -> None:
    assert diagnose(profile(bound="unknown"), evaluation_of()) == ()


CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str]] = {
    "memory": ("memory", (("bandwidth_share", 0.8), ("minimal_bytes", 1e6)), {}, "1.25 times"),
    "fetched twice": (
        "memory",
        (("minimal_bytes", 1e6), ("simulated_fetched", 2e6)),
        {},
        "2.0 times the minimal bytes (by simulated caches)",
    ),
    "fetched by two kernels": (
        "memory",
        (("minimal_bytes", 1e6), ("dram_read", 1e6, "k"), ("dram_read", 5e5, "l")),
        {},
        "1.5 times the minimal bytes (counted)",
    ),
    "bytes that are not used": (
        "memory",
        (("load_use", 0.25, "k"),),
        {},
        "Only 25% of the bytes that k's global loads fetch",
    ),
    "uncoalesced": (
        "memory",
        (("emulated_sector_use", 0.125, "k"), ("emulated_load_sectors", 32, "k")),
        {},
        "only 12% of the global-memory sectors that k's warps request are needed.",
    ),
    "conflicts in emulation": (
        "instructions",
        (("emulated_bank_passes", 8, "k"),),
        {},
        "k's warps make 8.0 times the passes over shared memory that are needed.",
    ),
    "arithmetic": ("compute", (("compute_share", 0.7), ("flops", 1e9)), {}, "70%"),
    "neither": (
        "instructions",
        (
            ("bandwidth_share", 0.4),
            ("compute_share", 0.3),
            ("minimal_bytes", 1e6),
            ("simulated_fetched", 1.1e6),
        ),
        {},
        "its memory traffic takes 40% of the time and its products 30%",
    ),
    "gaps": ("launch", (("gpu_time", 60.0), ("gpu_gaps", 40.0), ("launches", 9)), {}, "run for only 60%"),
    "copies": (
        "launch",
        (("gpu_time", 100.0), ("copy_time", 20.0)),
        {},
        "Copies and fills take 20% of the time in which the GPU is busy",
    ),
    "torch, by the trace": ("launch", (("own_share", 0.4),), {}, "Calls to torch take 60% of its time"),
    "latencies": (
        "latency",
        (("sm_throughput", 0.2, "k"), ("memory_throughput", 0.41, "k"), ("dram_throughput", 0.41, "k")),
        {},
        "k keeps memory 41% and the multiprocessors 20% busy: it is bound by latency.",
    ),
    "device memory": (
        "memory",
        (("sm_throughput", 0.2, "k"), ("memory_throughput", 0.9, "k"), ("dram_throughput", 0.9, "k")),
        {},
        "k moves data at 90% of the peak bandwidth of device memory.",
    ),
    "few blocks": (
        "imbalance",
        (("blocks_per_sm", 0.24, "k"), ("grid_blocks", 32, "k"), ("built_registers", 32, "k")),
        {},
        "k's grid has a block for only 24% of the multiprocessors.",
    ),
    "torch": ("launch", (("own_kernel_share", 0.4),), {}, "Calls to torch take 60% of its time"),
    "idle threads": (
        "imbalance",
        (("cpu_time", 1100.0),),
        {"time_us": 1000.0, "threads": 2},
        "busy for only 55%",
    ),
    "waiting threads": ("imbalance", (("time_waiting", 0.4),), {}, "wait for each other for 40%"),
    "new memory": ("memory", (("time_in_system", 0.3), ("page_faults", 900)), {}, "The system takes 30%"),
    "a tail": (
        "imbalance",
        (("waves", 1.25, "k"),),
        {},
        "k's blocks take 1.2 waves; 75% of the last",
    ),
    "few warps": (
        "latency",
        (("occupancy", 0.25, "k"), ("built_registers", 200, "k")),
        {},
        "k has an occupancy of only 25%",
    ),
    "a stall": (
        "latency",
        (
            ("stall_long_scoreboard", 5.0, "k"),
            ("stall_wait", 1.0, "k"),
            ("stall_barrier", 0.0, "k"),
            ("stall_lg_throttle", 0.0, "k"),
        ),
        {},
        "83% of the stalls of k are long scoreboard: warps waiting for global or local memory.",
    ),
    "scalar": (
        "instructions",
        (("packed_share", 0.2, "k"), ("vector_bits", 512, "k")),
        {},
        "Only 20% of k's vector instructions",
    ),
    "no vectors": (
        "instructions",
        (("vector_bits", 0, "k"), ("loops_missed", 2, "k")),
        {},
        "No loop of k uses vectors",
    ),
    "calls": ("instructions", (("calls_in_loops", 1, "k"),), {}, "contain 1 call of scalar functions"),
    "spills": ("instructions", (("spills", 4, "k"),), {}, "move 4 values"),
    "spills of a GPU's": ("instructions", (("loop_local_accesses", 40, "k"),), {}, "move 40 values"),
    "conflicts": (
        "instructions",
        (("bank_conflicts", 500.0, "k"), ("warp_instructions", 1000.0, "k")),
        {},
        "500 bank conflicts",
    ),
}
_CITED = {
    "few blocks": {"blocks_per_sm": 0.24, "grid_blocks": 32},
    "a stall": {"stall_long_scoreboard": 5.0},
    "fetched by two kernels": {"minimal_bytes": 1e6},
}


@pytest.mark.parametrize("name", CASES)
def test_a_finding_cites_what_it_rests_on(name: str) -> None:
    kind, metrics, settings, says = CASES[name]
    [found] = diagnose(profile(*metrics), evaluation_of(**settings))
    assert found.kind == kind and says in found.says and found.fix
    cited = _CITED.get(name, {each[0]: each[1] for each in metrics})
    assert cited.items() <= found.cites.items() and found.cites.keys() <= {each[0] for each in metrics}
    assert found.kernel == (metrics[0][2] if len(metrics[0]) == 3 else "")


@pytest.mark.parametrize(
    "metrics",
    [
        (("minimal_bytes", 1e6), ("simulated_fetched", 1.1e6)),
        (("bandwidth_share", 0.4), ("compute_share", 0.3)),  # how much it fetches is not known
        (("compute_share", 1.4),),  # of a precision that is faster than the peak that was measured
        (("gpu_time", 90.0), ("gpu_gaps", 10.0)),
        (
            ("packed_share", 1.0, "k"),
            ("vector_bits", 512, "k"),
            ("spills", 0, "k"),
            ("calls_in_loops", 0, "k"),
        ),
        (("packed_share", 0.2, "k"), ("vector_bits", 512, "k"), ("loops_missed", 0, "k")),
        (("waves", 2.0, "k"),),
        (("waves", 40.1, "k"),),
        (("waves", 1.5, "k"), ("profiled_launches", 2, "k")),
        (("occupancy", 0.2, "k"), ("issue_slots", 0.8, "k")),
        tuple((f"stall_{why}", 1.0, "k") for why in ("long_scoreboard", "wait", "barrier", "lg_throttle")),
        (("stall_long_scoreboard", 1.0, "k"),),  # others were not asked for
    ],
)
def test_what_is_well_or_not_known_is_not_said(metrics: Any) -> None:
    assert diagnose(profile(*metrics), evaluation_of()) == ()


def test_a_short_call_at_the_speed_of_light_has_nothing_to_mend() -> None:
    assert diagnose(profile(light=0.97, bound="overhead"), evaluation_of(time_us=20.0)) == ()
    [found] = diagnose(
        profile(("memory_floor", 2.0), light=0.1, bound="overhead"), evaluation_of(time_us=20.0)
    )
    assert found.kind == "launch" and found.cites and found.most_gain == 10.0


def test_no_gain_is_beyond_the_speed_of_light_and_the_largest_comes_first() -> None:
    known = ("cpu_time", 500.0), ("minimal_bytes", 1e6), ("simulated_fetched", 1.5e6)
    found = diagnose(profile(*known, light=0.5), evaluation_of(time_us=1000.0, threads=2))
    assert [(f.kind, f.most_gain) for f in found] == [("imbalance", 2.0), ("memory", 1.5)]


@pytest.mark.parametrize("value", [0.0, 1e-300, 1.0, 1e300])
def test_any_numbers_can_be_judged(value: float) -> None:
    for name in CATALOGUE:
        for kernel in ("", "k"):
            diagnose(
                profile((name, value, kernel), light=value, bound="overhead"), evaluation_of(time_us=1.0)
            )
    every = [(name, value, kernel) for name in CATALOGUE for kernel in ("", "k")]
    diagnose(profile(*every, light=value or None), evaluation_of(time_us=1.0))
