"""Products of float32 matrices as six of bfloat16 on AMX tiles, with what follows them, in C++.

A linear layer with a ReLU, x of [512, 256] and w of [128, 256], whose results are gone through in blocks of
up to 256 by 256, and in these in pieces of 32 by 32, which are four tiles of sums:

    constexpr int64_t ROWS = 512, COLUMNS = 128, DEPTH = 256;
    #pragma omp for schedule(static) nowait
    for (int64_t m = 0; m < DOWN; ++m)         // panels of 16 rows of x, of which each thread packs some
        amx_pack(x + m * 16 * 256, 256, 1, ROWS - m * 16, DEPTH, false, left + m * STEPS * 1536);
    ...
    amx_multiply(left + ..., right + ..., STEPS * 1536, ..., sums);
    ...
            const float linear = sums[(q * 16 + j) * 16 + i];
            const float relu = relu_f32(linear);
            relu_out[row * 128 + first + i] = relu;

As exact as a product in float32 (docs/LOG.md, "Six products of bfloat16"): three bfloat16 hold all 24 bits of
a float, and sums are float32 as in any product. (Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial
Intelligence Datatype For Higher-Precision Computations, https://arxiv.org/abs/1904.06376.)
"""

from __future__ import annotations

import math
from functools import cache, cached_property
from pathlib import Path

from kernelwright.agent.builtin.codegen.backend import Kernel
from kernelwright.agent.builtin.codegen.cpp.emit import CppKnobs
from kernelwright.agent.builtin.codegen.cpp.rows import CppRowEmitter
from kernelwright.agent.builtin.codegen.products import Product, product_of
from kernelwright.agent.builtin.ir.program import Compute, Program
from kernelwright.agent.builtin.ir.text import times, total
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan
from kernelwright.kernelbench.free_sizes.size import is_free

CHOICE = "bf16x6"  # the value of the knob `gemm`
KNOBS = CppKnobs(block=0, streaming=False, parallel=True, prefetch=False)
_NEEDED = {"amx_tile", "amx_bf16", "avx512_bf16", "avx512vl"}
# Tiles of a block of results along each side, and steps of 32 along the depth: of a block 256 KiB of sums,
# and 768 KiB of packed panels, are in the second-level cache at a time. Chosen on a loaded machine.
_SIDE, _STEPS = 16, 8
_LEAST = 32  # rows, columns and depth; two panels


