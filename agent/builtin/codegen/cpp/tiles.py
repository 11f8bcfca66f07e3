"""Tiles in C++: kernels that read values in another order of axes, transposed tile by tile in the cache.

x.T.contiguous() + 1 with x of [1024, 512] writes rows of 1024 floats, whose elements lie 512 floats apart in
x. A tile is 64 rows by 32 columns of the result, so 32 rows of x with 64 adjacent floats each:

    constexpr int64_t ROWS = 512, COLUMNS = 1024, TILE = 64, BLOCK = 32;
    const float* x_corner = x + top + first * 512;
    alignas(64) float x_tile[TILE * BLOCK];
    turn_f32(x_corner, 512, x_tile, BLOCK, TILE, BLOCK);
    for (int64_t j = 0; j < TILE; ++j) {
        float* add_out_row = add_out + top * 1024 + first + j * 1024;
        #pragma omp simd
        for (int64_t i = 0; i < BLOCK; ++i) {
            const float x_contiguous = x_tile[j * BLOCK + i];
            const float add = x_contiguous + 1.0f;
            add_out_row[i] = add;
        }
    }

`turn_f32` transposes 16 by 16 elements at a time in registers into the tile, 8 KiB of the first-level cache;
the vector loop below it then reads and writes adjacent floats, whatever it computes.
"""

from __future__ import annotations

from kernelwright.agent.builtin.codegen.backend import Kernel
from kernelwright.agent.builtin.codegen.c_like import NOWHERE
from kernelwright.agent.builtin.codegen.cpp.rows import CppRowEmitter
from kernelwright.agent.builtin.codegen.cpp.types import STORAGE, SUFFIX
from kernelwright.agent.builtin.ir.text import times, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access
from kernelwright.kernelbench.free_sizes.size import divides, is_free, is_one

# Rows of a tile: 64 adjacent floats of what is transposed, four cache lines. Chosen by hand; its width, 32,
# was measured (docs/LOG.md, "Turning an image's layout": 64 columns are more streams of memory than
# prefetchers follow).
TILE = 64


