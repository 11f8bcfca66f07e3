"""Rules of the tuner, a table: the effect of each knob, and the bottlenecks that it can fix."""

from collections.abc import Set
from dataclasses import dataclass

from kernelwright.profiling.records import FindingKind


@dataclass(frozen=True)
class Rule:
    """Expected effect of one knob.

    `spread`: the standard deviation of the logarithm of the speedup from one of its values to another, with
    all of the time left to be gained (see `reach`). It is fitted to the schedules of many tasks
    (results/published/cpu/knobs.md), and assumed for knobs that these do not have, such as those of GPUs.
    """

    knob: str  # its name without the kernel
    method: str
    plan: str  # with {where}, {old} and {new}
    fixes: Set[FindingKind]
    spread: float


RULES = (
    Rule(
        "layout",
        "change the layout of images",
        "Have images {new} in memory instead of {old}: convolutions need not reorder images whose channels "
        "lie last, and what comes in or goes out in the other order is copied once.",
        frozenset({"memory", "compute"}),
        0.28,
    ),
    Rule(
        "windows",
        "choose between own kernels and the library's",
        "Leave pooling and depthwise convolutions to {new} kernels instead of {old} ones: the library's may "
        "be better suited to these shapes, our own take along what comes before and after.",
        frozenset({"memory", "compute"}),
        0.69,
    ),
    Rule(
        "products",
        "choose between own kernels and the library's",
        "Leave products with few vectors, or of small matrices, to {new} kernels instead of {old} ones: our "
        "own take along what comes after, and read the matrix of few vectors once; the library's may keep "
        "more of it in registers.",
        frozenset({"memory", "compute"}),
        0.18,
    ),
    Rule(
        "gemm",
        "compute products on matrix units",
        "Leave large products of float32 to {new} instead of {old}: bf16x6 is six products of bfloat16 on "
        "AMX tiles, as exact, which take along what comes after them; the library's are of float32.",
        frozenset({"compute"}),
        0.37,
    ),
    Rule(
        "topk",
        "choose between own kernels and the library's",
        "Leave the few largest elements of rows to {new} kernels instead of {old} ones: our own pass over a "
        "row once for each and take along what comes before and after, the library's sort a part of it.",
        frozenset({"memory", "compute"}),
        0.1,
    ),
    Rule(
        "blocks",
        "change how much of a product is there at once",
        "Compute the product whose result is reduced away in blocks of {new} MiB instead of {old} (off: the "
        "whole): small blocks stay in the caches for what reads them, large ones read weights less often.",
        frozenset({"memory", "compute"}),
        0.1,
    ),
    Rule(
        "attention",
        "choose between own kernels and the library's",
        "Have attention {new} instead of {old}: a kernel of our own that never has the scores in memory, "
        "torch's call, or products with a kernel between them.",
        frozenset({"memory", "compute"}),
        0.1,
    ),
    Rule(
        "streaming",
        "change how results are stored",
        "Switch non-temporal stores of {where} from {old} to {new}: streaming stores save the "
        "read-for-ownership of every line written, plain stores leave the result in the cache.",
        frozenset({"memory"}),
        0.15,
    ),
    Rule(
        "prefetch",
        "change the prefetching",
        "Turn software prefetching {new} in {where}: it fetches the next row or block while this one is "
        "computed, and costs instructions where the hardware would have done the same.",
        frozenset({"memory", "latency", "instructions"}),
        0.11,
    ),
    Rule(
        "threads",
        "change the number of threads",
        "Run {where} with threads={new} instead of {old}: a parallel region costs microseconds to open, "
        "a single thread leaves a core idle.",
        frozenset({"launch", "imbalance"}),
        0.1,
    ),
    Rule(
        "parts",
        "change what threads share",
        "Set parts={new} in {where} (was {old}): threads share the elements of columns, read in the order of "
        "memory and put together at the end, or each has columns of its own.",
        frozenset({"memory", "imbalance"}),
        0.09,
    ),
    Rule(
        "online",
        "change the passes over a row",
        "Set online={new} in {where} (was {old}): a maximum with the exponentials below it, or a mean with "
        "the squares about it, take one pass with corrections or two without.",
        frozenset({"memory", "instructions"}),
        0.08,
    ),
    Rule(
        "keep",
        "trade memory for arithmetic",
        "Set keep={new} in {where} (was {old}): a value that two passes need is either kept in a buffer on "
        "the thread's stack, or in registers, or computed again.",
        frozenset({"memory", "compute", "instructions"}),
        0.18,
    ),
    Rule(
        "vector",
        "change the vector width",
        "Compile for {new}-bit vectors instead of {old}: wide vectors halve the instructions, narrow ones "
        "keep the clock up and use two ports.",
        frozenset({"memory", "compute", "instructions"}),
        0.15,
    ),
    Rule(
        "unroll",
        "unroll the inner loops",
        "Turn loop unrolling {new}: more independent work for each core between two branches.",
        frozenset({"compute", "instructions"}),
        0.02,
    ),
    Rule(
        "block",
        "change the block size",
        "Use blocks of {new} elements in {where} instead of {old}: small blocks stay in the first-level "
        "cache, large ones have less overhead each.",
        frozenset({"memory", "compute", "instructions", "imbalance"}),
        0.18,
    ),
    Rule(
        "rows",
        "change the rows of a program",
        "Give a program of {where} {new} rows at once instead of {old}: more of them share what is started "
        "and loaded once, fewer leave registers for more programs on a multiprocessor.",
        frozenset({"memory", "compute", "latency", "launch", "imbalance"}),
        0.06,
    ),
    Rule(
        "tile",
        "change the size of tiles",
        "Give a block of {where} tiles of {new} rows of the product instead of {old}: large ones read each "
        "matrix less often, small ones give more multiprocessors work.",
        frozenset({"memory", "compute", "latency", "imbalance"}),
        0.1,
    ),
    Rule(
        "across",
        "change the width of tiles",
        "Give a program of {where} tiles of {new} columns of the product instead of {old}: wide ones read "
        "each matrix less often, narrow ones give more multiprocessors work and need fewer registers.",
        frozenset({"memory", "compute", "latency", "imbalance"}),
        0.1,
    ),
    Rule(
        "stages",
        "change how far loads are ahead",
        "Have the loads of {new} steps of {where} under way instead of {old}: more hide the time that they "
        "take, fewer leave shared memory for another program.",
        frozenset({"memory", "compute", "latency"}),
        0.08,
    ),
    Rule(
        "group",
        "change the order of tiles",
        "Work on {new} rows of tiles of {where} together instead of {old}: those that run at a time read the "
        "same rows and columns from the second-level cache.",
        frozenset({"memory", "compute"}),
        0.05,
    ),
    Rule(
        "precision",
        "change how float32 is multiplied",
        "Set precision={new} in {where} (was {old}): tf32x3 is three products on tensor cores, with nearly "
        "the error of ieee, which is one without them.",
        frozenset({"compute", "instructions", "latency"}),
        0.2,
    ),
    Rule(
        "warps",
        "change the number of warps",
        "Run a program of {where} with {new} warps instead of {old}: fewer keep more elements in each "
        "thread, more hide the time that loads take.",
        frozenset({"memory", "compute", "latency"}),
        0.08,
    ),
    Rule(
        "split",
        "change how many blocks share a long reduction",
        "Give long reductions {new} blocks for each multiprocessor instead of {old} (off: a block for each "
        "row): more of them load at the same time, fewer leave less to be put together.",
        frozenset({"memory", "latency", "launch", "imbalance"}),
        0.3,
    ),
    Rule(
        "in_place",
        "change where the result goes",
        "Set in_place={new} in {where} (was {old}): written over the library call's result it needs no new "
        "pages, written apart it can be streamed.",
        frozenset({"memory", "launch"}),
        0.09,
    ),
    Rule(
        "fuse",
        "change what is fused",
        "Set fuse={new} (was {old}): a reduction shares the loop of what computes its operand, or has a "
        "kernel of its own with simpler loops.",
        frozenset({"memory", "compute", "instructions", "launch"}),
        0.02,
    ),
)

BY_KNOB = {rule.knob: rule for rule in RULES}
