"""Triton as the coder writes it, and the schedules of its kernels."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from kernelwright.agent.builtin.codegen.backend import Batch, Kernel, KnobReader, linked
from kernelwright.agent.builtin.codegen.gpu import FILLING, SECTOR, GpuLanguage, GridKernel
from kernelwright.agent.builtin.codegen.naming import unique
from kernelwright.agent.builtin.codegen.products import products_of
from kernelwright.agent.builtin.codegen.triton.attention import attention_kernel
from kernelwright.agent.builtin.codegen.triton.emit import TritonEmitter, TritonKnobs
from kernelwright.agent.builtin.codegen.triton.products import (
    TritonProductEmitter,
    product_knobs,
)
from kernelwright.agent.builtin.codegen.triton.tiles import (
    TILE,
    TritonFlatEmitter,
    TritonRowEmitter,
    TurnedEmitter,
)
from kernelwright.agent.builtin.codegen.triton.types import RESERVED, PythonLines, power_of_two
from kernelwright.agent.builtin.ir.program import Attention, Program, Scan
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.builtin.schedule import legal
from kernelwright.agent.builtin.scheduling.loop_nest import Plan, plan
from kernelwright.kernelbench.free_sizes.size import is_free

_FUNCTIONS = Path(__file__).parent / "functions.py"
# Chosen by hand, not measured.
_HELD = 1 << 14  # elements of a row up to which it is held in registers by default
_LONGEST_HELD = 1 << 15  # elements of a row up to which the schedule may have it held
_ELEMENTS = 2048  # elements of a tile by default
_FEW_ELEMENTS = 1 << 13  # the same, where few programs have all the work
_MOST_ELEMENTS = 1 << 16  # elements of a tile at most; Triton itself allows 2^20
_SHORT = 32  # elements of a row that a program goes through one by one
_BESIDE = 512  # rows that it has of these
_LEAST_BESIDE = 64
_RESIDENT_WARPS = 64  # of a multiprocessor, of an A100 or H100
_A_WARP = 512  # elements of a tile for each warp


@cache
def _functions() -> dict[str, str]:
    """Return the functions of `functions.py` by name, with their decorators."""
    text = _FUNCTIONS.read_text()
    lines = text.splitlines()
    return {
        node.name: "\n".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno])
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


class Triton(GpuLanguage):
    name = "triton"
    folder = Path(__file__).parent / "templates"
    graph_knobs = frozenset({"fuse"})
    prologues = True
    # Nobody writes to these two.
    defaults = {"attention": "fused", "layout": "contiguous", "split": "8", "products": "tiled"}  # noqa: RUF012
    choices = {"products": ("tiled", "all", "library")}  # noqa: RUF012
    imports = ("import triton", "import triton.language as tl")
    reserved = RESERVED | frozenset(_functions())

    def replanned(self, planned: Plan, program: Program, ask: KnobReader) -> Plan:
        return plan(planned.region, program, planned.outputs, keep=False)

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
        if products_of(planned):
            knobs = product_knobs(planned, program, ask, self.multiprocessors, self.shared_bytes)
            return TritonProductEmitter(planned, program, knobs, pointers, self.reserved).kernel(name)
        emitter: type[TritonEmitter] = TritonRowEmitter if planned.region.space.reduced else TritonFlatEmitter
        if planned.mode == "tiles":
            emitter = TurnedEmitter
        if batch.beside:  # all of a launch have as many warps
            ask = partial(_but_warps, ask)
        of_rows = _knobs(planned, emitter, ask)
        parts = self.multiprocessors * (_RESIDENT_WARPS // of_rows.warps)
        of_rows = replace(of_rows, beside=batch.beside, parts=parts)
        return emitter(planned, program, of_rows, pointers, self.reserved).kernel(name)

    def joins(self, planned: Plan) -> bool:
        return not (
            planned.totals or products_of(planned)
        )  # which may take a second launch, or more shared memory

    def together(self, name: str, kernels: Sequence[Kernel], work: int) -> Kernel:
        taken, out = {"program", *self.reserved}, PythonLines()
        declared: list[str] = []
        programs, warps = 0, 1
        out.add("program = tl.program_id(0)")
        for kernel in kernels:
            assert isinstance(kernel, GridKernel)
            given = [unique(parameter, taken) for parameter in kernel.parameters[:-1]]
            declared += given
            own, word = (f"program - {programs}", "elif") if programs else ("program", "if")
            programs += kernel.grid
            out.open(f"{word} program < {programs}")
            out.add(f"{kernel.name}({', '.join([*given, own])})")
            out.close()
            warps = max(warps, kernel.width)
        return GridKernel(name, tuple(declared), tuple(out.lines), "", grid=programs, width=warps)

    def attention(
        self, name: str, statement: Attention, program: Program, pointers: Mapping[str, str], ask: KnobReader
    ) -> Kernel:
        return attention_kernel(name, statement, program, pointers, ask, self.multiprocessors)

    def launch(self, function: str, grid: int, width: int, arguments: Sequence[str], stages: int = 0) -> str:
        options = {"num_warps": width if width != 4 else 0, "num_stages": stages}
        given = [*arguments, *(f"{name}={number}" for name, number in options.items() if number)]
        return f"{function}[({grid!r},)]({', '.join(given)})"

    def context(self, kernels: Sequence[Kernel], schedule: Mapping[str, str]) -> dict[str, object]:
        return {"helpers": linked(kernels, _functions().get)}


def _but_warps(ask: KnobReader, knob: str, default: str, most: int | None = None) -> str:
    return default if knob == "warps" else ask(knob, default, most)


def _knobs(planned: Plan, emitter: type[TritonEmitter], ask: KnobReader) -> TritonKnobs:
    if emitter is TurnedEmitter:
        return TritonKnobs(TILE, TILE, int(ask("warps", "4")))
    if emitter is TritonFlatEmitter:
        most = _least_power(planned.region.space.numel)
        block = min(int(ask("block", "1024", most)), most)
        return TritonKnobs(block, 1, int(ask("warps", "4")))
    if _is_short(planned):
        most = _least_power(planned.rows)
        default = _BESIDE if is_free(planned.rows) else min(_BESIDE, power_of_two(planned.rows // FILLING))
        rows = min(int(ask("block", str(max(default, _LEAST_BESIDE)), most)), most)
        return TritonKnobs(1, rows, int(ask("warps", str(max(1, min(rows // 128, 4))))))
    length = _least_power(planned.row_length)
    steps = planned.region.recurrence is not None
    if steps and length > _HELD:
        raise Untraceable(f"a loop takes rows of {planned.row_length} elements from step to step")
    held = steps or length <= _least_block(planned)
    passes = sum(stage.has_pass for stage in planned.stages)
    if not held and length <= _LONGEST_HELD and passes > 1 and planned.mode == "rows":
        held = ask("keep", "on" if length <= _HELD else "off") == "on"
    few = _few(planned)
    default = _FEW_ELEMENTS // few if few else _least_block(planned)
    block = length if held else min(int(ask("block", str(default), length)), length)
    most = min(_least_power(planned.rows), _MOST_ELEMENTS // block)
    rows = max(min(few or _ELEMENTS // block, most), 1)
    if most > 1 and not (steps and block > _ELEMENTS):
        rows = min(int(ask("rows", str(min(rows, int(legal("k0.rows")[-1]))), most)), most)
    warps = max(1, min(rows * block // _A_WARP, 16))
    return TritonKnobs(block, rows, int(ask("warps", str(power_of_two(warps)))))


def _is_short(planned: Plan) -> bool:
    """Return True if rows, as those of windows are, are a few elements with neighbours beside them.

    A program has many of them, and one element of each at a time: what it reads is at the same offset from
    the row's begin in all, and no elements are added up to a power of two.
    """
    passes = sum(stage.has_pass for stage in planned.stages)
    alike = planned.mode == "columns" and planned.region.recurrence is None and passes == 1
    scans = any(isinstance(s, Scan) for s in planned.region.statements)
    return alike and not (scans or is_free(planned.row_length)) and planned.row_length <= _SHORT


def _few(planned: Plan) -> int:
    """Return the rows that a program has where tiles of the usual size would leave a GPU idle; else 0."""
    least = SECTOR if planned.mode == "columns" else 1
    usual = max(_ELEMENTS // _least_block(planned), least)
    return 0 if is_free(planned.rows) or planned.rows >= FILLING * usual else least


def _least_power(size: int) -> int:
    """Return the least power of two that is not smaller; of a free size, one that none is larger than."""
    return 1 << 62 if is_free(size) else power_of_two(size)


def _least_block(planned: Plan) -> int:
    """Elements of a row that a tile has at least; with its neighbours in memory beside it."""
    return 64 if planned.mode == "columns" else 1024
