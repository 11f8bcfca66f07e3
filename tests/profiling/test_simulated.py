"""Counters of simulated caches: calls that are recorded, made again under valgrind, and counted."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit.library import CppLibrary
from kernelwright.kernelbench.jit.signature import parse
from kernelwright.profiling.simulated import caches, replay
from kernelwright.profiling.simulated.caches import SimulatedCache
from kernelwright.profiling.simulated.callgrind import Costs, costs
from kernelwright.profiling.simulated.recording import CallRecorder, RecordedCall, TooMuch

pytestmark = pytest.mark.builds

needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")

DRIVER = (Path(replay.__file__).parent / "driver.cpp").read_text()
CACHES = ("--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,16,64")
SOURCE = """
#include <cmath>
#include <cstdint>
extern "C" {
void spin(const int64_t* times, volatile float* y) {
    for (int64_t i = 0; i < *times; ++i) *y = 1.0f;
}
void twice(const float* x, float* y, int64_t n) {
    #pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) y[i] = 2.0f * x[i];
}
void chosen(const float* const* x, volatile float* y, int64_t n, int8_t which, bool really, float by, double least) {
    const bool right = which == -2 && really && by == -INFINITY && least == 0.1;
    for (int64_t i = 0; i < (right ? n : 0); ++i) *y = x[1][i];
}
}
"""

RECORDED = """
# callgrind format
events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw

fn=(1) main
5 10
cfn=(2) twice
calls=1 0
5 100 20 10 1 4 3 1 2 1
+2 7
cfn=(3) spin
calls=2 0
* 50 8
cfn=(2)
calls=1 0
-1 100 20 10 0 4

fn=(2)
9 90 20 10
cfn=(3)
calls=7 0
9 10

