"""Bottlenecks of a candidate, by rules over its metrics: each finding cites the numbers it rests on.

The classes are those of the top-down method (A. Yasin, 2014) and of Nsight Compute's sections, as far as
there are metrics for them: memory, arithmetic, latency and occupancy, launches, imbalance, instruction mix.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kernelwright.kernelbench.records import Evaluation
from kernelwright.profiling.catalogue import CATALOGUE
from kernelwright.profiling.records import Finding, FindingKind, Metric, Profile

_NEAR = 0.6  # of what memory or arithmetic allow, from which it binds
_WASTED = 1.3  # times the bytes that must move
_SCALAR = 0.9  # share of vector instructions on several numbers, below which loops count as scalar
_IDLE = 0.75  # share of the time that threads are busy, or that kernels run, below which they wait
_ELSEWHERE = 0.75  # share of the time in own kernels, below which the rest matters
_WAITING = 0.3  # of the time of threads, from which it matters that they wait for each other
_NEW = 0.2  # of the CPU time in the system, the same
_LOW_OCCUPANCY = 0.3
_STALLED = 0.4  # of the warps' waiting, for one cause
_FEWEST_STALLS = 4  # causes that were counted, below which shares of all waiting say little
_COPIES = 0.1  # of the time on the GPU, from which copies matter
_NO_WAITS = {"stall_cycles", "stall_not_selected"}  # fixed latencies; warps that could be issued
_FETCHED = {  # metrics of the bytes that came from memory, and where they are from
    "loaded_from_memory": "counted",
    "simulated_fetched": "by simulated caches",
    "dram_read": "counted",
}
_MOST_LINES = 2  # of a source, that a finding names
_CONFLICTS = 0.1  # of the instructions, from which bank conflicts matter
_TAIL = 0.7  # of a round of blocks, below which the last one leaves multiprocessors idle
_LONGEST = 4  # rounds in which a tail matters


@dataclass(frozen=True)
class _Case:
    """A profile under diagnosis, with look-ups by metric and kernel."""

    profile: Profile
    evaluation: Evaluation

    def of(self, name: str, kernel: str = "") -> float:
        """Return a metric's value; NaN if unknown, for which every comparison is false."""
        value = self.profile.value(name, kernel)
        return float("nan") if value is None else value

    def sum(self, name: str) -> float:
        """Return the value of the whole call, or else the sum over all kernels; NaN if neither is known."""
        whole = self.of(name)
        each = [m.value for m in self.profile.metrics if m.name == name and m.kernel]
        return sum(each) if each and math.isnan(whole) else whole

    @property
    def own_kernels(self) -> list[str]:
        """The candidate's kernels, without those of torch and its libraries, which a trace contains too."""
        traced = {m.kernel for m in self.profile.metrics if m.provenance == "cupti"}
        others = {m.kernel for m in self.profile.metrics if m.provenance != "cupti"}
        return [kernel for kernel in self.profile.kernels if kernel in others or kernel not in traced]

    def lines(self, kernel: str, *metrics: str) -> str:
        """Return the worst source lines behind these metrics, as the end of a sentence; empty if none."""
        remarks = [r for r in self.profile.remarks if r.kernel == kernel and r.metric in metrics]
        worst = "; ".join(f"line {remark.line}, {remark.text}" for remark in remarks[:_MOST_LINES])
        return f": {worst}" if worst else ""

    def finding(
        self,
        kind: FindingKind,
        says: str,
        fix: str,
        cites: tuple[str, ...],
        most_gain: float | None = None,
        kernel: str = "",
    ) -> Finding:
        known: Mapping[str, float] = {
            m.name: m.value for m in self.profile.metrics if m.name in cites and m.kernel in (kernel, "")
        }
        light = self.profile.share_of_light
        if most_gain is not None and light:
            most_gain = max(1.0, min(most_gain, 1 / light))
        return Finding(kind=kind, says=says, fix=fix, cites=dict(known), most_gain=most_gain, kernel=kernel)


def diagnose(profile: Profile, evaluation: Evaluation) -> tuple[Finding, ...]:
    """Return the findings about a candidate, the largest possible gain first; empty if nothing stands out."""
    case = _Case(profile, evaluation)
    found = [finding for rule in _RULES for finding in rule(case)]
    return tuple(sorted(found, key=lambda finding: -(finding.most_gain or 1.0)))


