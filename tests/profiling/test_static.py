"""What is read from compiled kernels: C++ by g++, Triton for named chips; nothing runs."""

import subprocess
from pathlib import Path

import pytest

from kernelwright.kernelbench.chips import sass
from kernelwright.kernelbench.chips.occupancy import CHIPS, occupancy
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.profiling.static import x86

SOURCE = """
#include <cmath>
#include <cstdint>
extern "C" {
void scale(const float* x, float* y, int64_t n) {
    #pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) y[i] = 2.0f * x[i] + 1.0f;
}
void plain_exp(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = expf(x[i]);
}
void pick(const float* x, const int* at, float* y, int64_t n) {
    #pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = x[at[i]] / y[i];
}
float chain(const float* x, int64_t n) {
    float last = 0.0f;
    for (int64_t i = 0; i < n; ++i) last = last * 0.5f + x[i];
    return last;
}
float first(const float* x) { return x[0]; }
}
"""


def mixes_of(folder: Path, march: str) -> dict[str, x86.LoopMix]:
    """Of the kernels in SOURCE, built for an architecture."""
    (folder / "kernel.cpp").write_text(SOURCE)
    library = folder / "kernel.so"
    flags = ["-O3", f"-march={march}", "-mprefer-vector-width=512", "-fopenmp", "-fPIC", "-shared"]
    subprocess.run(["g++", *flags, "kernel.cpp", "-o", str(library)], cwd=folder, check=True)
    return {mix.kernel: mix for mix in x86.mixes(x86.functions(library))}


def test_the_loops_of_kernels_for_wide_vectors(tmp_path: Path) -> None:
    found = mixes_of(tmp_path, "skylake-avx512")
    assert (found["scale"].vector_bits, found["scale"].zmm_share) == (512, 1.0)
    assert found["scale"].fma_share == 1.0
    assert found["plain_exp"].calls == ("expf",)
    assert found["plain_exp"].vector_bits == 0  # a call for each element
    assert found["pick"].gathers == 1 and found["pick"].divisions >= 1
    assert found["chain"].packed_share == 0.0
    assert "first" not in found  # without a loop


def test_the_loops_of_kernels_for_narrower_vectors(tmp_path: Path) -> None:
    found = mixes_of(tmp_path, "haswell")
    assert (found["scale"].vector_bits, found["scale"].ymm_share) == (256, 1.0)
    assert mixes_of(tmp_path, "x86-64")["scale"].vector_bits == 128


def test_loops_are_found_by_jumps_that_go_back() -> None:
    text = (
        "0000000000001000 <f>:\n"
        "    1000:\tjs     101d <f+0x1d>\n"
        "    1002:\tvmovaps %zmm1,0x40(%rsp)\n"
        "    100a:\tvfmadd231ps (%rdi,%rax,1),%zmm2,%zmm1\n"
        "    1011:\tadd    $0x40,%rax\n"
        "    1015:\tjne    100a <f+0xa>\n"
        "    1017:\tdec    %ecx\n"
        "    1019:\tjne    1002 <f+0x2>\n"
        "    101b:\trepz ret\n"
        "    101d:\tinc    %edx\n"
        "    101f:\tjmp    101b <f+0x1b>\n"
    )
    [function] = x86.parsed(text)
    assert function.instructions[-3].mnemonic == "ret"
    [loop] = function.busy_loops()
    assert [i.address for i in loop] == [0x100A, 0x1011, 0x1015]
    [mix] = x86.mixes([function])
    assert (mix.loops, mix.instructions, mix.fma_share, mix.spills) == (1, 3, 1.0, 0)


def test_calls_are_those_of_functions_of_one_number() -> None:
    names = ("expf", "_ZGVeN16v_expf", "memcpy", "GOMP_barrier", "omp_get_thread_num", "own")
    calls = "".join(f"    {0x1000 + 5 * n:x}:\tcall   900 <{name}@plt>\n" for n, name in enumerate(names))
    [mix] = x86.mixes(list(x86.parsed(f"0000000000001000 <f>:\n{calls}    1100:\tjne    1000 <f>\n")))
    assert mix.calls == ("expf", "own") and mix.instructions == len(names) + 1


@pytest.mark.parametrize(("unrolled", "loops"), [(40, 2), (20, 1)])
def test_what_was_unrolled_beside_an_inner_loop_counts(unrolled: int, loops: int) -> None:
    own = "".join(f"    {0x1100 + i:x}:\tvmulps %zmm1,%zmm2,%zmm3\n" for i in range(unrolled))
    text = (
        "0000000000000ff0 <f>:\n"
        "     ff0:\tnop\n"
        "    1000:\tprefetcht0 (%rdi)\n"
        "    1003:\tjne    1000 <f+0x10>\n"
        f"{own}"
        "    1200:\tjne    ff0 <f>\n"
        "    1202:\tret\n"
    )
    [function] = x86.parsed(text)
    assert len(function.busy_loops()) == loops


def test_what_is_no_library_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no library")
    with pytest.raises(Unavailable, match=r"objdump: .*text"):
        x86.functions(tmp_path / "text")
    with pytest.raises(Unavailable, match="cuobjdump"):
        sass.kernels(b"no cubin")


@pytest.mark.parametrize(
    ("chip", "threads", "registers", "shared", "share", "blocks", "limited_by"),
    [
        ("sm_80", 256, 32, 0, 1.0, 8, "threads"),
        ("sm_80", 256, 64, 0, 0.5, 4, "registers"),
        ("sm_80", 256, 255, 0, 0.125, 1, "registers"),
        ("sm_80", 256, 40, 0, 0.75, 6, "registers"),  # 1280 of a warp: 48 warps, not 51
        ("sm_80", 128, 32, 48 << 10, 12 / 64, 3, "shared memory"),
        ("sm_90", 128, 32, 48 << 10, 16 / 64, 4, "shared memory"),
        ("sm_90a", 32, 16, 0, 0.5, 32, "blocks"),
        ("sm_86", 1024, 32, 0, 32 / 48, 1, "threads"),
        ("sm_75", 1024, 32, 0, 1.0, 1, "threads"),
        ("sm_100", 33, 32, 0, 1.0, 32, "threads"),
        ("sm_80", 32, 32, 200 << 10, 0.0, 0, "shared memory"),
        ("sm_80", 1024, 255, 0, 0.0, 0, "registers"),
    ],
)
def test_occupancy_by_the_published_rules(
    chip: str, threads: int, registers: int, shared: int, share: float, blocks: int, limited_by: str
) -> None:
    found = occupancy(chip, threads, registers, shared)
    assert (found.share, found.blocks, found.limited_by) == (share, blocks, limited_by)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sm_61", 32, 32, 0), "unknown chip sm_61"),
        (("sm_80", 2048, 32, 0), "a block has 1 to 1024 threads"),
        (("sm_80", 32, 256, 0), "0 to 255 registers"),
    ],
)
def test_blocks_that_cannot_be(arguments: tuple[str, int, int, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        occupancy(*arguments)


def test_every_chip_holds_a_block_of_any_size() -> None:
    for chip in CHIPS:
        for threads in range(1, 1025):
            assert 0 < occupancy(chip, threads, 32, 0).share <= 1
