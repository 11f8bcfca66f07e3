"""The languages that kernels are written in: each file is what it is, and what is not checked is no fault."""

from pathlib import Path
from typing import get_args

import pytest

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.kernels import KernelFile
from kernelwright.kernelbench.languages import GPU_LANGUAGES, LANGUAGES
from kernelwright.kernelbench.records import Language

FOLDER = Path(__file__).parent / "languages"
PAGE = (Path(__file__).parents[2] / "docs" / "languages.md").read_text()
FILES = {
    "numba_cuda": "numba",
    "cupy_raw": "cupy",
    "helion_tiles": "helion",
    "gluon_layouts": "gluon",
    "cute_dsl": "cute",
    "cutile_tiles": "cutile",
    "tilelang_parallel": "tilelang",
    "hip_inline": "hip",
    "thunderkittens_tiles": "thunderkittens",
}
OTHERS = {
    "import numba.cuda\n@numba.cuda.jit('void(f4[:])')\ndef k(x): pass": "numba",
    "from numba.cuda import jit as compiled\n@compiled\ndef k(x): pass": "numba",
    "from numba import cuda\ndef k(x): pass\nk = cuda.jit(k)": "numba",
    "import numba\n@numba.njit\ndef f(x): pass": "torch",
    "from torch import cuda\ncuda.jit = 3": "torch",
    "from cupy import RawModule\nm = RawModule(code='extern \"C\" __global__ void k() {}')": "cupy",
    "import cupyx\n@cupyx.jit.rawkernel()\ndef k(x): pass": "cupy",
    "import cupy\nx = cupy.from_dlpack(y)": "torch",  # makes no kernel
    "from helion import kernel\n@kernel()\ndef k(x): pass": "helion",
    "try:\n    import helion\nexcept ImportError:\n    helion = None": "torch",
    "from triton.experimental.gluon import jit\n@jit\ndef k(x): pass": "gluon",
    "from cutlass import cute\n@cute.jit\ndef k(x): pass": "cute",
    "from cuda import tile as ct\n@ct.kernel\ndef k(x): pass": "cutile",
    "from cuda.bindings import driver\nimport cutlass.cute as c\n@c.kernel\ndef k(): driver.x": "cute",
    "from tilelang import language as T\n@T.prim_func\ndef k(): pass": "tilelang",
    "import tilelang as tl\ntl.jit(make)": "tilelang",
    "import warp as wp\n@wp.kernel\ndef k(x: wp.array(dtype=float)): pass": "warp",
    "import taichi as ti\n@ti.kernel\ndef k(): pass": "taichi",
    "import jax.experimental.pallas as pl\npl.pallas_call(k)": "jax",
    "import triton, jax\n@triton.jit\ndef k(x): jax.x": "triton",
    "import thunderkittens as tk\ntk.attention(q, k, v)": "thunderkittens",
    "S = '#include <hip/hip_runtime.h>\\n#include <cuda_runtime.h>\\n__global__ void k(int n) {}'": "cuda",
    "S = '// #include \"kittens.cuh\"\\n/* #include <hip/x.h> */ __global__ void k(int n) {}'": "cuda",
    "'''#include <hip/hip_runtime.h> and @helion.kernel'''\n# import tilelang": "torch",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_of_the_language_that_its_kernels_are_written_in(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text()
    assert language_of(source) == FILES[name]
    assert language_of("\n".join(f"# {line}" for line in source.splitlines())) == "torch"


@pytest.mark.parametrize("source", OTHERS)
def test_what_makes_a_kernel_decides(source: str) -> None:
    assert language_of(source) == OTHERS[source]


@pytest.mark.parametrize("name", ["numba_cuda", "cupy_raw", "helion_tiles", "gluon_layouts", "cute_dsl"])
def test_kernels_are_named(name: str) -> None:
    file = KernelFile((FOLDER / f"{name}.py").read_text())
    assert "twice_relu" in [kernel.name for kernel in file.kernels]
    assert "relu" not in [kernel.name for kernel in file.kernels]  # a device function


def test_the_page_has_the_rows_of_the_table() -> None:
    of_gpu = sorted((LANGUAGES[id] for id in GPU_LANGUAGES), key=lambda row: row.title.lower())
    cells = [(row.title, row.shown_by, row.pip.partition(",")[0] or "–", row.without_gpu) for row in of_gpu]
    begin = PAGE.index("|---|---|---|---|\n") + len("|---|---|---|---|\n")
    rows = PAGE[begin : PAGE.index("\n\n", begin)].splitlines()
    assert rows == [f"| {' | '.join(row)} |" for row in cells]


def test_what_is_missing_is_said_with_the_package() -> None:
    for row in LANGUAGES.values():
        assert bool(row.package) == bool(row.pip)
        if row.id in GPU_LANGUAGES and not row.here:
            assert row.unchecked.startswith(f"{row.title} kernels need a")


def test_every_language_has_a_row() -> None:
    assert set(LANGUAGES) == set(get_args(Language))
    assert {"cpp", "torch"} == set(LANGUAGES) - GPU_LANGUAGES