def _memory(case: _Case) -> Iterator[Finding]:
    share = case.of("bandwidth_share")
    if share >= _NEAR and not case.of("compute_share") > share:
        yield case.finding(
            "memory",
            f"It takes {1 / share:.2f} times the time to read the inputs and write the outputs once."
            if share <= 1
            else "It takes less time than reading inputs and writing outputs once at the measured bandwidth.",
            "Move fewer bytes by fusing the operators around it; otherwise there is little left to gain.",
            ("bandwidth_share", "minimal_bytes", "memory_floor", "achieved_bandwidth"),
            max(1.0, 1 / share),
        )
    for name, source in _FETCHED.items():
        moved, least = case.sum(name), case.of("minimal_bytes")
        if moved > _WASTED * least:
            yield case.finding(
                "memory",
                f"It fetches {moved / least:.1f} times the minimal bytes ({source}).",
                "Read everything once: work on blocks that stay in the cache between passes, or make one "
                "pass of two.",
                (name, "minimal_bytes"),
                moved / least,
            )
    for kernel in case.own_kernels:
        used = case.of("load_use", kernel)
        if used < _NEAR:
            yield case.finding(
                "memory",
                f"Only {used:.0%} of the bytes that {kernel}'s global loads fetch are used.",
                "Let neighbouring threads read neighbouring addresses, in vectors of 128 bits.",
                ("load_use",),
                kernel=kernel,
            )


def _throughputs(case: _Case) -> Iterator[Finding]:
    """Tell what binds a kernel, as Nsight Compute's section "GPU Speed Of Light Throughput" does."""
    for kernel in case.own_kernels:
        work, memory = case.of("sm_throughput", kernel), case.of("memory_throughput", kernel)
        dram = case.of("dram_throughput", kernel)
        cites = ("sm_throughput", "memory_throughput", "dram_throughput")
        if work < _NEAR and memory < _NEAR:
            yield case.finding(
                "latency",
                f"{kernel} keeps memory {memory:.0%} and the multiprocessors {work:.0%} busy: it is "
                "bound by latency.",
                "Keep more loads in flight: more warps on each multiprocessor, several independent loads in "
                "each thread, asynchronous copies.",
                cites,
                1 / max(work, memory, 0.01),
                kernel,
            )
        elif dram >= _NEAR and not work > dram:
            yield case.finding(
                "memory",
                f"{kernel} moves data at {dram:.0%} of the peak bandwidth of device memory.",
                "Move fewer bytes: fuse the kernels around it, or use a smaller type.",
                cites,
                1 / dram,
                kernel,
            )


def _requests(case: _Case) -> Iterator[Finding]:
    sectors = ("emulated_load_sectors", "emulated_store_sectors")
    for kernel in case.own_kernels:
        used, passes = case.of("emulated_sector_use", kernel), case.of("emulated_bank_passes", kernel)
        if 0 < used < _NEAR:
            yield case.finding(
                "memory",
                f"Uncoalesced access: only {used:.0%} of the global-memory sectors that {kernel}'s warps "
                f"request are needed{case.lines(kernel, *sectors)}.",
                "Let neighbouring threads touch neighbouring addresses; data read along one dimension and "
                "written along another should go through a tile in shared memory.",
                ("emulated_sector_use", *sectors),
                1 / used,
                kernel,
            )
        if passes > _WASTED:
            yield case.finding(
                "instructions",
                f"Bank conflicts: {kernel}'s warps make {passes:.1f} times the passes over shared memory "
                f"that are needed{case.lines(kernel, 'emulated_bank_passes')}.",
                "Pad the rows of shared-memory tiles by one element ([32][33]), or swizzle columns.",
                ("emulated_bank_passes",),
                passes,
                kernel,
            )


def _new_memory(case: _Case) -> Iterator[Finding]:
    share = case.of("time_in_system")
    if _NEW < share < 1:
        yield case.finding(
            "memory",
            f"The system takes {share:.0%} of its CPU time, mostly to map new memory.",
            "Reuse buffers instead of allocating new ones, and allocate less.",
            ("time_in_system", "page_faults"),
            1 / (1 - share),
        )


def _compute(case: _Case) -> Iterator[Finding]:
    share, ceiling = case.of("compute_share"), case.profile.ceiling
    of = f" of {ceiling}" if "products" in ceiling else ""
    if _NEAR <= share <= 1 and not case.of("bandwidth_share") > share:
        yield case.finding(
            "compute",
            f"Its products take {share:.0%} of the time at the measured peak{of}.",
            "Use the instructions with the highest peak (tensor cores, AMX, lower precision where error "
            "budgets allow it), or do less arithmetic.",
            ("compute_share", "flops", "compute_floor"),
            1 / share,
        )


