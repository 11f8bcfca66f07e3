"""Build latency: the same small kernel through each way of building it."""

import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.jit import compiler, inline
from kernelwright.kernelbench.jit.cache import BuildCache
from kernelwright.kernelbench.jit.library import CppLibrary, build
from kernelwright.kernelbench.records import Record

_C_ABI = r"""
extern "C" void relu_scale(const float* __restrict__ x, float* __restrict__ y, long n, float factor) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; ++i) y[i] = x[i] > 0 ? x[i] * factor : 0.0f;
}
"""

_TORCH = r"""
torch::Tensor relu_scale(torch::Tensor x, double factor) {
    auto y = torch::empty_like(x);
    const float* from = x.data_ptr<float>();
    float* to = y.data_ptr<float>();
    const float f = static_cast<float>(factor);
    #pragma omp parallel for simd
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] > 0 ? from[i] * f : 0.0f;
    return y;
}
"""

_FLAGS = ("-O3", "-march=native", "-fopenmp")


class LatencyTable(Record):
    """Seconds from source to callable function; medians of 3, except where one run is named."""

    compile_cpp_s: float  # a source never seen, C ABI
    compile_cpp_hit_s: float  # found in the cache
    load_inline_stock_s: float | None  # torch's own, empty folder, one run; None without ninja
    load_inline_s: float  # a source never seen, precompiled header at hand
    load_inline_hit_s: float
    precompiled_header_s: float  # making that header, once per torch version and flags; one run

    @property
    def ratios(self) -> dict[str, float]:
        """Speedup of each way over torch's own `load_inline`; empty if that was not run."""
        if self.load_inline_stock_s is None:
            return {}
        return {
            name.removesuffix("_s"): self.load_inline_stock_s / seconds
            for name, seconds in self
            if name in ("compile_cpp_s", "compile_cpp_hit_s", "load_inline_s", "load_inline_hit_s")
        }


def measure() -> LatencyTable:
    """Build everything in a temporary folder: 1 to 3 minutes, 1 GB of disk.

    Raises MissingPrerequisite without a C++ compiler.
    """
    import torch
    from torch.utils import cpp_extension

    compiler.command()
    torch.ones(8).relu()
    stock = getattr(cpp_extension.load_inline, "__wrapped__", cpp_extension.load_inline)
    with tempfile.TemporaryDirectory(prefix="kernelwright-latency-") as folder:
        cache = BuildCache(Path(folder) / "cache")
        empty = Path(folder) / "stock"
        empty.mkdir()

        def c_abi(source: str) -> None:
            CppLibrary(*build(source, (), cache, 120.0))

        def ours(source: str) -> None:
            path = inline.build(_arguments(source), cache)
            inline.load(path=path, name="relu_scale", is_python_module=True)

        first_s = _seconds(ours, _fresh(_TORCH))
        fresh_inline = [_fresh(_TORCH) for _ in range(3)]
        fresh_c_abi = [_fresh(_C_ABI) for _ in range(3)]
        inline_s = _median(ours, fresh_inline)
        stock_s: float | None = None
        if shutil.which("ninja"):
            named = {**_arguments(_fresh(_TORCH)), "build_directory": str(empty)}
            stock_s = _seconds(lambda _: stock(**named), "")
        return LatencyTable(
            compile_cpp_s=_median(c_abi, fresh_c_abi),
            compile_cpp_hit_s=_median(c_abi, fresh_c_abi),
            load_inline_stock_s=stock_s,
            load_inline_s=inline_s,
            load_inline_hit_s=_median(ours, fresh_inline),
            precompiled_header_s=max(0.0, first_s - inline_s),
        )


def _arguments(source: str) -> dict[str, Any]:
    return {
        "name": "relu_scale",
        "cpp_sources": [source],
        "functions": ["relu_scale"],
        "extra_cflags": list(_FLAGS),
        "extra_ldflags": ["-fopenmp"],
        "extra_include_paths": None,
        "is_python_module": True,
    }


def _fresh(source: str) -> str:
    return f"// {uuid.uuid4()}\n{source}"


def _median(way: Callable[[str], None], sources: list[str]) -> float:
    return statistics.median(_seconds(way, source) for source in sources)


def _seconds(way: Callable[[str], Any], source: str) -> float:
    start = time.perf_counter()
    way(source)
    return time.perf_counter() - start
