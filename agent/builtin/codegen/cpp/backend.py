"""C++ as the coder writes it, and the schedules of its kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kernelwright.agent.builtin.codegen.backend import Batch, Function, Kernel, KnobReader, Language
from kernelwright.agent.builtin.codegen.c_like import BracedLines
from kernelwright.agent.builtin.codegen.cpp.attention import attention_kernel
from kernelwright.agent.builtin.codegen.cpp.columns import PARTS, ColumnEmitter
from kernelwright.agent.builtin.codegen.cpp.emit import MODEST, CppEmitter, CppKnobs
from kernelwright.agent.builtin.codegen.cpp.headers import helpers, standard_headers
from kernelwright.agent.builtin.codegen.cpp.products import (
    CHOICE,
    CppProductEmitter,
    amx_product,
    has_amx,
)
from kernelwright.agent.builtin.codegen.cpp.products import KNOBS as PRODUCT_KNOBS
from kernelwright.agent.builtin.codegen.cpp.rows import CppRowEmitter
from kernelwright.agent.builtin.codegen.cpp.tiles import TILE, CppTileEmitter
from kernelwright.agent.builtin.codegen.cpp.types import RESERVED
from kernelwright.agent.builtin.codegen.naming import unique
from kernelwright.agent.builtin.ir.program import Attention, Program, Reduce, Scan
from kernelwright.agent.builtin.ir.text import ITEMSIZE, times, total
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.builtin.ir.uses import operands
from kernelwright.agent.builtin.schedule import legal
from kernelwright.agent.builtin.scheduling.launches import SMALL
from kernelwright.agent.builtin.scheduling.loop_nest import KEPT_LIMIT, Plan, plan
from kernelwright.agent.builtin.scheduling.online import online
from kernelwright.kernelbench.free_sizes.size import divides, is_free

# Measured on two cores of an AMD EPYC with AVX-512 and a last-level cache of 32 MiB where an entry of
# docs/LOG.md is named; the rest is chosen by hand.
_PREFETCH_LIMIT = 1 << 16  # elements of a row, over all inputs, up to which the next row is prefetched
_DEAR = 12  # additions per element from which arithmetic hides the memory's latency
_CLEARLY = 8  # factor of work from where threads begin to pay, either way, within which it is a knob
_LINE_BYTES = 64  # of a cache line
_BEYOND_CACHES = 16 << 20  # bytes of results to stream past the caches; twice that if read again (2026-11-23)
_NARROW = 32  # columns of a tile; 64 are too many streams of memory ("Turning an image's layout")
_LEAST_BLOCKS = 8  # blocks of columns that threads share, at least
_LEAST_SHARED = 1024  # elements of a column from which threads may share them
_LEAST_ONLINE = 1 << 12  # elements of a row from which its first two passes may be one
_ONLINE = 1 << 17  # elements of a row from which they are: 512 KiB of float32 (2026-11-23)
_PARTS_BLOCK = 2048  # columns of a block whose elements threads share
_PARTS_BYTES = 1 << 20  # bytes of stack for the parts of all reductions of a block


class Cpp(Language):
    """`every_choice`: threads are asked for in every kernel, not only where one may be as good as many.

    For data that is to hold slow kernels, too, and for policies that are to learn which are.
    """

    name = "cpp"
    folder = Path(__file__).parent / "templates"
    graph_knobs = frozenset({"fuse", "vector", "unroll"})
    reserved = RESERVED
    batches = True

    def __init__(self, every_choice: bool = False) -> None:
        self._every_choice = every_choice
        if has_amx():
            self.defaults = {"gemm": "library"}  # so that it is a choice

    def replanned(self, planned: Plan, program: Program, ask: KnobReader) -> Plan:
        recurrence = planned.region.recurrence is not None  # which keeps what it overwrites
        if planned.kept and not recurrence and is_free(planned.row_length):  # buffers have one size
            return plan(planned.region, program, planned.outputs, keep=False)
        default = "off" if _divisible(planned) and _few_columns(planned) else "on"
        if planned.kept and not recurrence and ask("keep", default) == "off":
            return plan(planned.region, program, planned.outputs, keep=False)
        return planned

    def kernel(
        self,
        name: str,
        planned: Plan,
        program: Program,
        pointers: Mapping[str, str],
        in_place: frozenset[str],
        ask: KnobReader,
        batch: Batch,
    ) -> Kernel:
        if batch.count == 1 and amx_product(planned, program) is not None:
            if not has_amx():
                raise Untraceable(f"gemm={CHOICE} needs AMX tiles, which this CPU has not")
            return CppProductEmitter(planned, program, PRODUCT_KNOBS, pointers).kernel(name)
        emitters: dict[str, type[CppEmitter]] = {"columns": ColumnEmitter, "tiles": CppTileEmitter}
        emitter = emitters.get(planned.mode, CppRowEmitter)
        knobs = _knobs(planned, program, in_place, ask, batch.count, self._every_choice)
        if batch.count == 1:
            return emitter(planned, program, knobs, pointers).kernel(name)
        alone = replace(knobs, parallel=False)
        kernel = emitter(planned, program, alone, pointers).kernel(name)
        launcher = _launcher(kernel, pointers, batch, knobs.parallel)
        return replace(kernel, launcher=launcher, parallel=knobs.parallel)

    def together(self, name: str, kernels: Sequence[Kernel], work: int) -> Kernel:
        taken = {*self.reserved, *((kernel.launcher or kernel).name for kernel in kernels)}
        parallel = work >= SMALL and not any(
            kernel.parallel for kernel in kernels
        )  # theirs would be nested, and serial
        out, declared = BracedLines(), []
        if parallel:
            out.add("#pragma omp parallel sections")
            out.open("")
        for kernel in kernels:
            called = kernel.launcher or kernel
            kinds, names = zip(*(parameter.rsplit(" ", 1) for parameter in called.parameters), strict=True)
            given = [unique(own, taken) for own in names]
            declared += [f"{kind} {own}" for kind, own in zip(kinds, given, strict=True)]
            if parallel:
                out.add("#pragma omp section")
            out.add(f"{called.name}({', '.join(given)});")
        if parallel:
            out.close()
        return Kernel(name, tuple(declared), tuple(out.lines), "")

    def attention(
        self, name: str, statement: Attention, program: Program, pointers: Mapping[str, str], ask: KnobReader
    ) -> Kernel:
        return attention_kernel(name, statement, program, pointers, ask)

    def call(self, kernel: Kernel, arguments: Sequence[str]) -> list[str]:
        called = kernel.launcher or kernel
        return [f"lib.{called.name}({', '.join(arguments)})"]

    def context(self, kernels: Sequence[Kernel], schedule: Mapping[str, str]) -> dict[str, object]:
        chosen = helpers(kernels)
        body = "\n".join([*chosen, *(line for kernel in kernels for line in kernel.body)])
        flags = ["-funroll-loops"] if schedule.get("unroll") == "on" else []
        return {"helpers": chosen, "headers": standard_headers(body), "flags": flags}


def _launcher(kernel: Kernel, pointers: Mapping[str, str], batch: Batch, parallel: bool) -> Function:
    """Return a function that calls a kernel once for each call of a batch."""
    declared, given, tables = [], [], []
    for parameter, base in zip(kernel.parameters, pointers, strict=False):
        kind, name = parameter.rsplit(" ", 1)
        several = base in batch.several
        declared.append(f"{kind} const* {name}" if several else parameter)
        given.append(f"{name}[call]" if several else name)
    for at, begins in batch.begins.items():
        first, step = begins[0], begins[1] - begins[0]
        if all(begin == first + step * number for number, begin in enumerate(begins)):
            given.append(total([str(first) if first else "", times("call", step)]) or "0")
        else:
            tables.append(f"static constexpr int64_t {at.upper()}[] = {{{', '.join(map(str, begins))}}};")
            given.append(f"{at.upper()}[call]")
    out = BracedLines()
    for table in tables:
        out.add(table)
    if parallel:
        out.add("#pragma omp parallel for schedule(static)")
    call = f"{kernel.name}({', '.join(given)});"
    out.add(f"for (int64_t call = 0; call < {batch.count}; ++call) {call}")
    return Function(f"{kernel.name}_each", tuple(declared), tuple(out.lines))


def _knobs(
    planned: Plan,
    program: Program,
    in_place: frozenset[str],
    ask: KnobReader,
    calls: int = 1,
    every_choice: bool = False,
) -> CppKnobs:
    """Return the knobs of a kernel, or of several calls of it. One that cannot change it is not asked for."""
    work = planned.region.space.numel * calls * max(1, planned.cost // MODEST)
    elements = [o for o in planned.outputs if planned.level(o) == "element"]
    itemsize = min((ITEMSIZE[program.dtypes[o]] for o in elements), default=1)
    if planned.mode == "tiles":
        whole_lines = divides(_LINE_BYTES, planned.sizes[-1] * itemsize) and not in_place
        streaming = whole_lines and ask("streaming", _streaming(planned, program, elements)) == "on"
        tiled = planned.tiled()
        block = _NARROW if tiled.sizes[tiled.across] > TILE else TILE
        return CppKnobs(block, streaming, _shared(work, ask, every_choice), False, in_place=in_place)
    length = planned.vector_length
    block, parts = length, False
    if work >= SMALL and calls == 1 and not planned.kept and _divisible(planned):
        parts = ask("parts", "on" if _few_columns(planned) else "off") == "on"
    most = length if planned.mode == "columns" else planned.row_length
    if parts:
        reductions = sum(isinstance(s, Reduce) for s in planned.region.statements)
        most = min(most, _PARTS_BLOCK, max(_PARTS_BYTES // (8 * PARTS * reductions) // 16, 1) * 16)
    if planned.mode == "columns" and planned.kept:
        most = min(most, 2048, max(KEPT_LIMIT // (planned.row_length * len(planned.kept)), 16))
    if length > 128 or is_free(length):
        columns = str(_PARTS_BLOCK) if parts else _column_block(planned)
        past = planned.row_length >= _ONLINE and _streaming(planned, program, elements) == "on"
        default = {"flat": "256", "rows": "256" if past else "4096", "columns": columns}[planned.mode]
        block = int(ask("block", default, None if is_free(most) else most))
    if planned.mode == "columns" and not is_free(most):
        block = min(block, most)
    streaming = prefetch = False
    parallel = parts
    steps = planned.region.recurrence is not None
    if elements and not steps and not parts and not in_place:
        lines = length if planned.mode != "columns" else math.gcd(length, block)
        if divides(_LINE_BYTES, lines * itemsize) or lines * itemsize >= 64 * _LINE_BYTES:
            streaming = ask("streaming", _streaming(planned, program, elements)) == "on"
    if not steps and _prefetchable(planned):
        prefetch = ask("prefetch", _prefetching(planned, elements)) == "on"
    if not parts and (planned.mode == "flat" or planned.rows > 1 or calls > 1):
        parallel = _shared(work, ask, every_choice)
    together = online(planned) if planned.row_length >= _LEAST_ONLINE else None
    if together and ask("online", "on" if planned.row_length >= _ONLINE else "off") == "off":
        together = None
    return CppKnobs(block, streaming, parallel, prefetch, parts, together, in_place)


def _shared(work: int, ask: KnobReader, every_choice: bool) -> bool:
    """Return True if threads share `work` elements; the knob is read only where either may be as good."""
    if is_free(work):
        return True  # if there is enough of it when the kernel is called
    default = "all" if work >= SMALL else "1"
    unclear = every_choice or SMALL < _CLEARLY * work < _CLEARLY * _CLEARLY * SMALL
    return (ask("threads", default) if unclear else default) == "all"


def _divisible(planned: Plan) -> bool:
    """Return True if threads can share the elements of a column, and there are enough of them."""
    region = planned.region
    if planned.mode != "columns" or planned.row_length < _LEAST_SHARED or planned.totals:
        return False
    scans = any(isinstance(s, Scan) for s in region.statements)
    return region.recurrence is None and not region.space.clips and not scans


def _few_columns(planned: Plan) -> bool:
    """Return True if threads that share columns would read memory in short pieces."""
    return planned.rows // planned.sizes[-1] < _LEAST_BLOCKS and planned.rows < _LEAST_BLOCKS * _PARTS_BLOCK


def _streaming(planned: Plan, program: Program, outputs: Sequence[str]) -> str:
    """Results that caches could not hold for their reader are stored past them, unless arithmetic binds."""
    written = sum(ITEMSIZE[program.dtypes[name]] for name in outputs) * planned.region.space.numel
    busy = planned.mode == "flat" and planned.cost >= _DEAR
    inside = {statement.name for statement in planned.region.statements}
    others = (s for s in program.statements if s.name not in inside)
    again = any(view.base in outputs for other in others for view in operands(other, program))
    limit = 2 * _BEYOND_CACHES if again else _BEYOND_CACHES
    return "on" if written >= limit and not busy else "off"


def _column_block(planned: Plan) -> str:
    """Columns in a block: as many as are read well in one go, if later passes find them cached."""
    passes = sum(stage.has_pass for stage in planned.stages)
    most = 1024 if passes == 1 else min(1024, KEPT_LIMIT // planned.row_length, planned.sizes[-1] // 2)
    most = min(most, planned.rows // _LEAST_BLOCKS)
    return max((v for v in legal("k0.block") if int(v) <= max(most, 64)), key=int)


def _prefetching(planned: Plan, elements: Sequence[str]) -> str:
    """One pass that only reads, and flat ones: processors see what comes next by themselves, and sooner."""
    passes = sum(stage.has_pass for stage in planned.stages)
    return "on" if planned.mode == "rows" and (elements or passes > 1) else "off"


def _prefetchable(planned: Plan) -> bool:
    """Return True if whole rows are read, and the next one fits in the cache beside this one."""
    full = planned.full_strides()
    whole = len(
        {a for a in planned.accesses.values() if a.strides == full and not a.table} | {*planned.lookups()}
    )
    if planned.mode == "columns" or not whole:
        return False
    if planned.mode == "flat":
        return True
    together = list(planned.inner) == sorted(planned.inner)
    return together and planned.row_length >= 256 and whole * planned.row_length <= _PREFETCH_LIMIT