def _neither(case: _Case) -> Iterator[Finding]:
    memory, arithmetic = case.of("bandwidth_share"), case.of("compute_share")
    near = [name for name in _FETCHED if case.sum(name) <= _WASTED * case.of("minimal_bytes")]
    if near and 0 < max(memory, arithmetic) < _NEAR and case.profile.bottleneck != "overhead":
        products = f" and its products {arithmetic:.0%}" if arithmetic else ""
        yield case.finding(
            "instructions",
            f"At the measured ceilings its memory traffic takes {memory:.0%} of the time{products}: other "
            "instructions or waiting limit it.",
            "Execute less for each element: wider vectors, fused multiply-adds, exponentials computed once; "
            "and keep more of them in flight.",
            ("bandwidth_share", "compute_share", "minimal_bytes", *near),
            1 / max(memory, arithmetic),
        )


def _launches(case: _Case) -> Iterator[Finding]:
    gaps, busy = case.of("gpu_gaps"), case.of("gpu_time")
    if 0 < busy < _IDLE * (busy + gaps):
        yield case.finding(
            "launch",
            f"Kernels run for only {busy / (busy + gaps):.0%} of a call's time on the GPU; else it is idle.",
            "Launch less: fuse kernels, put small ones into one launch, or capture the call in a CUDA graph.",
            ("gpu_gaps", "gpu_time", "launches"),
            (busy + gaps) / busy,
        )
    copies = case.of("copy_time")
    if copies > _COPIES * busy:
        yield case.finding(
            "launch",
            f"Copies and fills take {copies / busy:.0%} of the time in which the GPU is busy.",
            "Write results where they are needed, and make no tensor contiguous that need not be.",
            ("copy_time", "gpu_time"),
            busy / (busy - copies) if copies < busy else None,
        )
    name = "own_share" if math.isnan(case.of("own_kernel_share")) else "own_kernel_share"
    share = case.of(name)
    if share < _ELSEWHERE:
        yield case.finding(
            "launch",
            f"Calls to torch take {1 - share:.0%} of its time.",
            "Move more of the work into its own kernels, or use a faster library for the slowest part.",
            (name,),
        )
    light = case.profile.speed_of_light
    if case.profile.bottleneck == "overhead" and light and light < _NEAR:
        yield case.finding(
            "launch",
            "A call is so short that launching its work may cost as much as doing it.",
            "Use one thread, one launch, and allocate no tensor but the result.",
            ("memory_floor", "compute_floor"),
            1 / light,
        )


