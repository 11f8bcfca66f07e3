"""Cost of PTX instructions: units of a multiprocessor that they occupy, and how long their result takes.

A warp alone takes the cycles of `elapsed`: within a basic block an instruction begins when its operands are
there, as ptxas moves loads ahead of what uses them; a block begins when all of the one before it has begun,
as a warp issues in order. Copies that pass no register are waited for where the code waits for their group.

    $L2: ld.global.f32 %f1, [%rd1];      starts at 0, its value is there at 552
         add.f32       %f2, %f2, %f1;    starts at 552
         @%p1 bra      $L2;              the next iteration starts at 553: one latency an iteration
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.kernelbench.chips.ptx.parsing import PtxBlock, PtxInstruction, PtxKernel
from kernelwright.kernelbench.chips.ptx.walking import is_global

# Machine instructions for one of PTX, where they are not one, and special functions (MUFU) among them:
# counted in what NVRTC 13.5 builds of them for sm_90a, less the loads, stores and addresses around them.
_SEVERAL = {
    "div.rn.f32": (12, 1), "div.full.f32": (4, 1), "div.approx.f32": (4, 1), "rcp.rn.f32": (11, 1),
    "sqrt.rn.f32": (12, 1), "sqrt.approx.f32": (2, 1), "rsqrt.approx.f32": (2, 1), "ex2.approx.f32": (2, 1),
    "lg2.approx.f32": (2, 1), "div.u32": (17, 1), "div.s32": (23, 1), "rem.u32": (18, 1), "rem.s32": (21, 1),
    "div.s64": (80, 2), "div.u64": (80, 2), "rem.s64": (80, 2), "rem.u64": (80, 2), "div.rn.f64": (20, 1),
    "sqrt.rn.f64": (20, 1),
}  # fmt: skip
_SPECIAL = {"ex2", "lg2", "sin", "cos", "rsqrt", "rcp", "sqrt", "tanh"}
_NOTHING = {
    "bra",
    "mov",
    "cvta",
    "ret",
    "exit",
    "fence",
    "membar",
    "griddepcontrol",
}  # mov: mostly renamed away
_ALU, _MUFU, _SHUFFLE, _SHARED, _BARRIER, _MMA = 4, 20, 23, 29, 20, 33  # cycles until the result is there
_MOST_SKIPPED = 24  # instructions that a branch skips, up to which ptxas predicates them; assumed
_MOST_JOINED = 64  # blocks
_TILE = re.compile(r"^m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)$")
_PRECISIONS = {
    "f16": "fp16", "bf16": "bf16", "tf32": "tf32", "e4m3": "fp8", "e5m2": "fp8", "s8": "int8", "u8": "int8",
    "f64": "fp64",
}  # fmt: skip
_TENSOR = {"mma", "wgmma"}
_BITS = re.compile(r"\.v(?P<count>\d)|\.(?:[busf]|bf)(?P<bits>8|16|32|64|128)(?:x2)?$")
# Of what nothing here knows the size or the rate: TMA copies and the tensor memory of sm_100.
UNREAD = re.compile(r"^(cp\.async\.bulk|tcgen05|cp\.reduce)")


@dataclass(frozen=True)
class Latencies:
    """Cycles until a load has its value: from the L1 cache, the L2 cache, and device memory."""

    l1: float
    l2: float
    dram: float


@dataclass(frozen=True)
class InstructionCost:
    issues: int  # instructions that the warp issues
    units: Mapping[str, float]  # instructions by unit; "lsu": passes of 128 bytes
    cycles: float  # until the result is there; of loads of global memory, see Latencies
    flops: Mapping[str, float] = field(default_factory=dict)  # of a warp on tensor cores, by precision


def bytes_of(this: PtxInstruction) -> int:
    """Bytes that a thread loads, stores or copies."""
    if this.name == "cp":
        sizes = [int(operand) for operand in this.operands if operand.isdigit()]
        return sizes[0] if sizes else 16
    count, bits = 1, 32
    for match in _BITS.finditer(this.opcode):
        if match["count"]:
            count = int(match["count"])
        elif match["bits"]:
            bits = int(match["bits"]) * (2 if this.opcode.endswith("x2") else 1)
    return count * bits // 8


def price(this: PtxInstruction) -> InstructionCost:
    name, words = this.name, this.words
    if name in _TENSOR and (tile := next(filter(None, map(_TILE.match, words)), None)) is not None:
        types = [_PRECISIONS[word] for word in words if word in _PRECISIONS]
        precision = types[-1] if types else "fp16"
        if types and words[-1] in ("f32", "f16") and len(types) > 1 and name == "mma":
            precision = types[-2] if words[-1] == "f16" and types[-2] != "fp16" else types[0]
        if "tf32" in words:
            precision = "tf32"
        flops = 2.0 * int(tile["m"]) * int(tile["n"]) * int(tile["k"]) / (4 if name == "wgmma" else 1)
        return InstructionCost(1, {}, _MMA if name == "mma" else 0, {precision: flops})
    if name in _NOTHING:
        return InstructionCost(1 if name == "bra" else 0, {}, 0)
    if is_global(this):
        return InstructionCost(1, {"lsu": max(1.0, bytes_of(this) * 32 / 128)}, 0)
    if name in ("ld", "st", "atom", "red", "ldmatrix", "stmatrix") and "param" not in words:
        shared = max(1.0, bytes_of(this) * 32 / 128) if "matrix" not in name else 4.0
        return InstructionCost(1, {"lsu": shared}, _SHARED)
    if name == "ld":
        return InstructionCost(1, {}, _ALU)
    if name in ("shfl", "redux"):
        return InstructionCost(1, {"shuffle": 1.0}, _SHUFFLE)
    if name in ("bar", "barrier"):
        return InstructionCost(1, {}, _BARRIER)
    kind = ".".join(w for w in (name, *words[1:]) if w not in ("ftz", "sat"))
    issues, special = _SEVERAL.get(kind, (1, 1 if name in _SPECIAL else 0))
    units: dict[str, float] = {"special": special} if special else {}
    rest = issues - special
    type_ = words[-1]
    if type_ == "f64" and name != "cvt":
        units["fp64"] = rest or 1
    elif name == "cvt":
        units["conversion64" if "f64" in words else "conversion"] = 1.0
    elif type_ in ("f32", "f32x2", "f16x2", "bf16x2", "f16", "bf16"):
        units["fp32"] = rest
    else:
        units["int"] = rest
    return InstructionCost(
        issues, units, _MUFU * special + _ALU * max(1, rest) if special or issues > 1 else _ALU
    )


@dataclass(frozen=True)
class _State:
    """Loads and copies that are under way when a block begins, in cycles from then."""

    registers: tuple[tuple[str, float], ...] = ()
    copies: float = 0.0  # of the group that is not closed yet
    groups: tuple[float, ...] = ()


class Clock:
    """Cycles of a warp alone.

    `loads`: cycles of each load of global memory, by instruction number; `unrolled`: iterations of a block
    that loops which ptxas has made one of, by the block's number.
    """

    def __init__(
        self,
        kernel: PtxKernel,
        loads: Callable[[int], float],
        fence: float,
        unrolled: Mapping[int, int],
    ) -> None:
        self._kernel, self._loads, self._fence = kernel, loads, fence
        self._unrolled = unrolled
        self._known: dict[tuple[tuple[int, ...], _State], tuple[float, _State]] = {}
        self._joins = _joins(kernel)
        sizes = [len(block.instructions) for block in kernel.blocks]
        self._first = [sum(sizes[:at]) for at in range(len(sizes))]
        self._prices = [[price(i) for i in block.instructions] for block in kernel.blocks]

    def elapsed(self, way: Sequence[int]) -> float:
        total, state = 0.0, _State()
        for segment in self._segments(way):
            key = (segment, state)
            if key not in self._known:
                self._known[key] = self._after(segment, state)
            cycles, state = self._known[key]
            total += cycles
        last = max((at for _, at in state.registers), default=0.0)
        return total + max(last, *state.groups, 0.0)

    def _segments(self, way: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield blocks that ptxas makes one piece of code of: short branches, unrolled iterations."""
        for segment, run in itertools.groupby(self._joined(way)):
            together = self._unrolled.get(segment[0], 1) if len(segment) == 1 else 1
            left = sum(1 for _ in run)
            while left >= together > 1:
                yield segment * together
                left -= together
            for _ in range(left):
                yield segment

    def _joined(self, way: Sequence[int]) -> Iterator[tuple[int, ...]]:
        segment: list[int] = []
        for number in way:
            if segment and ((segment[-1], number) not in self._joins or len(segment) >= _MOST_JOINED):
                yield tuple(segment)
                segment = []
            segment.append(number)
        if segment:
            yield tuple(segment)

    def _after(self, segment: Sequence[int], state: _State) -> tuple[float, _State]:
        code = [
            (self._first[number] + place, this, cost)
            for number in segment
            for place, (this, cost) in enumerate(
                zip(self._kernel.blocks[number].instructions, self._prices[number], strict=True)
            )
        ]
        ready = dict(state.registers)
        copies, groups = state.copies, list(state.groups)
        earliest, issued, latest = 0.0, 0, 0.0
        stored = 0.0  # when the last store of global memory began, which no load goes before
        for at, this, cost in code:
            sources = _read(this)
            start = max(earliest, *(ready.get(name, 0.0) for name in sources), 0.0)
            if is_global(this):
                if this.name == "st":
                    stored = max(stored, start)
                elif "nc" not in this.words:
                    start = max(start, stored)
            issued += cost.issues
            if this.name in ("bar", "barrier"):
                start = max(start, latest)
                earliest = start + cost.cycles
            elif "wait_group" in this.words or "wait_all" in this.words:
                left = int(this.operands[0]) if this.operands and this.operands[0].isdigit() else 0
                done = groups[: len(groups) - left] if left else groups
                start = earliest = max(start, latest, *done, 0.0)
                groups = groups[len(groups) - left :] if left else []
            elif "commit_group" in this.words:
                groups.append(copies)
                copies = 0.0
            elif this.name == "wgmma" and "mma_async" in this.words:
                copies = max(copies, start + _MMA * 4)
            elif this.name == "cp":
                copies = max(copies, start + self._loads(at))
            elif this.name in ("membar", "fence") and "proxy" not in this.words:
                start = max(start, latest)
                earliest = start + self._fence
            latest = max(latest, start)
            far = is_global(this) and this.name in ("ld", "atom")
            result = start + (self._loads(at) if far else cost.cycles)
            for name in _written(this):
                ready[name] = result
        now = max(latest, earliest, float(issued))
        left_over = tuple(sorted((name, at - now) for name, at in ready.items() if at > now))
        after = _State(left_over, max(0.0, copies - now), tuple(max(0.0, at - now) for at in groups))
        return now, after


