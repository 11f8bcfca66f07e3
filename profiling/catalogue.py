"""What metrics mean: unit, which way is better, which profilers can tell, and how Nsight Compute calls them.

Its names are unit__counter.rollup. Those below were held against what NVIDIA's performance library of CUDA 13
lists for sm_75 to sm_120, but for launch__ ones, which are Nsight Compute's own. Of the 24 metrics that
CudaForge (arXiv:2511.01884) chose, sm__inst_executed_pipe_fp32 and
smsp__warp_issue_stalled_memory_dependency_per_warp_active are on no such list: what they meant is here the
pipe for fused arithmetic and the stall for long scoreboards.
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

    @property
    def adds_up(self) -> bool:
        """Over launches and kernels; of others it is the mean that counts, by time."""
        return self.unit in _ADDED


def _counted(unit: str, meaning: str, better: Better, *names: str, usual: bool = True) -> Definition:
    return Definition(unit, meaning, better, "ncu", usual=usual, names=names)


def _stall(reason: str, meaning: str, usual: bool = True) -> Definition:
    """Warps that wait for it, in every cycle in which one of the others issues."""
    name = f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    return _counted("", f"warps waiting {meaning}, for each instruction issued", "less", name, usual=usual)


CATALOGUE = {
    "minimal_bytes": Definition("bytes", "inputs, weights and outputs, once each", "less", "roofline"),
    "flops": Definition("FLOP", "of the reference's products and convolutions", "less", "roofline"),
    "memory_floor": Definition("us", "what moving the minimal bytes takes", "less", "roofline"),
    "compute_floor": Definition("us", "what the FLOPs take at the measured peak", "less", "roofline"),
    "achieved_bandwidth": Definition("bytes/s", "minimal bytes over the time", "more", "roofline", True),
    "bandwidth_share": Definition("1", "memory floor over the time", "more", "roofline", True),
    "compute_share": Definition("1", "compute floor over the time", "more", "roofline", True),
    "own_kernel_share": Definition("1", "of the time, not in torch's calls", "neither", "roofline"),
    "loops": Definition("loops", "innermost or unrolled, but for those over a rest", "neither", "static"),
    "vector_bits": Definition("bit", "of the widest vector register in these loops", "more", "static"),
    "packed_share": Definition("1", "vector instructions that work on several numbers", "more", "static"),
    "zmm_share": Definition("1", "of these, those on 512 bits", "neither", "static"),
    "ymm_share": Definition("1", "of these, those on 256 bits", "neither", "static"),
    "fma_share": Definition("1", "floating-point arithmetic that is fused", "more", "static"),
    "divisions": Definition("instructions", "divisions and square roots in these loops", "less", "static"),
    "gathers": Definition("instructions", "vectors whose elements lie apart", "less", "static"),
    "spills": Definition("instructions", "vector registers to and from the stack", "less", "static"),
    "streaming_stores": Definition("instructions", "stores past the caches", "neither", "static"),
    "prefetches": Definition("instructions", "of memory that is wanted soon", "neither", "static"),
    "calls_in_loops": Definition("instructions", "calls, mostly of scalar functions", "less", "static"),
    "loops_vectorized": Definition("loops", "loops that the compiler has vectorized", "more", "static"),
    "loops_missed": Definition("loops", "innermost loops that it has not", "less", "static"),
    "cpu_time": Definition("us", "of all threads together", "less", "perf"),
    "cycles": Definition("cycles", "of all threads together", "less", "perf"),
    "instructions": Definition("instructions", "executed", "less", "perf"),
    "instructions_per_cycle": Definition("instructions/cycle", "executed", "more", "perf"),
    "last_level_loads": Definition("loads", "that reached the last cache", "less", "perf"),
    "last_level_load_misses": Definition("loads", "that it did not have", "less", "perf"),
    "loaded_from_memory": Definition("bytes", "these, 64 each; prefetches aside", "less", "perf"),
    "cache_misses": Definition("misses", "by Linux's generic event", "less", "perf"),
    "branch_misses": Definition("branches", "that were not foreseen", "less", "perf"),
    "time_share": Definition("1", "of a call's CPU time, in this kernel", "neither", "perf"),
    "time_in_torch": Definition("1", "of a call's CPU time, in torch and its libraries", "neither", "perf"),
    "time_in_system": Definition("1", "of a call's CPU time, in the system: page faults", "less", "perf"),
    "time_waiting": Definition("1", "of a call's CPU time, of threads that wait for others", "less", "perf"),
    "page_faults": Definition("faults", "pages touched for the first time", "less", "perf"),
    "context_switches": Definition("switches", "of threads that gave up a CPU", "less", "perf"),
    "simulated_fetched": Definition("bytes", "fetched from memory, by simulated caches", "less", "simulated"),
    "simulated_calls": Definition("calls", "calls of it in one of forward", "less", "simulated"),
    "simulated_instructions": Definition("instructions", "instructions, of AVX2", "less", "simulated"),
    "simulated_reads": Definition("accesses", "reads of data", "less", "simulated"),
    "simulated_writes": Definition("accesses", "writes of data", "less", "simulated"),
    "simulated_l1_misses": Definition("misses", "misses of data in the first cache", "less", "simulated"),
    "simulated_last_misses": Definition("misses", "misses of data in the last cache", "less", "simulated"),
    "emulated_load_sectors": Definition("sectors", "32-byte sectors of a warp's load", "less", "emulated"),
    "emulated_store_sectors": Definition("sectors", "32-byte sectors of a warp's store", "less", "emulated"),
    "emulated_sector_use": Definition("1", "of these sectors, those that would do", "more", "emulated"),
    "emulated_bank_passes": Definition("", "passes over the banks for one that would do", "less", "emulated"),
    "launches": Definition("launches", "of kernels, in a call", "less", "cupti"),
    "own_launches": Definition("launches", "of these, the candidate's own kernels", "neither", "cupti"),
    "gpu_time": Definition("us", "in which something ran, in a call", "less", "cupti", True),
    "own_share": Definition("1", "of that time, in the candidate's own kernels", "neither", "cupti"),
    "gpu_gaps": Definition("us", "between them, in which nothing ran", "less", "cupti"),
    "traced_time": Definition("us", "all its launches together", "less", "cupti", True),
    "traced_launches": Definition("launches", "in a call", "less", "cupti"),
    "block_threads": Definition("threads", "of a block", "neither", "cupti"),
    "grid_blocks": Definition("blocks", "of the grid", "neither", "cupti"),
    "registers": Definition("registers", "of a thread", "less", "cupti"),
    "shared_memory": Definition("bytes/block", "given to it at its launch too", "neither", "cupti"),
    "blocks_per_sm": Definition("", "of the grid per multiprocessor: below 1, some idle", "more", "cupti"),
    "estimated_occupancy": Definition("1", "from registers, shared memory and the grid", "more", "cupti"),
    "duration": Definition(
        "us", "all its launches together", "less", "ncu", of_time=True,
        names=("gpu__time_duration.sum",),
    ),
    "profiled_launches": Definition("launches", "that ncu looked at, in a call", "less", "ncu"),
    "sm_throughput": _counted(
        "1", "of the peak of the busiest part of the multiprocessors", "more",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "memory_throughput": _counted(
        "1", "of the peak of the busiest part of caches and memory", "more",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "dram_throughput": _counted(
        "1", "of the bandwidth of device memory", "more", "dram__throughput.avg.pct_of_peak_sustained_elapsed"
    ),
    "l2_throughput": _counted(
        "1", "of the L2 cache's peak", "more",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed", usual=False,
    ),
    "l1_throughput": _counted(
        "1", "of the L1 cache's peak", "more",
        "l1tex__throughput.avg.pct_of_peak_sustained_active", usual=False,
    ),
    "dram_read": _counted(
        "bytes", "from device memory", "less", "dram__bytes_read.sum", "dram__bytes_op_read.sum"
    ),
    "dram_written": _counted(
        "bytes", "to device memory", "less", "dram__bytes_write.sum", "dram__bytes_op_write.sum"
    ),
    "l1_hit_rate": _counted("1", "of sectors, in the L1 cache", "more", "l1tex__t_sector_hit_rate.pct"),
    "l2_hit_rate": _counted("1", "of sectors, in the L2 cache", "more", "lts__t_sector_hit_rate.pct"),
    "achieved_occupancy": _counted(
        "1", "of the warps that there can be, those that were active", "more",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    ),
    "registers_per_thread": _counted("registers", "of a thread", "less", "launch__registers_per_thread"),
    "limit_registers": _counted(
        "blocks", "of a multiprocessor, as far as registers go", "more", "launch__occupancy_limit_registers"
    ),
    "limit_shared_memory": _counted(
        "blocks", "of a multiprocessor, as far as shared memory goes", "more",
        "launch__occupancy_limit_shared_mem",
    ),
    "limit_warps": _counted(
        "blocks", "of a multiprocessor, as far as warps go", "more",
        "launch__occupancy_limit_warps", usual=False,
    ),
    "limit_blocks": _counted(
        "blocks", "of a multiprocessor, at most", "more", "launch__occupancy_limit_blocks", usual=False
    ),
    "waves": _counted(
        "", "rounds in which the grid fits on the GPU", "neither", "launch__waves_per_multiprocessor"
    ),
    "issue_slots": _counted(
        "1", "of cycles in which a warp scheduler issued", "more",
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
    ),
    "eligible_warps": _counted(
        "", "warps of a scheduler that could issue, in a cycle", "more",
        "smsp__warps_eligible.avg.per_cycle_active", usual=False,
    ),
    "warp_instructions": _counted("instructions", "of warps", "less", "smsp__inst_executed.sum"),
    "tensor_pipe": _counted(
        "1", "of cycles in which the tensor cores worked", "more",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "tensor_instructions": _counted(
        "instructions", "of warps, for the tensor cores", "neither",
        "sm__inst_executed_pipe_tensor.sum", usual=False,
    ),
    "fma_pipe": _counted(
        "1", "of the peak of the pipes for fp32 arithmetic", "more",
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    ),
    "xu_pipe": _counted(
        "1", "of the peak of the pipe for exponentials, roots and conversions", "neither",
        "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    ),
    "fused_multiply_adds": _counted(
        "instructions", "of threads, in fp32", "neither",
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", usual=False,
    ),
    "additions": _counted(
        "instructions", "of threads, in fp32, not fused", "less",
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", usual=False,
    ),
    "multiplications": _counted(
        "instructions", "of threads, in fp32, not fused", "less",
        "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", usual=False,
    ),
    "integer_instructions": _counted(
        "instructions", "of threads", "less",
        "smsp__sass_thread_inst_executed_op_integer_pred_on.sum", usual=False,
    ),
    "local_loads": _counted(
        "instructions", "of warps, from local memory: spills, or arrays", "less",
        "smsp__inst_executed_op_local_ld.sum",
    ),
    "local_stores": _counted(
        "instructions", "of warps, to local memory: spills, or arrays", "less",
        "smsp__inst_executed_op_local_st.sum",
    ),
    "bank_conflicts": _counted(
        "conflicts", "of accesses to shared memory", "less",
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    ),
    "load_use": _counted(
        "1", "of the bytes of sectors that global loads fetch, those asked for", "more",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    ),
    "store_use": _counted(
        "1", "of the bytes of sectors that global stores touch, those written", "more",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    ),
    "threads_per_instruction": _counted(
        "", "threads, of 32, that an instruction of a warp is for", "more",
        "smsp__thread_inst_executed_per_inst_executed.ratio",
    ),
    "uniform_branches": _counted(
        "1", "of branches, those that all threads of a warp take alike", "more",
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
    "configurations": Definition("kernels", "configurations: the first one is built", "neither", "static"),
    "built_registers": Definition("registers", "registers of a thread", "less", "static"),
    "shared_bytes": Definition("bytes/block", "shared memory of a block", "less", "static"),
    "stack_bytes": Definition("bytes/thread", "stack of a thread: spills and local arrays", "less", "static"),
    "occupancy": Definition("1", "occupancy: of the warps a multiprocessor can hold", "more", "static"),
    "warps_by_registers": Definition("warps", "warps that registers let it hold", "more", "static"),
    "warps_by_shared_memory": Definition("warps", "warps that shared memory lets it hold", "more", "static"),
    "warps_by_threads": Definition("warps", "warps that threads and blocks let it hold", "more", "static"),
    "built_instructions": Definition("instructions", "instructions of the kernel", "less", "static"),
    "accesses": Definition("instructions", "loads, stores, copies of global memory", "neither", "static"),
    "access_bits": Definition("bit", "bits of these, of a thread, on average", "more", "static"),
    "local_accesses": Definition("instructions", "loads, stores of what was spilled", "less", "static"),
    "inner_loops": Definition("loops", "inner loops; what follows is theirs, if any", "neither", "static"),
    "loop_instructions": Definition("instructions", "instructions of inner loops", "less", "static"),
    "tensor_products": Definition("instructions", "of these tensor cores' products", "more", "static"),
    "warp_products": Definition("instructions", "by a warp each: HMMA, IMMA, DMMA", "neither", "static"),
    "group_products": Definition("instructions", "by four warps: HGMMA, QGMMA, IGMMA", "more", "static"),
    "block_products": Definition("instructions", "by a block: UTCHMMA, UTCQMMA", "more", "static"),
    "fp32_instructions": Definition("instructions", "fp32 arithmetic: FFMA, FADD, FMUL", "neither", "static"),
    "special_functions": Definition("instructions", "special functions: exp2, reciprocal", "less", "static"),
    "global_loads": Definition("instructions", "loads of global memory", "neither", "static"),
    "global_stores": Definition("instructions", "stores to global memory", "neither", "static"),
    "copies": Definition("instructions", "copies to shared memory, past registers", "more", "static"),
    "loop_access_bits": Definition("bit", "bits of these, of a thread, on average", "more", "static"),
    "shared_accesses": Definition("instructions", "loads and stores of shared memory", "less", "static"),
    "loop_local_accesses": Definition("instructions", "loads, stores of what was spilled", "less", "static"),
    "barriers": Definition("instructions", "waits for other warps, or for copies", "less", "static"),
    "atomics": Definition("instructions", "atomic operations", "less", "static"),
    "stall_cycles": Definition("cycles", "cycles a warp waits between these instructions", "less", "static"),
}  # fmt: skip


def metric(name: str, value: float, kernel: str = "") -> Metric:
    """A metric of the catalogue. Raises KeyError where there is none of this name.

    `kernel`: as the candidate calls it, who may call it anything.
    """
    known = CATALOGUE[name]
    called = kernel_name(kernel)
    return Metric(name=name, value=value, unit=known.unit, provenance=known.provenance, kernel=called)