fn=(3)
9 50 8
"""


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CallRecorder:
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(CppLibrary, "__init__", CppLibrary.__init__)  # put back what it replaces
    made = CallRecorder(tmp_path)
    made.watch()
    return made


def counted(
    recorder: CallRecorder, folder: Path, forward: Callable[[], object], limit_s: float = 60
) -> dict[str, Costs]:
    with recorder.recording():
        forward()
    found = replay.replay(recorder.calls, DRIVER, CACHES, folder, limit_s)
    return {each.kernel: each for each in found}


def test_a_kernel_costs_what_it_calls_costs_too_and_only_main_s_calls_count() -> None:
    assert costs(RECORDED, caller="main") == [
        Costs("twice", 2, 200, 40, 20, 11, 3),
        Costs("spin", 2, 50, 8, 0, 0, 0),
    ]


@pytest.mark.parametrize("text", ["", "events: Ir Dr Dw\n", "events: Ir\ncfn=(1)\n"])
def test_what_is_no_file_of_counts_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        costs(text, caller="main")


@needs_valgrind
def test_a_pass_over_cold_memory_misses_each_line_once(recorder: CallRecorder, tmp_path: Path) -> None:
    lib = jit.compile_cpp(SOURCE)
    x, y = torch.randn(1 << 20), torch.empty(1 << 20)
    twice = counted(recorder, tmp_path, lambda: lib.twice(x, y, x.numel()))["twice"]
    assert twice.calls == 1
    assert 2 << 16 <= twice.last_misses <= (2 << 16) + 200  # 4 MiB each, 64 bytes a line
    assert (1 << 20) / 8 <= twice.writes <= (1 << 20) / 8 + 2000  # eight numbers each


@needs_valgrind
def test_what_lies_in_the_simulated_cache_is_not_fetched_again(
    recorder: CallRecorder, tmp_path: Path
) -> None:
    lib = jit.compile_cpp(SOURCE)
    x, y = torch.randn(1 << 16), torch.empty(1 << 16)

    def forward() -> None:
        for _ in range(10):
            lib.twice(x, y, x.numel())

    twice = counted(recorder, tmp_path, forward)["twice"]
    assert twice.calls == 10
    assert 2 << 12 <= twice.last_misses <= (2 << 12) + 200  # 256 KiB each, in 1 MiB
    assert twice.l1_misses >= 10 * (2 << 12)  # 32 KiB hold neither


@needs_valgrind
def test_kernels_find_in_memory_what_they_found_when_they_were_recorded(
    recorder: CallRecorder, tmp_path: Path
) -> None:
    lib = jit.compile_cpp(SOURCE)
    times, y = torch.tensor([5000]), torch.empty(1)

    def forward() -> None:
        lib.spin(times, y)
        times.mul_(3)  # by torch, between two calls
        lib.spin(times, y)
        lib.spin(times, y)

    assert counted(recorder, tmp_path, forward)["spin"].writes == pytest.approx(5000 + 2 * 15000, abs=20)


@needs_valgrind
def test_scalars_and_sequences_of_tensors_arrive(recorder: CallRecorder, tmp_path: Path) -> None:
    lib = jit.compile_cpp(SOURCE)
    x, y = torch.randn(2, 3000), torch.empty(1)
    forward = lambda: lib.chosen([x[0], x[1]], y, 3000, -2, True, -math.inf, 0.1)  # noqa: E731
    assert counted(recorder, tmp_path, forward)["chosen"].writes >= 3000


def test_nothing_is_recorded_before_and_after(recorder: CallRecorder) -> None:
    lib = jit.compile_cpp(SOURCE)
    x, y = torch.randn(16), torch.empty(16)
    lib.twice(x, y, 16)
    with recorder.recording():
        lib.twice(x, y, 16)
    lib.twice(x, y, 16)
    [call] = recorder.calls
    assert [memory.size for memory in call.memory] == [64, 64]


def test_memory_beyond_measure_is_refused(recorder: CallRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.profiling.simulated.recording.MOST_BYTES", 1 << 20)
    lib = jit.compile_cpp(SOURCE)
    x, y = torch.randn(1 << 18), torch.empty(1 << 18)
    with pytest.raises(TooMuch, match="more than 1 MiB"), recorder.recording():
        lib.twice(x, y, x.numel())


@needs_valgrind
def test_what_takes_too_long_is_ended(recorder: CallRecorder, tmp_path: Path) -> None:
    lib = jit.compile_cpp(SOURCE)
    times, y = torch.tensor([300_000_000]), torch.empty(1)
    with pytest.raises(Unavailable, match="longer than 2 s"):
        counted(recorder, tmp_path, lambda: lib.spin(times, y), limit_s=2)


WIDE = """
#include <immintrin.h>
static __m512 kept;
extern "C" {attribute} void zero() {{ kept = _mm512_add_ps(kept, kept); }}
"""


@needs_valgrind
@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("", "do not build for x86-64-v3, .*error"),
        ('__attribute__((target("avx512f")))', "instructions that valgrind does not support"),
    ],
)
def test_kernels_for_avx_512_alone_are_refused_with_the_reason(
    attribute: str, said: str, tmp_path: Path
) -> None:
    source = WIDE.format(attribute=attribute)
    build = tmp_path / "build"
    build.mkdir()
    (build / "kernel.cpp").write_text(source)
    (build / "flags.txt").write_text("-mavx512f")
    call = RecordedCall(build, parse(source)["zero"], (), ())
    with pytest.raises(Unavailable, match=said):
        replay.replay([call], DRIVER, CACHES, tmp_path, 60)


def cache_folder(folder: Path, *found: tuple[int, str, str, int]) -> Path:
    for number, (level, kind, size, ways) in enumerate(found):
        index = folder / "cpu0" / "cache" / f"index{number}"
        index.mkdir(parents=True)
        written = {"level": level, "type": kind, "size": size, "ways_of_associativity": ways}
        for name, value in (written | {"coherency_line_size": 64}).items():
            (index / name).write_text(f"{value}\n")
    return folder


def test_the_machine_s_caches_with_a_power_of_two_of_sets(tmp_path: Path) -> None:
    first = (1, "Data", "48K", 12), (1, "Instruction", "32K", 8)
    found = caches.of_machine(
        cache_folder(tmp_path, *first, (2, "Unified", "2048K", 16), (3, "Unified", "30720K", 20))
    )
    assert found.data == SimulatedCache(48 << 10, 12, 64)
    assert found.last == SimulatedCache(20 << 20, 20, 64)  # 24576 sets are none
    assert found.words == ("--I1=32768,8,64", "--D1=49152,12,64", "--LL=20971520,20,64")
    assert (str(found.data), str(found.last)) == ("48 KiB", "20 MiB")


def test_a_machine_that_does_not_say_what_caches_it_has(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not describe this machine's caches"):
        caches.of_machine(cache_folder(tmp_path, (3, "Unified", "512K", 0)))
