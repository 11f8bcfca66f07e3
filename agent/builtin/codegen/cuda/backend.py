"""CUDA C++ as the coder writes it, and the schedules of its kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernelwright.agent.builtin.codegen.backend import Batch, Kernel, KnobReader, linked
from kernelwright.agent.builtin.codegen.cuda.emit import CudaEmitter, CudaKnobs
from kernelwright.agent.builtin.codegen.cuda.functions import TEMPLATES, functions
from kernelwright.agent.builtin.codegen.cuda.matmul import BUSY, MOST, SIDE, ProductEmitter
from kernelwright.agent.builtin.codegen.cuda.rows import CudaFlatEmitter, CudaRowEmitter
from kernelwright.agent.builtin.codegen.cuda.scans import MOST_RUN, CudaScanEmitter, run_of
from kernelwright.agent.builtin.codegen.cuda.tiles import CudaTileEmitter
from kernelwright.agent.builtin.codegen.cuda.types import RESERVED
from kernelwright.agent.builtin.codegen.gpu import FILLING, SECTOR, GpuLanguage, GridKernel
from kernelwright.agent.builtin.codegen.products import product_of
from kernelwright.agent.builtin.ir.program import Attention, Program, Scan
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.builtin.scheduling.loop_nest import Plan, plan
from kernelwright.kernelbench.free_sizes.size import is_free

# Chosen by hand, not measured.
_HELD = 64  # registers of a thread, of 255, that may hold elements of its row
_WARP = 32  # threads of a warp, on all of NVIDIA's GPUs
_BUSY = 1 << 17  # threads that keep a GPU busy: about half of an H100's 132 * 2048
_RESIDENT = 2048  # threads of a multiprocessor, of an A100 or H100
_MOST_THREADS = 512  # of a block, by default


class Cuda(GpuLanguage):
    name = "cuda"
    folder = TEMPLATES
    graph_knobs = frozenset({"fuse"})
    defaults = {"attention": "fused", "layout": "contiguous", "split": "8", "products": "tiled"}  # noqa: RUF012
    choices = {"attention": ("fused", "apart"), "products": ("tiled", "library")}  # noqa: RUF012
    reserved = RESERVED

    def replanned(self, planned: Plan, program: Program, ask: KnobReader) -> Plan:
        emitter = _emitter(planned)
        if emitter is CudaRowEmitter and not _knobs(planned, emitter, ask).held:
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
        emitter = _emitter(planned)
        knobs = _knobs(planned, emitter, ask, in_place)
        if knobs.run:
            emitter = CudaScanEmitter
        knobs = replace(knobs, parts=self.multiprocessors * (_RESIDENT // knobs.threads))
        return emitter(planned, program, knobs, pointers).kernel(name)

    def joins(self, planned: Plan) -> bool:
        return False

    def together(self, name: str, kernels: Sequence[Kernel], work: int) -> Kernel:
        raise AssertionError("kernels are launched one by one")

    def attention(
        self, name: str, statement: Attention, program: Program, pointers: Mapping[str, str], ask: KnobReader
    ) -> Kernel:
        raise Untraceable("attention is left to torch where kernels are CUDA C++; choose attention=fused")

    def launch(self, function: str, grid: int, width: int, arguments: Sequence[str], stages: int = 0) -> str:
        given = f"({', '.join(arguments)}{',' if len(arguments) == 1 else ''})"
        return f"lib.{function}(({grid},), ({width},), {given})"

    def call(self, kernel: Kernel, arguments: Sequence[str]) -> list[str]:
        assert isinstance(kernel, GridKernel)
        lines = super().call(kernel, arguments)
        if not is_free(kernel.grid):
            return lines
        head = f"if {kernel.grid!r}:"  # the driver launches no kernel of no blocks
        return [head, *(f"    {line}" for line in lines)]

    def context(self, kernels: Sequence[Kernel], schedule: Mapping[str, str]) -> dict[str, object]:
        helpers = linked(kernels, functions().get)
        text = "\n".join([*helpers, *(line for kernel in kernels for line in kernel.text)])
        halves = {"cuda_fp16.h": "__half", "cuda_bf16.h": "__nv_bfloat16"}
        constants = {"INFINITY": "__int_as_float(0x7f800000)", "NAN": "__int_as_float(0x7fffffff)"}
        return {
            "helpers": helpers,
            "headers": [header for header, word in halves.items() if re.search(rf"\b{word}\b", text)],
            "constants_of_source": [
                (name, value) for name, value in constants.items() if re.search(rf"\b{name}\b", text)
            ],
        }


def _emitter(planned: Plan) -> type[CudaEmitter]:
    if planned.region.space.reduced and product_of(planned) is not None:
        return ProductEmitter
    if planned.mode == "tiles":
        return CudaTileEmitter
    return CudaRowEmitter if planned.region.space.reduced else CudaFlatEmitter


def _knobs(
    planned: Plan, emitter: type[CudaEmitter], ask: KnobReader, in_place: frozenset[str] = frozenset()
) -> CudaKnobs:
    if emitter is CudaTileEmitter:
        return CudaKnobs(_WARP * int(ask("warps", "8")), in_place=in_place)
    if emitter is ProductEmitter:
        tiles = planned.rows // 64**2
        tile = min(int(ask("tile", "64" if tiles >= BUSY else "32", MOST)), MOST)
        return CudaKnobs(SIDE * SIDE, rows=tile)
    if emitter is CudaFlatEmitter:
        threads = _WARP * int(ask("warps", "8"))
        numel = planned.region.space.numel
        block = max(int(ask("block", "1024", None if is_free(numel) else numel)), threads)
        return CudaKnobs(threads, each=block // threads, in_place=in_place)
    rows, threads = _shares(planned, ask)
    free = is_free(planned.row_length)
    each = 1 if free else -(-planned.row_length // (threads // rows))
    passes = sum(stage.has_pass for stage in planned.stages)
    steps = planned.region.recurrence is not None
    registers = each * max(1, len(planned.kept) + len({a for a in planned.accesses.values() if a.varies}))
    held = steps
    if steps and (free or registers > 2 * _HELD):
        raise Untraceable(f"a loop takes rows of {planned.row_length} elements from step to step")
    together = planned.mode == "columns" and threads > rows and _in_runs(planned)
    if not (steps or free or together) and passes > 1 and registers <= 2 * _HELD:
        held = ask("keep", "on" if registers <= _HELD else "off") == "on"
    return CudaKnobs(threads, rows, each, held, 0 if held else _run(planned, threads // rows), in_place)


def _run(planned: Plan, lanes: int) -> int:
    """Return the elements that a thread scans by itself; 0 where no threads scan rows together."""
    if not _in_runs(planned) or lanes < (_WARP if planned.mode == "rows" else 2):
        return 0
    run, length = run_of(planned), planned.row_length
    return run if is_free(length) else max(1, min(run, _power_of_two(length) // lanes))


def _in_runs(planned: Plan) -> bool:
    """Return True if rows are scanned, by whatever threads, in passes."""
    scans = any(isinstance(s, Scan) for s in planned.region.statements)
    return scans and not planned.clips() and planned.region.recurrence is None


def _shares(planned: Plan, ask: KnobReader) -> tuple[int, int]:
    """Rows that a block works on at once, and its threads."""
    length, rows = planned.row_length, planned.rows
    most = None if is_free(rows) else _power_of_two(rows)
    scans = any(isinstance(s, Scan) for s in planned.region.statements)
    if planned.mode == "columns":
        down = min(_power_of_two(-(-_BUSY // rows)), _power_of_two(length))
        if scans:
            most_down = 1 if is_free(length) or not _in_runs(planned) else _power_of_two(length) // MOST_RUN
            down = max(1, min(down, most_down))
        passes = sum(stage.has_pass for stage in planned.stages)
        if not scans and passes > 1 and not is_free(length) and length <= _HELD * (_MOST_THREADS // _WARP):
            down = max(down, _power_of_two(-(-length // _HELD)))  # enough threads to hold a column
        wide = min(most or 128, 32 if down > 1 else 128)
        least = SECTOR * (2 if scans else 1)
        while not is_free(rows) and wide > least and rows < FILLING * wide and down > wide // 2:
            wide //= 2
        wide = int(ask("rows", str(wide), most))
        if scans and down == 1:
            return max(wide, _WARP), max(wide, _WARP)
        threads = _WARP * int(ask("warps", str(max(1, min(wide * down, _MOST_THREADS) // _WARP))))
    else:
        lanes = max(min(_power_of_two(length), _WARP), min(_power_of_two(-(-length // 4)), 512))
        if scans and not is_free(rows) and rows >= 4 * FILLING:  # a warp scans without shared memory
            lanes = min(lanes, _WARP)
        wide = max(1, 128 // lanes)
        wide = int(ask("rows", str(wide), most))
        threads = _WARP * int(ask("warps", str(max(1, min(wide * lanes, 512) // _WARP))))
    return min(wide, threads), threads


def _power_of_two(number: int) -> int:
    """Return the least that is not smaller; of a free size, that of its value in the task."""
    return 1 << max(int(number) - 1, 0).bit_length()