def _joins(kernel: PtxKernel) -> set[tuple[int, int]]:
    """Return the pairs of blocks between which ptxas leaves no branch, but predicates a few instructions."""
    blocks = kernel.blocks
    heads = {to for at, block in enumerate(blocks) for to in block.after if to <= at}
    found = set()
    for at, block in enumerate(blocks):
        for to in block.after:
            between = blocks[at + 1 : to]
            skipped = [this.name for each in between for this in each.instructions]
            short = len(skipped) <= _MOST_SKIPPED and not {"bar", "barrier", "call"} & set(skipped)
            if to > at and short and not heads & set(range(at + 1, to + 1)):
                found.add((at, to))
    return found


_REGISTER = re.compile(r"%[\w$.]+")


def _written(this: PtxInstruction) -> list[str]:
    stores = ("st", "red", "bar", "barrier", "bra", "cp", "wgmma", "fence", "membar")
    return [] if this.name in stores or not this.operands else _REGISTER.findall(this.operands[0])


def _read(this: PtxInstruction) -> list[str]:
    stores = ("st", "red", "bra", "cp", "bar", "barrier")
    operands = this.operands if this.name in stores else this.operands[1:]
    if this.name == "wgmma":  # whose accumulators are waited for by group
        operands = this.operands[1:]
    found = [name for operand in operands for name in _REGISTER.findall(operand)]
    return [*found, this.guard] if this.guard else found


def counted(kernel: PtxKernel, way: Sequence[int]) -> tuple[Counter[str], Counter[str]]:
    """Return what a warp issues ("issue") and occupies, by unit, and its FLOPs on tensor cores."""
    units: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    for number, times in Counter(way).items():
        for this in kernel.blocks[number].instructions:
            cost = price(this)
            units["issue"] += cost.issues * times
            for name, count in cost.units.items():
                units[name] += count * times  # type: ignore[assignment]
            for name, count in cost.flops.items():
                flops[name] += count * times  # type: ignore[assignment]
    return units, flops


def numbered(blocks: Sequence[PtxBlock]) -> list[PtxInstruction]:
    return [instruction for block in blocks for instruction in block.instructions]
