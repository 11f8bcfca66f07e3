"""Catalogue of metrics: unit, meaning, better direction, bounds, where each is from, Nsight Compute's names.

Prompts, the report, `kernelwright profile` and docs/metrics.md say of a metric what stands here.

Nsight Compute's names are unit__counter.rollup. Those below were checked against the lists of NVIDIA's
performance library of CUDA 13 for sm_75 to sm_120, except launch__ ones, which are Nsight Compute's own. Of
the 24 metrics that CudaForge (arXiv:2511.01884) chose, sm__inst_executed_pipe_fp32 and
smsp__warp_issue_stalled_memory_dependency_per_warp_active are on no such list: the pipe for fused arithmetic
and the long-scoreboard stall stand in for them here.
https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#metrics-decoder
"""

from dataclasses import dataclass
from typing import Literal

from kernelwright.kernelbench.evaluator.processes.answers import kernel_name
from kernelwright.profiling.records import Metric, Provenance

_ADDED = ("us", "bytes", "instructions", "launches", "loops", "conflicts", "accesses", "misses", "calls")
Better = Literal["more", "less", "neither"]


@dataclass(frozen=True)
class Definition:
    unit: str  # "1" of shares, "" of plain numbers
    meaning: str
    better: Better
    provenance: Provenance
    of_time: bool = False  # says the time in other words: that it goes with it is no discovery
    usual: bool = True  # shown to a judge where no selection was made
    names: tuple[str, ...] = ()  # of ncu's, the first that the chip has; a unit of "1" is a percentage there
    bound: str | float | None = None  # the least, else the most, that is possible; a metric of the same call
    reading: str = ""  # what a high or a low value tells

    @property
    def adds_up(self) -> bool:
        """True for metrics that are summed over launches and kernels; others are averaged by time."""
        return self.unit in _ADDED

    @property
    def direction(self) -> str:
        """Better direction in words; empty for a metric without one."""
        return {"more": "higher is better", "less": "lower is better", "neither": ""}[self.better]

    @property
    def limit(self) -> str:
        """Bound in words: "at most 1", "at least minimal_bytes"; empty without one."""
        bound = 1.0 if self.bound is None and (self.unit, self.better) == ("1", "more") else self.bound
        if bound is None:
            return ""
        shown = bound if isinstance(bound, str) else f"{bound:g}"
        return f"at {'least' if self.better == 'less' else 'most'} {shown}"


def _counted(
    unit: str,
    meaning: str,
    better: Better,
    *names: str,
    usual: bool = True,
    bound: str | float | None = None,
    reading: str = "",
) -> Definition:
    return Definition(unit, meaning, better, "ncu", False, usual, names, bound, reading)


def _stall(reason: str, meaning: str, usual: bool = True) -> Definition:
    """Define a stall metric: warps waiting for `reason`, per cycle in which another warp issues."""
    name = f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    return _counted("", f"warps waiting {meaning}, per instruction issued", "less", name, usual=usual)


