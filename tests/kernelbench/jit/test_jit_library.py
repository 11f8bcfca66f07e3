import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.jit import openmp, standard
from kernelwright.kernelbench.jit.cache import BuildCache
from kernelwright.kernelbench.jit.library import build

pytestmark = pytest.mark.builds

SOFTMAX = r"""
#include <cmath>
#include <cstdint>
extern "C" void softmax(const float* __restrict__ x, float* __restrict__ y, int64_t rows, int64_t cols) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; ++r) {
        const float* in = x + r * cols;
        float* out = y + r * cols;
        float top = in[0], sum = 0;
        for (int64_t c = 1; c < cols; ++c) top = in[c] > top ? in[c] : top;
        for (int64_t c = 0; c < cols; ++c) sum += out[c] = std::exp(in[c] - top);
        for (int64_t c = 0; c < cols; ++c) out[c] /= sum;
    }
}
"""


def test_a_kernel_computes_what_torch_computes():
    lib = jit.compile_cpp(SOFTMAX)
    x = torch.randn(33, 65)
    y = torch.empty_like(x)
    lib.softmax(x, y, 33, 65)
    torch.testing.assert_close(y, torch.softmax(x, 1))


def test_a_missing_function_is_named_with_those_there_are():
    with pytest.raises(AttributeError, match=r"no extern \"C\" function 'sofmax'; available: softmax"):
        _ = jit.compile_cpp(SOFTMAX).sofmax


def test_a_compile_error_points_to_the_source_line():
    wrong = SOFTMAX.replace("out[c] /= sum", "out[c] /= summ")
    line = next(i for i, text in enumerate(wrong.splitlines(), 1) if "summ" in text)
    with pytest.raises(jit.BuildError) as caught:
        jit.compile_cpp(wrong)
    assert caught.value.lines == (line,)
    assert f"kernel.cpp:{line}:" in str(caught.value)
    assert "out[c] /= summ" in str(caught.value)


def test_a_long_error_is_cut_and_warnings_are_left_out():
    calls = "\n".join(f"unknown_{i}({'x, ' * 60} x);" for i in range(60))
    source = f'#warning look here\nextern "C" void f(int x) {{ {calls} }}'
    with pytest.raises(jit.BuildError) as caught:
        jit.compile_cpp(source)
    assert len(str(caught.value).encode()) <= 4096
    assert "unknown_0" in str(caught.value)
    assert "look here" not in str(caught.value)
    assert "look here" in caught.value.stderr


def test_an_undefined_symbol_is_a_build_error():
    with pytest.raises(jit.BuildError, match="undefined reference to `elsewhere'"):
        jit.compile_cpp('extern "C" void elsewhere(int); extern "C" void f(int n) { elsewhere(n); }')


@pytest.mark.parametrize("source", ["", "void f(float* x) {}", 'extern "C" { static void f(int a) {} }'])
def test_a_source_without_a_callable_function_is_a_build_error(source: str):
    with pytest.raises(jit.BuildError, match='no extern "C" function'):
        jit.compile_cpp(source)


def test_only_the_compilers_headers_may_be_included(tmp_path: Path):
    (tmp_path / "mine.h").write_text("#define VALUE 1\n")
    with pytest.raises(jit.BuildError, match=r"only the compiler's own headers.*mine\.h"):
        jit.compile_cpp(f'#include "{tmp_path}/mine.h"\nextern "C" int f() {{ return VALUE; }}')


SIGMOID = r"""
#include <kernelwright/math.h>
static float exp_f32(float x) { return x; }
static int bits_of = 1;
extern "C" void f(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = kw::sigmoid_f32(exp_f32(x[i])) * bits_of;
}
"""


def test_the_math_header_leaves_a_kernels_own_names_alone():
    x = torch.linspace(-100, 100, 1001)
    y = torch.empty_like(x)
    jit.compile_cpp(SIGMOID).f(x, y, 1001)
    torch.testing.assert_close(y, x.sigmoid())


def test_an_error_below_the_math_header_names_the_kernels_own_line():
    with pytest.raises(jit.BuildError, match=r"kernel\.cpp:6:.*'sigmoid_f32' was not declared"):
        jit.compile_cpp(SIGMOID.replace("kw::", ""))


def test_another_math_header_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before, _ = build(SIGMOID, (), BuildCache(), 60)
    header = tmp_path / "kernelwright" / "math.h"
    header.parent.mkdir()
    header.write_text(standard.MATH_HEADER.read_text() + "// changed\n")
    monkeypatch.setattr(standard, "MATH_HEADER", header)
    after, _ = build(SIGMOID, (), BuildCache(), 60)
    assert before.parent != after.parent


