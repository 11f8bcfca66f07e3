"""Triton kernels, built for chips that are not here, as their machine code shows them."""

from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.chips.sass import SassKernel, kernels, mix, parsed

triton = pytest.importorskip("triton")
tl = triton.language

CHIPS = (80, 90, 100)


@triton.jit  # type: ignore[untyped-decorator]
def matmul(a, b, c, n: tl.constexpr, block: tl.constexpr, step: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inner = tl.arange(0, step)
    total = tl.zeros((block, block), tl.float32)
    for start in range(0, n, step):
        x = tl.load(a + row[:, None] * n + (start + inner)[None, :])
        y = tl.load(b + (start + inner)[:, None] * n + column[None, :])
        total = tl.dot(x, y, total)
    tl.store(c + row[:, None] * n + column[None, :], total)


@triton.jit  # type: ignore[untyped-decorator]
def products(a, b, c, n: tl.constexpr, block: tl.constexpr, step: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same in the type of the result, the second operand lying the other way round."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inner = tl.arange(0, step)
    total = tl.zeros((block, block), c.dtype.element_ty)
    for start in range(0, n, step):
        x = tl.load(a + row[:, None] * n + (start + inner)[None, :])
        y = tl.load(b + column[None, :] * n + (start + inner)[:, None])
        total = tl.dot(x, y, total, out_dtype=c.dtype.element_ty)
    tl.store(c + row[:, None] * n + column[None, :], total)


@triton.jit  # type: ignore[untyped-decorator]
def exponentials(a, c, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(c + at, tl.exp(tl.load(a + at)))


@triton.jit  # type: ignore[untyped-decorator]
def sums(a, c, n: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    total = tl.zeros((block,), tl.float32)
    for start in range(0, n, block):
        total += tl.load(a + row * n + start + tl.arange(0, block))
    tl.store(c + row, tl.sum(total))


def built(
    function: Any, chip: int, types: dict[str, str], aligned: bool = True, **constants: int
) -> SassKernel:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    attributes = {(n,): [["tt.divisibility", 16]] for n in range(len(types))} if aligned else {}
    signature = types | dict.fromkeys(constants, "constexpr")
    source = ASTSource(function, signature, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", chip, 32))
    [kernel] = kernels(made.asm["cubin"])
    return kernel


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("chip", CHIPS)
def test_a_matmul_uses_tensor_cores_in_its_loop(chip: int) -> None:
    types = {"a": "*fp16", "b": "*fp16", "c": "*fp32"}
    kernel = built(matmul, chip, types, n=4096, block=128, step=32)
    assert (kernel.name, kernel.chip) == ("matmul", f"sm_{chip}")
    assert 64 <= kernel.registers <= 255 and kernel.shared_bytes == 0  # which a launch gives it
    found = mix(kernel)
    assert found.tensor > 0 and found.fp32 == 0 and found.spills == 0
    assert found.asynchronous > 0 and found.access_bits == 128  # loads past the registers
    assert found.instructions < len(kernel.instructions)
    names = {i.name for i in kernel.instructions if i.is_tensor}
    assert names == {{80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}[chip]}


@pytest.mark.parametrize(
    ("chip", "element", "opcode", "by"),
    [
        (80, "*i8", "IMMA", "warp_products"),
        (90, "*fp8e4nv", "QGMMA", "group_products"),
        (90, "*fp64", "DMMA", "warp_products"),
        (100, "*fp8e4nv", "UTCQMMA", "block_products"),
    ],
)
def test_tensor_cores_have_an_instruction_for_each_type(
    chip: int, element: str, opcode: str, by: str
) -> None:
    total = {"*i8": "*i32", "*fp64": "*fp64"}.get(element, "*fp32")
    kernel = built(products, chip, {"a": element, "b": element, "c": total}, n=512, block=64, step=32)
    assert {i.name for i in kernel.instructions if i.is_tensor} == {opcode}
    found = mix(kernel)
    assert getattr(found, by) == found.tensor > 0


@pytest.mark.parametrize("chip", CHIPS)
def test_a_pointwise_kernel_has_no_loop(chip: int) -> None:
    kernel = built(exponentials, chip, {"a": "*fp32", "c": "*fp32"}, block=1024)
    assert kernel.innermost_loops() == []
    found = mix(kernel)
    assert (found.loads, found.stores, found.access_bits, found.special) == (2, 2, 128, 8)
    assert found.instructions == len(kernel.instructions) and found.stall_cycles > 0
    unknown = mix(built(exponentials, chip, {"a": "*fp32", "c": "*fp32"}, aligned=False, block=1024))
    assert unknown.access_bits == 32 and unknown.loads == 8


@pytest.mark.parametrize("chip", CHIPS)
def test_the_loop_of_a_reduction_is_found(chip: int) -> None:
    kernel = built(sums, chip, {"a": "*fp32", "c": "*fp32"}, n=1 << 20, block=1024)
    [loop] = kernel.innermost_loops()
    found = mix(kernel)
    assert found.instructions == len(loop) < len(kernel.instructions)
    assert found.loads >= 2 and found.stores == 0 and found.fp32 >= 8


def test_branches_by_predicates_and_spins() -> None:
    resources = " Function f:\n  REG:20 STACK:16 SHARED:1536 LOCAL:8 CONSTANT[0]:380 TEXTURE:0\n"
    code = "".join(
        f"{label}        /*{number * 16:04x}*/    {text} ;  /* 0x0000000000000000 */\n"
        f"              /* 0x{stall << 41:016x} */\n"
        for number, (label, text, stall) in enumerate(
            [
                (".L_x_0:\n", "LDG.E.64 R4, desc[UR4][R2.64]", 4),
                (".L_x_1:\n", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R6", 1),
                ("", "@!P0 BRA `(.L_x_1)", 5),
                ("", "STL [R1], R4", 2),
                ("", "BRA.U UP0, `(.L_x_0)", 5),
                ("", "EXIT", 5),
                (".L_x_2:\n", "BRA `(.L_x_2)", 0),
            ]
        )
    )
    [kernel] = parsed(resources, f'.target sm_90a\n\t.section\t.text.f,"ax",@progbits\n{code}')
    assert (kernel.chip, kernel.registers, kernel.shared_bytes, kernel.stack_bytes) == ("sm_90", 20, 512, 16)
    [loop] = kernel.innermost_loops()
    assert [i.name for i in loop] == ["LDG", "SYNCS", "BRA", "STL", "BRA"]
    found = mix(kernel)
    assert (found.loads, found.access_bits, found.spills, found.stall_cycles) == (1, 64.0, 1, 17)
