"""Where the time goes: what perf's samples are of, and how they are told apart."""

import subprocess
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.profiling.counters.sampling import SYSTEM, SourceLine, located
from kernelwright.profiling.counters.time_shares import metrics
from kernelwright.profiling.static.symbols import Symbol, symbols

# perf 6.1 script -F ip --show-mmap-events, shortened; the library was mapped again at another place.
SAMPLES = """\
PERF_RECORD_MMAP -1/0: [0xffffffff81000000(0x1000000) @ 0xffffffff81000000]: x [kernel.kallsyms]_text
PERF_RECORD_MMAP2 7741/7741: [0x7f6e27600000(0x37000) @ 0 fe:00 5351264 0]: r-xp /lib/libgomp.so.1
PERF_RECORD_MMAP2 7741/7741: [0x7f0000001000(0x1000) @ 0x1000 fe:00 9 0]: r-xp /cache/ab12/kernel.so
     7f0000001234
     7f0000001234
     7f6e2761e02a
 ffffffff821e86a7
PERF_RECORD_MMAP2 7741/7741: [0x7f0000001000(0x1000) @ 0 00:00 0 0]: rwxp //anon
     7f0000001234
     400000
some words
"""
LIBRARY = """
extern "C" float total(const float* x, long n) {
    float sum = 0.0f;
    #pragma omp parallel for reduction(+ : sum)
    for (long i = 0; i < n; ++i) sum += x[i];
    return sum;
}
"""


def test_samples_lie_where_their_addresses_were_mapped_then() -> None:
    assert located(SAMPLES) == {
        SourceLine("/cache/ab12/kernel.so", 0x1234): 2,
        SourceLine("/lib/libgomp.so.1", 0x1E02A): 1,
        SourceLine(SYSTEM, 0): 1,
        SourceLine("//anon", 0x234): 1,
        SourceLine("", 0): 1,
    }
    assert located("") == {}


def test_time_is_the_kernels_or_torchs_or_the_systems_or_of_those_that_wait() -> None:
    samples = {
        SourceLine("/cache/ab12/kernel.so", 0x1234): 20,
        SourceLine("/cache/ab12/kernel.so", 0x1300): 10,
        SourceLine("/cache/cd34/kernel.so", 0x1234): 5,
        SourceLine("/cache/ab12/kernel.so", 0x9999): 5,  # of no function
        SourceLine("/site-packages/torch/lib/libgomp.so.1", 1): 10,
        SourceLine("/site-packages/torch/lib/libtorch_cpu.so", 1): 15,
        SourceLine("//anon", 1): 5,
        SourceLine(SYSTEM, 0): 20,
        SourceLine("/usr/bin/python3.11", 1): 10,
    }
    libraries = {
        "ab12/kernel.so": [
            Symbol("softmax_rows", 0x1200, 0x100),
            Symbol("softmax_rows._omp_fn.0", 0x1300, 9),
        ],
        "cd34/kernel.so": [Symbol("gelu", 0x1234, 1)],
    }
    found = {(m.name, m.kernel): m.value for m in metrics(samples, libraries)}
    assert found == {
        ("time_share", "softmax_rows"): 0.3,
        ("time_share", "gelu"): 0.05,
        ("time_in_torch", ""): 0.2,
        ("time_in_system", ""): 0.2,
        ("time_waiting", ""): 0.1,
    }


def test_functions_are_found_in_a_librarys_file(tmp_path: Path) -> None:
    (tmp_path / "f.cpp").write_text(LIBRARY)
    words = [
        "g++",
        "-O2",
        "-fopenmp",
        "-shared",
        "-fPIC",
        "-Wl,-Ttext-segment=0x40000",
        "-o",
        "f.so",
        "f.cpp",
    ]
    subprocess.run(words, cwd=tmp_path, check=True)
    found = {symbol.name: symbol for symbol in symbols(tmp_path / "f.so")}
    assert {"total", "total._omp_fn.0"} <= set(found)
    code = (tmp_path / "f.so").read_bytes()
    for symbol in (found["total"], found["total._omp_fn.0"]):
        assert symbol.size > 0 and b"\xc3" in code[symbol.begin : symbol.begin + symbol.size]  # it returns
    assert found["total"].begin < 0x40000  # where it lies in the file, not in memory


@pytest.mark.parametrize("text", [b"", b"\x7fELF and nothing else"])
def test_what_is_no_library_is_said_to_be_none(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "f.so").write_bytes(text)
    with pytest.raises(Unavailable, match="objdump: "):
        symbols(tmp_path / "f.so")
