"""Languages and frameworks of kernels: how each is recognized, what it needs, what is checked without a GPU.

One row a language. The first row of which a file uses a maker, such as `@helion.kernel`, is the file's
language, whatever else it imports; comments, docstrings and unused imports say nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from kernelwright.kernelbench.records import Language


@dataclass(frozen=True)
class KernelLanguage:
    """A language, or a framework for one.

    `shown_by`: what of a file shows it, in words. `makers`: dotted names that only a file with kernels of it
    uses; `decorators`: those of them whose kernels have the name of the function beneath. `imports`: modules
    whose use makes a file one of this language if it has no other kernels. `text`: pattern of sources that
    are strings of a file. `package`: the module that must be importable, and `pip` what to install for it.
    `here`: how kernels run without a GPU; "" if they do not. `stand_in`: whether they run without the
    package. `elements`: that a call there works on at smaller sizes. `builds`: what builds them for a chip
    that is not here. `needs`: what they need where they do not run without a GPU.
    """

    id: Language
    title: str
    shown_by: str = ""
    makers: tuple[str, ...] = ()
    decorators: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    text: re.Pattern[str] | None = None
    package: str = ""
    pip: str = ""
    here: str = ""
    needs: str = "a GPU"
    elements: int = 1 << 18
    stand_in: bool = False
    builds: str = ""

    def made(self, used: Iterable[str], sources: Iterable[str]) -> bool:
        """Return True if a file with these dotted names and these sources has kernels of this language."""
        if not {*self.makers, *self.decorators}.isdisjoint(used):
            return True
        return self.text is not None and any(self.text.search(source) for source in sources)

    def imported(self, used: Iterable[str]) -> bool:
        """Return True if a file that uses these dotted names uses one of its modules."""
        return any(uses(module, used) for module in self.imports)

    @property
    def without_gpu(self) -> str:
        """Treatment of its kernels where there is no GPU, in a few words."""
        built = f"built by {self.builds}" if self.builds else ""
        if self.here:
            return f"run {self.here}" + (f", {built}" if built else "")
        return f"{built}, not run" if built else "not checked"

    @property
    def unavailable(self) -> str:
        """Reason that files which import its package cannot be loaded here, with the fix; "" if they can."""
        if not self.package or _importable(self.package):
            return ""
        return f"{self.title} is not installed here: pip install {self.pip}"

    @property
    def unchecked(self) -> str:
        """Reason that its kernels are not checked where there is no GPU; "" if they are."""
        if self.here:
            return "" if self.stand_in else self.unavailable
        there = f"; there: pip install {self.pip}" if self.unavailable else ""
        return f"{self.title} kernels need {self.needs}{there}"


def uses(module: str, names: Iterable[str]) -> bool:
    """Return True if one of these dotted names is the module or of it."""
    return any(name == module or name.startswith(f"{module}.") for name in names)


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


# Told by what they use, before Triton and CUDA C++ are looked for: a file of theirs may also have a kernel in
# one of these, to compare with, and its own kernels are strings of CUDA C++ in some.
SPECIAL = (
    KernelLanguage(
        "helion",
        "Helion",
        "`@helion.kernel`",
        decorators=("helion.kernel", "helion.jit", "helion.experimental.aot_kernel"),
        imports=("helion",),
        package="helion",
        pip="helion",
        here="in Helion's interpreter",
    ),
    KernelLanguage(
        "gluon",
        "Gluon",
        "`@gluon.jit`",
        decorators=("triton.experimental.gluon.jit",),
        imports=("triton.experimental.gluon",),
        package="triton",
        pip="triton",
        builds="Triton",
    ),
    KernelLanguage(
        "cute",
        "CuTe DSL",
        "`@cute.kernel`, `@cute.jit`",
        makers=("cutlass.cute.jit", "cutlass.cute.compile"),
        decorators=("cutlass.cute.kernel",),
        imports=("cutlass.cute",),
        package="cutlass",
        pip="nvidia-cutlass-dsl",
        builds="its own compiler",
    ),
    KernelLanguage(
        "cutile",
        "cuTile",
        "`@ct.kernel`",
        makers=("cuda.tile.launch",),
        decorators=("cuda.tile.kernel",),
        imports=("cuda.tile",),
        package="cuda.tile",
        pip="'cuda-tile[tileiras]'",
    ),
    KernelLanguage(
        "tilelang",
        "TileLang",
        "`@tilelang.jit`, `@T.prim_func`",
        makers=("tilelang.compile", "tilelang.lower", "tilelang.autotune", "tilelang.language.Kernel"),
        decorators=("tilelang.jit", "tilelang.language.prim_func"),
        imports=("tilelang",),
        package="tilelang",
        pip="tilelang nvidia-cuda-cccl",
        builds="NVRTC",
    ),
    KernelLanguage(
        "numba",
        "numba.cuda",
        "`@cuda.jit`",
        decorators=("numba.cuda.jit",),
        package="numba_cuda",
        pip="numba-cuda",
        here="in numba's simulator",
        elements=1 << 14,
    ),
    KernelLanguage(
        "cupy",
        "CuPy",
        "`RawKernel`, `RawModule`, `ElementwiseKernel`",
        makers=(
            "cupy.RawKernel",
            "cupy.RawModule",
            "cupy.ElementwiseKernel",
            "cupy.ReductionKernel",
            "cupy.fuse",
            "cupyx.jit.rawkernel",
        ),
        package="cupy",
        pip="cupy-cuda12x or cupy-cuda13x, matching the driver",
        here="in emulation",
        stand_in=True,
        builds="NVRTC",
    ),
    KernelLanguage(
        "warp",
        "Warp",
        "`@wp.kernel`",
        decorators=("warp.kernel",),
        imports=("warp",),
        package="warp",
        pip="warp-lang",
    ),
    KernelLanguage(
        "taichi",
        "Taichi",
        "`@ti.kernel`",
        decorators=("taichi.kernel",),
        imports=("taichi",),
        package="taichi",
        pip="taichi",
    ),
    KernelLanguage(
        "jax",
        "JAX",
        "`jax`, as the file has no other kernels",
        imports=("jax",),
        package="jax",
        pip="'jax[cuda13]'",
    ),
    KernelLanguage(
        "hip",
        "HIP",
        "`#include <hip/…>`, and none of CUDA",
        # Not those for both vendors, which include CUDA's headers, too.
        text=re.compile(r"\A(?!.*#\s*include\s*[<\"]cuda).*#\s*include\s*[<\"]hip/", re.DOTALL),
        needs="an AMD GPU",
    ),
    KernelLanguage(
        "thunderkittens",
        "ThunderKittens",
        '`#include "kittens.cuh"`',
        imports=("thunderkittens",),
        text=re.compile(r"#\s*include\s*[<\"](?:[\w.]+/)*kittens\.cuh"),
    ),
)
TRITON = KernelLanguage(
    "triton",
    "Triton",
    "`@triton.jit`",
    decorators=("triton.jit", "triton.runtime.jit.jit", "triton.runtime.jit.JITFunction"),
    package="triton",
    pip="triton",
    here="in Triton's interpreter",
    builds="Triton",
)
LANGUAGES = {
    row.id: row
    for row in (
        *SPECIAL,
        TRITON,
        KernelLanguage(
            "cuda", "CUDA", "`__global__` in a string, `compile_cuda`", here="in emulation", builds="NVRTC"
        ),
        KernelLanguage("cpp", "C++", needs="a C++ compiler"),
        KernelLanguage("torch", "PyTorch", needs="nothing more"),
    )
}
GPU_LANGUAGES = frozenset(LANGUAGES) - {"cpp", "torch"}
WRITTEN: tuple[Language, ...] = ("cpp", "triton", "cuda")  # by coders; the others are of files
# Other ways to build CUDA C++ than torch's and `compile_cuda`, which alone are emulated.
OTHER_BUILDERS = {
    "pycuda": "PyCUDA",
    "cuda": "CUDA Python",
    "torch.cuda._compile_kernel": "torch.cuda._compile_kernel",
    "cutlass": "CUTLASS's Python interface",
}
