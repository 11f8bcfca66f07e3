"""What g++ says of the loops of a source: vectorized, how wide, or why not."""

import gzip
import subprocess
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit import BuildError
from kernelwright.kernelbench.jit.cache import BuildCache
from kernelwright.kernelbench.jit.library import build, options_of
from kernelwright.profiling.static import vectorization
from kernelwright.profiling.static.gcc_record import SourceLoop, parsed
from kernelwright.profiling.static.vectorization import Vectorization

pytestmark = pytest.mark.builds

SOURCE = """
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <immintrin.h>
static inline float squared(const float* x, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum;
}
extern "C" {
void scale(const float* x, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; ++i) y[r * n + i] = 2.0f * x[r * n + i];
}
void plain_exp(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = expf(x[i]);
}
void norm(const float* x, float* y, int64_t n) { *y = squared(x, n); }
void chain(float* x, int64_t n) {
    for (int64_t i = 1; i < n; ++i) x[i] += 0.5f * x[i - 1];
}
void sums(const float* x, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0.0f;
        for (int64_t i = 0; i < n; ++i) sum += y[r * n + i] = expf(x[r * n + i]);
        for (int64_t i = 0; i < n; ++i) y[r * n + i] /= sum;
    }
}
void masked(const float* x, float* y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; ++r) {
        if (x[r] > 0) continue;
        for (int64_t i = 0; i < n; ++i) y[r * n + i] = squared(x + i, 4) + y[i];
    }
}
void by_hand(float* y, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) _mm256_stream_ps(y + i, _mm256_setzero_ps());
}
void turned(float* y, int64_t n) { std::reverse(y, y + n); }
}
"""


def loops_of(folder: Path, *flags: str) -> dict[str, list[SourceLoop]]:
    (folder / "kernel.cpp").write_text(SOURCE)
    options = ["-O3", "-fopenmp", "-fno-math-errno", "-fsave-optimization-record", *flags]
    subprocess.run(["g++", *options, "-S", "kernel.cpp"], cwd=folder, check=True)
    [record] = folder.glob("*.json.gz")
    found: dict[str, list[SourceLoop]] = {}
    for loop in parsed(gzip.decompress(record.read_bytes()).decode(), SOURCE):
        found.setdefault(loop.kernel, []).append(loop)
    return found


@pytest.mark.parametrize(("march", "width"), [("haswell", 32), ("skylake-avx512", 64)])
def test_a_vectorized_loop_has_a_width_and_the_loop_around_it_does_not_count(
    march: str, width: int, tmp_path: Path
) -> None:
    [loop] = loops_of(tmp_path, f"-march={march}", "-mprefer-vector-width=512")["scale"]
    assert (loop.vector_bytes, loop.reason) == (width, "")
    assert "2.0f * x[r * n + i]" in loop.code


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[SourceLoop]]:
    return loops_of(tmp_path_factory.mktemp("haswell"), "-march=haswell")


def test_a_missed_loop_has_a_reason(found: dict[str, list[SourceLoop]]) -> None:
    [missed] = found["plain_exp"]
    assert missed.vector_bytes == 0 and missed.code == SOURCE.splitlines()[missed.line - 1].strip()
    assert missed.reason.startswith("function is not vectorizable (") and "= expf (" in missed.reason


def test_a_missed_loop_beside_one_that_is_not(found: dict[str, list[SourceLoop]]) -> None:
    missed, vectorized = found["sums"]
    assert missed.vector_bytes == 0 and "expf(x[r * n + i])" in missed.code
    assert vectorized.vector_bytes == 32 and "/= sum" in vectorized.code


def test_a_loop_whose_steps_need_the_last_one_is_missed_for_that(found: dict[str, list[SourceLoop]]) -> None:
    [missed] = found["chain"]
    assert missed.vector_bytes == 0 and "dependence" in missed.reason


def test_a_loop_that_was_inlined_is_its_caller_s(found: dict[str, list[SourceLoop]]) -> None:
    assert "sum += x[i] * x[i]" in found["norm"][0].code and "squared" not in found


def test_a_loop_around_others_was_not_missed(found: dict[str, list[SourceLoop]]) -> None:
    assert not any("r < rows" in loop.code for loop in found["masked"])


def test_a_loop_of_intrinsics_was_not_missed(found: dict[str, list[SourceLoop]]) -> None:
    assert "by_hand" not in found


def test_a_loop_in_a_header_stands_where_it_is_called(found: dict[str, list[SourceLoop]]) -> None:
    lines = {loop.code for loop in found["turned"]}
    assert lines == {"void turned(float* y, int64_t n) { std::reverse(y, y + n); }"}


def test_the_flags_of_a_build_are_kept_beside_it(tmp_path: Path) -> None:
    library, _ = build(SOURCE, ["-O2", "-ffast-math -DX=1"], BuildCache(tmp_path), 60)
    assert options_of(library.parent)[-3:] == ("-O2", "-ffast-math", "-DX=1")
    (library.parent / "flags.txt").write_text("-fplugin=x.so")
    with pytest.raises(BuildError, match="not allowed"):
        options_of(library.parent)


@pytest.mark.parametrize(("compiler", "said"), [("clang version 18", "install g\\+\\+"), (None, "apt-get")])
def test_without_gcc_the_mend_is_named(
    compiler: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectorization, "compiler_in_words", lambda: compiler)
    with pytest.raises(Unavailable, match=said):
        Vectorization().available()