CATALOGUE = {
    "minimal_bytes": Definition(
        "bytes", "bytes of inputs, weights and outputs, once each", "less", "roofline"
    ),
    "flops": Definition("FLOP", "FLOPs of the reference's products and convolutions", "less", "roofline"),
    "memory_floor": Definition("us", "time to move the minimal bytes", "less", "roofline"),
    "compute_floor": Definition("us", "time of the FLOPs at the measured peak", "less", "roofline"),
    "achieved_bandwidth": Definition("bytes/s", "minimal bytes over the time", "more", "roofline", True),
    "bandwidth_share": Definition("1", "memory floor over the time", "more", "roofline", True),
    "compute_share": Definition("1", "compute floor over the time", "more", "roofline", True),
    "own_kernel_share": Definition("1", "share of the time outside torch's calls", "neither", "roofline"),
    "loops": Definition("loops", "innermost or unrolled loops, no remainders", "neither", "static"),
    "vector_bits": Definition("bit", "widest vector register in these loops", "more", "static"),
    "packed_share": Definition("1", "vector instructions on several numbers", "more", "static"),
    "zmm_share": Definition("1", "share of these on 512 bits", "neither", "static"),
    "ymm_share": Definition("1", "share of these on 256 bits", "neither", "static"),
    "fma_share": Definition("1", "fused floating-point arithmetic", "more", "static"),
    "divisions": Definition("instructions", "divisions and square roots in these loops", "less", "static"),
    "gathers": Definition("instructions", "loads and stores of non-contiguous vectors", "less", "static"),
    "spills": Definition("instructions", "vector registers to and from the stack", "less", "static"),
    "streaming_stores": Definition("instructions", "stores past the caches", "neither", "static"),
    "prefetches": Definition("instructions", "prefetches of memory", "neither", "static"),
    "calls_in_loops": Definition("instructions", "calls, mostly of scalar functions", "less", "static"),
    "loops_vectorized": Definition("loops", "loops that the compiler vectorized", "more", "static"),
    "loops_missed": Definition("loops", "innermost loops that it did not", "less", "static"),
    "cpu_time": Definition("us", "CPU time of all threads together", "less", "perf"),
    "cycles": Definition("cycles", "CPU cycles of all threads together", "less", "perf"),
    "instructions": Definition("instructions", "instructions executed", "less", "perf"),
    "instructions_per_cycle": Definition(
        "instructions/cycle", "instructions executed per cycle", "more", "perf"
    ),
    "last_level_loads": Definition("loads", "loads that reached the last cache", "less", "perf"),
    "last_level_load_misses": Definition("loads", "loads that missed the last cache", "less", "perf"),
    "loaded_from_memory": Definition("bytes", "last-level misses at 64 bytes each", "less", "perf",
        bound="minimal_bytes"
    ),
    "cache_misses": Definition("misses", "cache misses, by Linux's generic event", "less", "perf"),
    "branch_misses": Definition("branches", "mispredicted branches", "less", "perf"),
    "time_share": Definition("1", "share of a call's CPU time in the kernel", "neither", "perf"),
    "time_in_torch": Definition("1", "share of a call's CPU time in torch's code", "neither", "perf"),
    "time_in_system": Definition("1", "share in the system: page faults", "less", "perf"),
    "time_waiting": Definition("1", "share in waiting threads", "less", "perf"),
    "page_faults": Definition("faults", "first touches of a page", "less", "perf"),
    "context_switches": Definition("switches", "context switches of its threads", "less", "perf"),
    "simulated_fetched": Definition(
        "bytes", "bytes fetched from memory, by simulated caches", "less", "simulated", bound="minimal_bytes"
    ),
    "simulated_calls": Definition("calls", "calls of this kernel in one forward", "less", "simulated"),
    "simulated_instructions": Definition(
        "instructions", "instructions executed, built for AVX2", "less", "simulated"
    ),
    "simulated_reads": Definition("accesses", "reads of data", "less", "simulated"),
    "simulated_writes": Definition("accesses", "writes of data", "less", "simulated"),
    "simulated_l1_misses": Definition("misses", "data misses in the first-level cache", "less", "simulated"),
    "simulated_last_misses": Definition("misses", "data misses in the last cache", "less", "simulated"),
    "emulated_load_sectors": Definition("sectors", "32-byte sectors per load of a warp", "less", "emulated"),
    "emulated_store_sectors": Definition(
        "sectors", "32-byte sectors per store of a warp", "less", "emulated"
    ),
    "emulated_sector_use": Definition("1", "share of these sectors that are needed", "more", "emulated"),
    "emulated_bank_passes": Definition("", "passes over the banks per needed pass", "less", "emulated"),
    "launches": Definition("launches", "kernel launches in a call", "less", "cupti"),
    "own_launches": Definition("launches", "launches of the candidate's own kernels", "neither", "cupti"),
    "gpu_time": Definition(
        "us", "time of a call in which the GPU was busy", "less", "cupti", True, bound="memory_floor"
    ),
    "own_share": Definition(
        "1", "share of the time on the GPU in the candidate's own kernels", "neither", "cupti"
    ),
    "gpu_gaps": Definition(
        "us", "idle time of the GPU between kernels of a call", "less", "cupti",
        reading="as long as gpu_time or longer: launches limit it",
    ),
    "copy_time": Definition("us", "time of copies and fills (memcpy, memset) in a call", "less", "cupti"),
    "traced_time": Definition("us", "duration of all its launches together", "less", "cupti", True),
    "traced_share": Definition("1", "share of the time on the GPU", "neither", "cupti"),
    "traced_launches": Definition("launches", "launches in a call", "less", "cupti"),
    "block_threads": Definition("threads", "block size: threads of a block", "neither", "cupti"),
    "grid_blocks": Definition("blocks", "grid size: blocks of a launch", "neither", "cupti"),
    "registers": Definition("registers", "registers per thread, of 255", "less", "cupti"),
    "shared_memory": Definition(
        "bytes/block", "shared memory of a block, static and dynamic", "neither", "cupti"
    ),
    "blocks_per_sm": Definition(
        "", "blocks of the grid per multiprocessor", "more", "cupti",
        reading="below 1 some multiprocessors have nothing to do",
    ),
    "estimated_occupancy": Definition(
        "1", "theoretical occupancy, by registers, shared memory and the grid", "more", "cupti",
        reading="below 0.3 latencies are hardly hidden",
    ),
    "duration": Definition(
        "us", "duration of all its launches together", "less", "ncu", of_time=True,
        names=("gpu__time_duration.sum",),
    ),
    "profiled_launches": Definition("launches", "launches in a call that ncu profiled", "less", "ncu"),
    "sm_throughput": _counted(
        "1", "SM throughput: share of the peak of the multiprocessors' busiest unit", "more",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        reading="above 0.6: bound by arithmetic; below, with memory_throughput below 0.6 too: by latency",
    ),
    "memory_throughput": _counted(
        "1", "memory throughput: share of the peak of the busiest unit of caches and memory", "more",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        reading="above 0.6: bound by memory; below, with sm_throughput below 0.6 too: by latency",
    ),
    "dram_throughput": _counted(
        "1", "DRAM throughput: share of the peak bandwidth of device memory", "more",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        reading="above 0.8 only fewer bytes help; below 0.6, with nothing else busy: bound by latency",
    ),
    "l2_throughput": _counted(
        "1", "L2 throughput: share of the L2 cache's peak", "more",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed", usual=False,
    ),
    "l1_throughput": _counted(
        "1", "L1/TEX throughput: share of the L1 cache's peak", "more",
        "l1tex__throughput.avg.pct_of_peak_sustained_active", usual=False,
    ),
    "dram_read": _counted(
        "bytes", "bytes read from device memory", "less", "dram__bytes_read.sum", "dram__bytes_op_read.sum",
        reading="together with dram_written hardly more than minimal_bytes where everything is moved once",
    ),
    "dram_written": _counted(
        "bytes", "bytes written to device memory", "less", "dram__bytes_write.sum", "dram__bytes_op_write.sum"
    ),
    "l1_hit_rate": _counted(
        "1", "L1 hit rate: share of sectors found in the L1 cache", "more", "l1tex__t_sector_hit_rate.pct"
    ),
    "l2_hit_rate": _counted(
        "1", "L2 hit rate: share of sectors found in the L2 cache", "more", "lts__t_sector_hit_rate.pct"
    ),
    "achieved_occupancy": _counted(
        "1", "achieved occupancy: active warps as a share of the most possible", "more",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        reading="below 0.3 latencies are hardly hidden; above 0.6 more seldom helps",
    ),
    "registers_per_thread": _counted(
        "registers", "registers per thread, of 255", "less", "launch__registers_per_thread"
    ),
    "limit_registers": _counted(
        "blocks", "block limit: blocks per multiprocessor that registers allow", "more",
        "launch__occupancy_limit_registers"
    ),
    "limit_shared_memory": _counted(
        "blocks", "block limit: blocks per multiprocessor that shared memory allows", "more",
        "launch__occupancy_limit_shared_mem",
    ),
    "limit_warps": _counted(
        "blocks", "block limit: blocks per multiprocessor that warps allow", "more",
        "launch__occupancy_limit_warps", usual=False,
    ),
    "limit_blocks": _counted(
        "blocks", "block limit: blocks per multiprocessor, by hardware", "more",
        "launch__occupancy_limit_blocks", usual=False,
    ),
    "waves": _counted(
        "", "waves per SM: rounds in which the grid fits on the GPU", "neither",
        "launch__waves_per_multiprocessor",
        reading="a little above a small whole number, the last round is nearly idle",
    ),
    "issue_slots": _counted(
        "1", "issue slots busy: share of cycles in which a warp scheduler issued", "more",
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
    ),
    "eligible_warps": _counted(
        "", "eligible warps per scheduler, ready to issue, per cycle", "more",
        "smsp__warps_eligible.avg.per_cycle_active", usual=False,
    ),
    "warp_instructions": _counted(
        "instructions", "warp instructions executed", "less", "smsp__inst_executed.sum"
    ),
    "tensor_pipe": _counted(
        "1", "tensor pipe utilization: share of cycles in which tensor cores were active", "more",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "tensor_instructions": _counted(
        "instructions", "warp instructions for the tensor cores", "neither",
        "sm__inst_executed_pipe_tensor.sum", usual=False,
    ),
    "fma_pipe": _counted(
        "1", "FMA pipe utilization: share of the peak of the fp32 pipes", "more",
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    ),
    "xu_pipe": _counted(
        "1", "XU pipe utilization: of the pipe for exponentials, roots and conversions", "neither",
        "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    ),
    "fused_multiply_adds": _counted(
        "instructions", "fused multiply-adds of threads, in fp32", "neither",
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", usual=False,
    ),
    "additions": _counted(
        "instructions", "additions of threads, in fp32, not fused", "less",
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", usual=False,
    ),
    "multiplications": _counted(
        "instructions", "multiplications of threads, in fp32, not fused", "less",
        "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", usual=False,
    ),
    "integer_instructions": _counted(
        "instructions", "integer instructions of threads", "less",
        "smsp__sass_thread_inst_executed_op_integer_pred_on.sum", usual=False,
    ),
    "local_loads": _counted(
        "instructions", "warp loads from local memory: spills, or arrays", "less",
        "smsp__inst_executed_op_local_ld.sum",
    ),
    "local_stores": _counted(
        "instructions", "warp stores to local memory: spills, or arrays", "less",
        "smsp__inst_executed_op_local_st.sum",
    ),
    "bank_conflicts": _counted(
        "conflicts", "bank conflicts in shared memory", "less",
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    ),
    "load_use": _counted(
        "1", "global load efficiency: share of the bytes fetched that are used", "more",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
        reading="below 0.6: uncoalesced accesses",
    ),
    "store_use": _counted(
        "1", "global store efficiency: share of the bytes in sectors that are written", "more",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
        reading="below 0.6: uncoalesced accesses",
    ),
    "threads_per_instruction": _counted(
        "", "active threads per warp instruction", "more",
        "smsp__thread_inst_executed_per_inst_executed.ratio", bound=32,
    ),
    "uniform_branches": _counted(
        "1", "branch efficiency: share of branches that all threads of a warp take alike", "more",
        "smsp__sass_average_branch_targets_threads_uniform.pct", usual=False,
    ),
    "stall_long_scoreboard": _stall("long_scoreboard", "for global or local memory"),
    "stall_short_scoreboard": _stall("short_scoreboard", "for shared memory or special functions"),
    "stall_barrier": _stall("barrier", "for others at a barrier"),
    "stall_mio_throttle": _stall("mio_throttle", "for the queue to shared memory"),
    "stall_lg_throttle": _stall("lg_throttle", "for the queue to global memory"),
    "stall_math_throttle": _stall("math_pipe_throttle", "for an arithmetic pipe"),
    "stall_wait": _stall("wait", "a fixed number of cycles", usual=False),
    "stall_not_selected": _stall("not_selected", "though they could issue", usual=False),
    "stall_membar": _stall("membar", "at a memory fence", usual=False),
    "stall_no_instruction": _stall("no_instruction", "for instructions", usual=False),
    "stall_gmma": _stall("gmma", "for asynchronous tensor cores", usual=False),
    # Of GPU kernels. What comes after inner_loops is of these where there are any, else of the whole kernel.
    "built_launches": Definition("launches", "launches in one call, with this grid", "less", "static"),
    "blocks": Definition("blocks", "blocks of a launch", "neither", "static"),
    "threads": Definition("threads", "threads of a block", "neither", "static"),
    "configurations": Definition(
        "kernels", "builds of it: an autotuner's configurations, a template's instances", "neither", "static"
    ),
    "built_registers": Definition("registers", "registers per thread, of 255", "less", "static"),
    "shared_bytes": Definition("bytes/block", "shared memory of a block", "less", "static"),
    "stack_bytes": Definition("bytes/thread", "stack of a thread: spills and local arrays", "less", "static"),
    "occupancy": Definition(
        "1", "theoretical occupancy: share of a multiprocessor's warps", "more", "static",
        reading="below 0.3 latencies are hardly hidden",
    ),
    "warps_by_registers": Definition("warps", "warps that registers allow", "more", "static"),
    "warps_by_shared_memory": Definition("warps", "warps that shared memory allows", "more", "static"),
    "warps_by_threads": Definition("warps", "warps that threads and blocks allow", "more", "static"),
    "built_instructions": Definition("instructions", "instructions of the kernel", "less", "static"),
    "accesses": Definition("instructions", "loads, stores, copies of global memory", "neither", "static"),
    "access_bits": Definition(
        "bit", "bits of a thread's access to global memory, on average", "more", "static", bound=128
    ),
    "local_accesses": Definition(
        "instructions", "loads and stores of local memory: spills, or arrays", "less", "static"
    ),
    "inner_loops": Definition("loops", "inner loops, measured by the rows below", "neither", "static"),
    "loop_instructions": Definition("instructions", "instructions of inner loops", "less", "static"),
    "tensor_products": Definition("instructions", "tensor-core products", "more", "static"),
    "warp_products": Definition(
        "instructions", "products by one warp: HMMA, IMMA, DMMA", "neither", "static"
    ),
    "group_products": Definition(
        "instructions", "products by four warps: HGMMA, QGMMA, IGMMA", "more", "static"
    ),
    "block_products": Definition("instructions", "products by a block: UTCHMMA, UTCQMMA", "more", "static"),
    "fp32_instructions": Definition("instructions", "fp32 arithmetic: FFMA, FADD, FMUL", "neither", "static"),
    "special_functions": Definition("instructions", "special functions: exp2, reciprocal", "less", "static"),
    "global_loads": Definition("instructions", "loads of global memory", "neither", "static"),
    "global_stores": Definition("instructions", "stores to global memory", "neither", "static"),
    "copies": Definition("instructions", "copies to shared memory that bypass registers", "more", "static"),
    "loop_access_bits": Definition(
        "bit", "bits of a thread's access to global memory in inner loops, on average", "more", "static",
        bound=128,
    ),
    "shared_accesses": Definition("instructions", "loads and stores of shared memory", "less", "static"),
    "loop_local_accesses": Definition(
        "instructions", "loads and stores of local memory in inner loops", "less", "static"
    ),
    "barriers": Definition("instructions", "waits for other warps, or for copies", "less", "static"),
    "atomics": Definition("instructions", "atomic operations", "less", "static"),
    "stall_cycles": Definition("cycles", "cycles a warp waits between these instructions", "less", "static"),
    # Of the cost model, for a card that is not here: kernelbench/chips/cost_model.py says how.
    "predicted_call_time": Definition("us", "time of a call: its launches and torch's", "less", "predicted"),
    "predicted_bytes_time": Definition(
        "us", "time of the task's bytes alone, at the card's bandwidth", "neither", "predicted"
    ),
    "predicted_torch_time": Definition(
        "us", "time of torch's calls, by their bytes and FLOPs alone", "less", "predicted"
    ),
    "predicted_time": Definition("us", "time of a launch", "less", "predicted"),
    "predicted_memory": Definition("us", "time of its bytes from device memory alone", "less", "predicted"),
    "predicted_latency": Definition(
        "us", "time of its rounds of blocks, each alone", "less", "predicted",
        reading="the longest: too few bytes are in flight, or too few blocks",
    ),
    "predicted_units": Definition("us", "time of the busiest unit or cache alone", "less", "predicted"),
    "predicted_waves": Definition(
        "", "rounds in which the grid fits on the card", "neither", "predicted",
        reading="below 1, with too few bytes in flight: more and smaller blocks",
    ),
    "predicted_busy": Definition("1", "share of the multiprocessors with a block", "more", "predicted"),
    "predicted_in_flight": Definition(
        "bytes", "bytes of loads under way on a busy multiprocessor", "more", "predicted"
    ),
    "predicted_needed": Definition(
        "bytes", "bytes under way that the bandwidth needs, by Little's law", "neither", "predicted"
    ),
    "predicted_waits": Definition(
        "loads", "loads that a warp waits for one after the other", "less", "predicted"
    ),
    "predicted_dram": Definition("bytes", "bytes from and to device memory", "less", "predicted"),
}  # fmt: skip


def metric(name: str, value: float, kernel: str = "") -> Metric:
    """Return a metric of the catalogue; KeyError if it has none of this name.

    `kernel` is the candidate's own name for it, which can be any text.
    """
    known = CATALOGUE[name]
    called = kernel_name(kernel)
    return Metric(name=name, value=value, unit=known.unit, provenance=known.provenance, kernel=called)