def _imbalance(case: _Case) -> Iterator[Finding]:
    timing, threads = case.evaluation.timing, case.evaluation.target.fingerprint.threads
    busy = case.of("cpu_time")
    if timing is not None and case.evaluation.target.device == "cpu" and threads > 1:
        share = busy / (timing.candidate_us.median * threads)
        if 0 < share < _IDLE:
            yield case.finding(
                "imbalance",
                f"Its {threads} threads are busy for only {share:.0%} of the time.",
                "Divide all of the work among the threads, in more pieces than there are threads.",
                ("cpu_time",),
                1 / share,
            )
    waiting = case.of("time_waiting")
    if waiting > _WAITING:
        yield case.finding(
            "imbalance",
            f"Its threads wait for each other for {waiting:.0%} of the time.",
            "Divide all of the work evenly among the threads; give work of a few microseconds to one thread.",
            ("time_waiting",),
            1 / (1 - waiting) if waiting < 1 else None,
        )
    for kernel in case.own_kernels:
        blocks = case.of("blocks_per_sm", kernel)
        if 0 < blocks < 1:
            yield case.finding(
                "imbalance",
                f"{kernel}'s grid has a block for only {blocks:.0%} of the multiprocessors.",
                "Divide the work into more blocks: fewer rows in each, or a long row over several.",
                ("blocks_per_sm", "grid_blocks"),
                1 / blocks,
                kernel,
            )
        waves = case.of("waves", kernel)
        filled = waves % 1 or 1.0
        several = case.of("profiled_launches", kernel) > 1  # of which waves is the mean
        if 1 < waves < _LONGEST and filled < _TAIL and not several:
            yield case.finding(
                "imbalance",
                f"{kernel}'s blocks take {waves:.1f} waves; {1 - filled:.0%} of the last one is idle.",
                "Choose a block size that gives whole waves, or let fewer blocks process several tiles each.",
                ("waves",),
                -(-waves // 1) / waves,
                kernel,
            )


def _latency(case: _Case) -> Iterator[Finding]:
    for kernel in case.own_kernels:
        names = ("achieved_occupancy", "estimated_occupancy", "occupancy")
        name = next((name for name in names if case.profile.value(name, kernel) is not None), "occupancy")
        occupancy, slots = case.of(name, kernel), case.of("issue_slots", kernel)
        if occupancy < _LOW_OCCUPANCY and not slots > _NEAR:
            yield case.finding(
                "latency",
                f"{kernel} has an occupancy of only {occupancy:.0%} of a multiprocessor's warps.",
                "Use fewer registers or less shared memory, or give each thread more independent work.",
                (name, "issue_slots", "registers_per_thread", "built_registers", "shared_bytes"),
                kernel=kernel,
            )
        stalls = [m for m in case.profile.metrics if m.kernel == kernel and m.name.startswith("stall_")]
        yield from _stalls(case, kernel, [m for m in stalls if m.name not in _NO_WAITS])


def _stalls(case: _Case, kernel: str, stalls: list[Metric]) -> Iterator[Finding]:
    total = sum(metric.value for metric in stalls)
    worst = max(stalls, key=lambda metric: metric.value, default=None)
    if worst is None or len(stalls) < _FEWEST_STALLS or not 0 < _STALLED * total <= worst.value:
        return
    cause = worst.name.removeprefix("stall_").replace("_", " ")
    waiting = CATALOGUE[worst.name].meaning.partition(",")[0] if worst.name in CATALOGUE else cause
    yield case.finding(
        "latency",
        f"{worst.value / total:.0%} of the stalls of {kernel} are {cause}: {waiting}.",
        _WAITS.get(worst.name, "Give the schedulers more warps, or each thread more independent work."),
        (worst.name,),
        kernel=kernel,
    )


_WAITS = {
    "stall_long_scoreboard": "Prefetch data before its use (cp.async, TMA, more stages), in wider vectors.",
    "stall_short_scoreboard": "Use shared memory or special functions less in the inner loop.",
    "stall_barrier": "Synchronize less often: fewer barriers, or warps that need none.",
    "stall_mio_throttle": "Use shared memory in wider vectors, or shuffles; fewer special functions.",
    "stall_lg_throttle": "Load and store global memory in wider vectors.",
    "stall_math_throttle": "The pipe is saturated: use another one (tensor cores), or do less arithmetic.",
}


def _instructions(case: _Case) -> Iterator[Finding]:
    for kernel in case.own_kernels:
        packed, bits = case.of("packed_share", kernel), case.of("vector_bits", kernel)
        if (packed < _SCALAR or bits == 0) and case.of("loops_missed", kernel) != 0:
            share = f"Only {packed:.0%} of {kernel}'s vector instructions work on several numbers at once."
            yield case.finding(
                "instructions",
                share if bits else f"No loop of {kernel} uses vectors.",
                "Let the compiler vectorize: no calls, no branches, no fixed order of additions "
                "(`#pragma omp simd reduction`), contiguous accesses.",
                ("packed_share", "vector_bits", "loops_missed", "calls_in_loops"),
                kernel=kernel,
            )
        calls = case.of("calls_in_loops", kernel)
        if calls > 0:
            yield case.finding(
                "instructions",
                f"{kernel}'s loops contain {calls:.0f} call{'s'[: calls > 1]} of scalar functions.",
                "Replace scalar functions such as expf with polynomials that vectorize.",
                ("calls_in_loops",),
                kernel=kernel,
            )
        spilled = max(0.0, case.of("spills", kernel), case.of("loop_local_accesses", kernel))
        if spilled > 0:
            yield case.finding(
                "instructions",
                f"{kernel}'s loops move {spilled:.0f} values between registers and the stack.",
                "Keep fewer values live: smaller tiles, less unrolling, narrower vectors.",
                ("spills", "loop_local_accesses"),
                kernel=kernel,
            )
        conflicts = case.of("bank_conflicts", kernel)
        if conflicts > _CONFLICTS * case.of("warp_instructions", kernel):
            yield case.finding(
                "instructions",
                f"{kernel} has {conflicts:.3g} bank conflicts in shared memory.",
                "Pad or swizzle the tiles in shared memory.",
                ("bank_conflicts", "warp_instructions"),
                kernel=kernel,
            )


_RULES: tuple[Callable[[_Case], Iterator[Finding]], ...] = (
    _memory,
    _throughputs,
    _requests,
    _new_memory,
    _compute,
    _neither,
    _launches,
    _imbalance,
    _latency,
    _instructions,
)