@pytest.mark.parametrize(
    "flag",
    [
        "-Wl,-rpath,/tmp", "-lcuda", "-L/tmp", "-I/tmp", "-include/etc/passwd", "-include", "-B/tmp",
        "-fplugin=/tmp/x.so", "@/tmp/flags", "-o", "/tmp/x.o", "-fuse-ld=gold", "-Wa,-a", "-Wp,-MD,/tmp/x",
        "-fprofile-generate", "-fdump-tree-all", "-specs=/tmp/specs", "-wrapper", "-save-temps", "-x",
        "-fsanitize=address", "-flto", "-DNAME=@/etc/passwd", "-std=c++11",
    ],
)  # fmt: skip
def test_a_flag_outside_the_allowlist_is_refused(flag: str, cache_folder: Path):
    with pytest.raises(jit.BuildError, match=re.escape(repr(flag)) + " is not allowed; allowed are -O0"):
        jit.compile_cpp(SOFTMAX, [flag])
    assert not cache_folder.exists()


def test_allowed_flags_reach_the_compiler():
    source = 'extern "C" int f() { return VALUE; }\nextern "C" long g(T n) { return n; }'
    flags = ["-O2 -funroll-loops", "-ffast-math", "-mprefer-vector-width=512", "-DVALUE=42", "-DT=long"]
    lib = jit.compile_cpp(source, flags)
    assert lib.f() == 42
    assert lib.g(2**40) == 2**40
    assert jit.compile_cpp(source, ["-DVALUE=43", "-DT=long"]).f() == 43


def test_fast_math_does_not_change_the_process():
    """GCC 12's -ffast-math at the link makes loading a library flush torch's denormals to zero."""
    denormal = torch.full((4,), 1e-40)
    jit.compile_cpp('extern "C" float f(float a) { return a * 2; }', ["-ffast-math", "-Ofast"]).f(1.0)
    assert (denormal * 1.0).count_nonzero() == 4


def test_two_kernels_with_the_same_names_stay_apart():
    def library(value: int) -> jit.CppLibrary:
        return jit.compile_cpp(
            f"template <int> struct State {{ static inline int value = {value}; }};\n"
            f'extern "C" int helper() {{ return {value}; }}\n'
            'extern "C" int f() { return helper() * 100 + State<0>::value; }'
        )

    assert [library(1).f(), library(2).f()] == [101, 202]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(MissingPrerequisite, match=r"no C\+\+ compiler.*apt-get install g\+\+\) or set CXX"):
        jit.compile_cpp(SOFTMAX)


def test_the_process_has_one_openmp_runtime_and_torch_rules_it():
    script = """
import re, torch
from kernelwright import jit
lib = jit.compile_cpp('''#include <omp.h>
extern "C" int limit() { return omp_get_max_threads(); }
extern "C" int team() { int n = 0;
    _Pragma("omp parallel reduction(+:n)") n += 1;
    return n; }
''')
torch.randn(500, 500) @ torch.randn(500, 500)
torch.set_num_threads(2)
assert (lib.team(), lib.limit()) == (2, 2)
torch.set_num_threads(1)
assert (lib.team(), lib.limit()) == (1, 1)
files = {line.split()[-1] for line in open("/proc/self/maps")}
mapped = [file for file in files if re.search("lib(gomp|iomp5|omp)[.-]", file)]
assert len(mapped) == 1, mapped
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_runtime_of_another_name_is_linked_in_place_of_the_systems(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """PyPI's torch renames its libgomp; `-fopenmp` alone would bring in the system's beside it."""
    runtime = tmp_path / "libgomp-a34b3233.so.1"
    stub = """extern "C" {
        void GOMP_parallel() {}
        int omp_get_num_threads() { return 1; }
        int omp_get_thread_num() { return 0; }
    }"""
    command = ["g++", "-shared", "-fPIC", "-xc++", "-", f"-Wl,-soname,{runtime.name}", "-o", str(runtime)]
    subprocess.run(command, input=stub, text=True, check=True)
    monkeypatch.setattr(openmp, "torch_runtime", lambda: runtime)
    library, _ = build(SOFTMAX, (), BuildCache(), 60)
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"\[(libgomp[^\]]*)\]", needed) == ["libgomp-a34b3233.so.1"]


def test_importing_is_cheap():
    script = "import sys; import kernelwright.jit; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