@cache
def has_amx() -> bool:
    """Return True if this CPU multiplies tiles of bfloat16."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.split()) >= _NEEDED


def amx_product(planned: Plan, program: Program) -> Product | None:
    """Return the product of a kernel if it is to be computed on tiles."""
    if program.choices.get("gemm") != CHOICE or (product := product_of(planned)) is None:
        return None
    sides = (product.left.access, product.down), (product.right.access, product.along)
    if product.images or any(access.dtype != "float32" for access, _ in sides):
        return None
    for access, axes in sides:
        strides = _stride(planned, access, axes), _stride(planned, access, product.depth)
        if None in strides or 1 not in strides:
            return None
        if math.prod(planned.sizes[axis] for axis in axes) < _LEAST:
            return None
    if any(is_free(planned.sizes[axis]) for axis in (*product.along, *product.depth)):
        return None
    return product if math.prod(planned.sizes[axis] for axis in product.depth) >= _LEAST else None


def _stride(planned: Plan, access: Access, axes: tuple[int, ...]) -> int | None:
    """Return the distance of neighbours along axes that can be one; None if they cannot."""
    digits = planned.digits(access.strides, axes)
    return digits[0].stride if len(digits) == 1 and digits[0].product == 1 and digits[0].first else None


class CppProductEmitter(CppRowEmitter):
    @cached_property
    def product(self) -> Product:
        found = product_of(self.plan)
        assert found is not None
        return found

    def size(self, axes: tuple[int, ...]) -> int:
        return math.prod(self.plan.sizes[axis] for axis in axes)

    def kernel(self, name: str) -> Kernel:
        product, out = self.product, self.out
        rows, columns, depth = map(self.size, (product.down, product.along, product.depth))
        deep, steps = self.fresh("DEPTH"), self.fresh("STEPS")
        left, right, sums = self.fresh("left"), self.fresh("right"), self.fresh("sums")
        self.load_scalars()
        self.define_sizes(ROWS=rows, COLUMNS=columns, **{deep: depth})
        out.add(f"constexpr int64_t {steps} = ({deep} + 31) / 32;")
        out.add(f"{self.kind(rows)} int64_t DOWN = (ROWS + 31) / 32 * 2, ALONG = (COLUMNS + 31) / 32 * 2;")
        out.add("static thread_local std::vector<uint16_t> packed;  // kept for the next call")
        out.add(f"packed.resize((DOWN + ALONG) * {steps} * 1536 + 32);")
        aligned = "(reinterpret_cast<uintptr_t>(packed.data()) + 63) & ~uintptr_t(63)"
        out.add(f"uint16_t* const {left} = reinterpret_cast<uint16_t*>({aligned});")
        out.add(f"uint16_t* const {right} = {left} + DOWN * {steps} * 1536;")
        out.add("#pragma omp parallel")
        out.open("")
        self.pack("m < DOWN", "m", "ROWS", product.left.access, product.down, left, deep, steps, " nowait")
        self.pack("n < ALONG", "n", "COLUMNS", product.right.access, product.along, right, deep, steps, "")
        out.add(f"alignas(64) static thread_local float {sums}[{_SIDE * _SIDE} * 256];")
        out.add("amx_begin();")
        out.add("#pragma omp for schedule(dynamic) collapse(2)")
        out.open(f"for (int64_t o = 0; o < ALONG; o += {_SIDE})")
        out.open(f"for (int64_t p = 0; p < DOWN; p += {_SIDE})")
        out.open(f"for (int64_t k = 0; k < {steps}; k += {_STEPS})")
        out.add(f"const int64_t n_steps = std::min<int64_t>({_STEPS}, {steps} - k);")
        out.add(f"float* tile = {sums};")
        out.add(f"for (int64_t m = p; m < std::min<int64_t>(DOWN, p + {_SIDE}); m += 2)")
        out.open(f"for (int64_t n = o; n < std::min<int64_t>(ALONG, o + {_SIDE}); n += 2, tile += 1024)")
        panels = (f"{side} + ({at} * {steps} + k) * 1536" for side, at in ((left, "m"), (right, "n")))
        out.add(f"amx_multiply({', '.join(panels)}, {steps} * 1536, n_steps, k == 0, tile);")
        out.add(f"if (k + {_STEPS} < {steps}) continue;")
        self.results()
        out.close(4)
        out.add("_tile_release();")
        out.close()
        return self.written(name)

    def pack(
        self, condition: str, at: str, size: str, access: Access, axes: tuple[int, ...], to: str, deep: str,
        steps: str, wait: str,
    ) -> None:  # fmt: skip
        apart, step = _stride(self.plan, access, axes), _stride(self.plan, access, self.product.depth)
        assert apart is not None
        pointer = total([self.pointers[access.base], times(f"{at} * 16", apart), access.begin])
        self.out.add(f"#pragma omp for schedule(static){wait}")
        beside = "true" if at == "n" else "false"
        self.out.add(
            f"for (int64_t {at} = 0; {condition}; ++{at}) amx_pack({pointer}, {apart}, {step}, "
            f"{size} - {at} * 16, {deep}, {beside}, {to} + {at} * {steps} * 1536);"
        )

    def results(self) -> None:
        """Write what follows the product, element by element, and the stores."""
        out, plan, product = self.out, self.plan, self.product
        out.open("for (int q = 0; q < 4; ++q)")
        out.add("const int64_t top = (m + q / 2) * 16, first = (n + q % 2) * 16;")
        out.open("for (int64_t j = 0; j < 16 && top + j < ROWS; ++j)")
        out.add("const int64_t row = top + j, end = std::min<int64_t>(16, COLUMNS - first);")
        out.add("#pragma omp simd")
        out.open("for (int64_t i = 0; i < end; ++i)")
        out.add(f"const float {self.name(product.reduction)} = tile[(q * 16 + j) * 16 + i];")
        for access in dict.fromkeys(plan.accesses.values()):
            if access.varies and access not in (product.left.access, product.right.access):
                self.load_value(access, self.place(access))
        for stage in plan.stages:
            for statement in stage.row:
                assert isinstance(statement, Compute)  # a pick needs elements that are read again
                self.define(statement, "row", self.names)
        for name in plan.outputs:
            text = self.stored(name, self.statements[name])
            out.add(f"{self.pointers[name]}[{self.place(plan.output(name)) or '0'}] = {text};")
        out.close(3)

    def place(self, access: Access) -> str:
        """Return the offset of an element of the result, or of what is read for it."""
        terms = [
            *self.outside(access, self.product.down, "row"),
            *self.outside(access, self.product.along, "(first + i)"),
            times("step", access.move),
            access.begin,
        ]
        return total(terms)