class CppTileEmitter(CppRowEmitter):
    """A tile has TILE rows of BLOCK elements; along the rows' axis turned values lie together in memory."""

    def kernel(self, name: str) -> Kernel:
        plan, out = self.plan, self.out
        self.outputs = [self.plan.output(output) for output in plan.outputs]
        tiled = plan.tiled()
        self.sizes, self.strides, self.across = tiled.sizes, tiled.strides, tiled.across
        turned, others, count = tiled.turned, tiled.others, tiled.outer
        self.load_scalars()
        rows, columns, tile = self.sizes[self.across], self.sizes[-1], self.tile
        self.define_sizes(ROWS=rows, COLUMNS=columns, TILE=tile, BLOCK=self.block)
        kind = self.kind(rows, columns)
        out.add(f"{kind} int64_t DOWN = (ROWS + TILE - 1) / TILE, ALONG = (COLUMNS + BLOCK - 1) / BLOCK;")
        self.open_threads()
        out.open(f"for (int64_t tile = 0; tile < {count} * DOWN * ALONG; ++tile)")
        if not is_one(count):
            out.add("const int64_t outer = tile / (DOWN * ALONG);")
        out.add("const int64_t first = tile / DOWN % ALONG * BLOCK, top = tile % DOWN * TILE;")
        # Where all tiles are alike the compiler is to know: loops that might be shorter take a third longer.
        self.down, self.along = "TILE", "BLOCK"
        if not divides(tile, rows):
            self.down = "rows"
            out.add("const int64_t rows = std::min(TILE, ROWS - top);")
        if not divides(self.block, columns):
            self.along = "n"
            out.add("const int64_t n = std::min(BLOCK, COLUMNS - first);")
        for access in turned:
            self.turn(access, others)
        out.open(f"for (int64_t j = 0; j < {self.down}; ++j)")
        addresses: dict[Access, str] = {}
        for access in dict.fromkeys(plan.accesses.values()):
            if access in turned:
                addresses[access] = self.loaded(access, f"{self.names[access]}[j * BLOCK + i]")
            elif access.varies:
                addresses[access] = self.row(access, others)
            else:
                addresses[access] = self.names[access]
        for access in self.outputs:
            self.row(access, others)
        stores = self.stores()
        out.add("#pragma omp simd")
        out.open(f"for (int64_t i = 0; i < {self.along}; ++i)")
        self.element_body(plan.stages[0], addresses, stores, NOWHERE)
        out.close()
        if self.knobs.streaming:
            for access in self.outputs:
                block = f"{self.statements[access.base]}_block"
                size = f"{self.along} * sizeof({STORAGE[access.dtype]})"
                out.add(f"stream_bytes({self.names[access]}, {block}, {size});")
        out.close(2)
        self.close_threads()
        return self.written(name)

    @property
    def block(self) -> int:
        return self.knobs.block if is_free(self.sizes[-1]) else min(self.knobs.block, self.sizes[-1])

    @property
    def tile(self) -> int:
        return TILE if is_free(self.sizes[self.across]) else min(TILE, self.sizes[self.across])

    def stores(self) -> dict[str, str]:
        """Targets that the vector loop writes outputs to: rows, or blocks that are streamed there."""
        found = {}
        for access in self.outputs:
            found[access.base] = f"{self.names[access]}[i]"
            if self.knobs.streaming:
                block = f"{self.statements[access.base]}_block"
                self.out.add(f"alignas(64) {STORAGE[access.dtype]} {block}[BLOCK];")
                found[access.base] = f"{block}[i]"
        return found

    def corner(self, access: Access, others: list[int]) -> list[str]:
        """Terms of the offset of a tile's first element."""
        strides, further_in, terms = self.strides[access], 1, []
        for axis in reversed(others):
            text = "outer" if further_in == 1 else f"outer / {further_in}"
            text = text if axis == others[0] else f"{text} % {self.sizes[axis]}"
            terms.append(times(text, strides[axis]))
            further_in *= self.sizes[axis]
        corner = [times("top", strides[self.across]), times("first", strides[-1])]
        return [*reversed(terms), *corner, access.begin]

    def turn(self, access: Access, others: list[int]) -> None:
        """Copy a tile into a buffer, with the axes exchanged."""
        out, pointer = self.out, self.pointers[access.base]
        corner, tile = self.fresh(f"{pointer}_corner"), self.fresh(f"{pointer}_tile")
        ctype = STORAGE[access.dtype]
        out.add(f"const {ctype}* {corner} = {pointer} + {total(self.corner(access, others)) or '0'};")
        out.add(f"alignas(64) {ctype} {tile}[TILE * BLOCK];")
        stride = self.strides[access][-1]
        if ctype in SUFFIX:
            out.add(f"turn_{SUFFIX[ctype]}({corner}, {stride}, {tile}, BLOCK, {self.down}, {self.along});")
        else:
            out.open(f"for (int64_t i = 0; i < {self.along}; ++i)")
            read = f"{corner}[{times('i', stride)} + j]"
            out.add(f"for (int64_t j = 0; j < {self.down}; ++j) {tile}[j * BLOCK + i] = {read};")
            out.close()
        self.names[access] = tile

    def row(self, access: Access, others: list[int]) -> str:
        """Return a row of what is read, or written, as it lies: its pointer; how an element of it is read."""
        strides, pointer = self.strides[access], self.pointers[access.base]
        offset = total([*self.corner(access, others), times("j", strides[self.across])])
        written = access in self.outputs
        if not strides[-1] and not written:
            self.load_value(access, offset)
            return self.names[access]
        self.names[access] = self.fresh(f"{pointer}_row")
        const = "" if written else "const "
        self.out.add(f"{const}{STORAGE[access.dtype]}* {self.names[access]} = {pointer} + {offset or '0'};")
        return self.loaded(access, f"{self.names[access]}[{times('i', strides[-1]) or '0'}]")
