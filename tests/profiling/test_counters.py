"""What perf stat counts of a process, what it says where it may not, and what becomes of it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.profiling.counters import perf
from kernelwright.profiling.counters.per_call import metrics

# perf 6.1 with -x, as root in a virtual machine without a PMU; the process had slept.
VIRTUAL = """\
# started on Mon Nov 23 17:00:00 2026

1.95,msec,task-clock,1954218,100.00,0.002,CPUs utilized
50,,page-faults,1954218,100.00,25.585,K/sec
<not counted>,,context-switches,0,100.00,,
<not supported>,,cycles,0,100.00,,
<not supported>,,LLC-load-misses,0,100.00,,
"""
# By a user who may count what user space does; two counters took turns.
OF_A_USER = """\
120.50,msec,task-clock:u,120500000,100.00,1.9,CPUs utilized
0,,context-switches:u,120500000,100.00,0.000,/sec
400000000,,cycles:u,120500000,100.00,3.3,GHz
600000000,,instructions:u,60000000,50.00,1.50,insn per cycle
1000,,LLC-load-misses:u,60000000,50.00,2.1,of all LL-cache accesses
"""
DENIED = """\
Error:
Access to performance monitoring and observability operations is limited.
Consider adjusting /proc/sys/kernel/perf_event_paranoid setting to open
access to performance monitoring and observability operations for processes
without CAP_PERFMON, CAP_SYS_PTRACE or CAP_SYS_ADMIN Linux capability.
"""

# Touches so many new pages as each line of its input says.
TOUCHER = """
import mmap, sys
for line in sys.stdin:
    pages = int(line)
    memory = mmap.mmap(-1, pages * 4096)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(pages):
        memory[page * 4096] = 1
    print("done", flush=True)
"""


def test_what_was_not_counted_is_left_out() -> None:
    assert perf.parsed(VIRTUAL) == {"task-clock": 1.95, "page-faults": 50}


def test_switches_that_a_user_may_not_see_are_not_zero() -> None:
    found = perf.parsed(OF_A_USER)
    assert found == {"task-clock": 120.5, "cycles": 4e8, "instructions": 6e8, "LLC-load-misses": 1000}


def test_counts_are_those_of_one_call() -> None:
    found = {m.name: m.value for m in metrics(perf.parsed(OF_A_USER), calls=10)}
    assert found == {
        "cpu_time": 12050.0,
        "cycles": 4e7,
        "instructions": 6e7,
        "last_level_load_misses": 100,
        "instructions_per_cycle": 1.5,
        "loaded_from_memory": 6400,
    }


@pytest.mark.parametrize("text", ["", "perf: command not found\n", "1,2\n", "many,,cycles,1,1\n"])
def test_what_is_no_count_is_none(text: str) -> None:
    assert perf.parsed(text) == {}


def test_a_machine_without_hardware_counters_is_told_from_one_that_lacks_some() -> None:
    assert "give the virtual machine a PMU" in perf.lacking(set(perf.SOFTWARE))
    every = {*perf.SOFTWARE, *perf.HARDWARE}
    assert perf.lacking(every - {"LLC-loads"}) == "without LLC-loads: not counted here"
    assert perf.lacking(every) == ""


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        (DENIED, 255, "kernel.perf_event_paranoid=1"),
        ("", 0, "no output"),
        ("Error: unknown option `control'", 129, "older than Linux 5.10"),
        ("WARNING: perf not found for kernel 6.1.0", 2, "perf not found for kernel 6.1.0"),
    ],
)
def test_a_perf_that_may_not_count_is_mended(
    said: str, status: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said").write_text(said)
    script = tmp_path / "perf"
    script.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/said >&2\nexit {status}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=reason):
        perf.granted()
    if status:
        with (
            perf.PerfCounting(1) as counting,
            pytest.raises(Unavailable, match=reason),
            counting.on(),
        ):
            pass


def test_without_perf_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="apt-get install linux-perf"):
        perf.granted()


@pytest.fixture
def toucher() -> Iterator["subprocess.Popen[str]"]:
    try:
        if "page-faults" not in perf.granted():
            pytest.skip("page faults are not counted here")
    except Unavailable as error:
        pytest.skip(str(error))
    with subprocess.Popen(
        [sys.executable, "-c", TOUCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        touch(process, 1)
        yield process
        process.kill()


def touch(process: "subprocess.Popen[str]", pages: int) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{pages}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def test_only_what_happens_in_the_blocks_counts(toucher: "subprocess.Popen[str]") -> None:
    with perf.PerfCounting(toucher.pid) as counting:
        touch(toucher, 5000)
        for _ in range(2):
            with counting.on():
                touch(toucher, 1000)
            touch(toucher, 5000)
        faults = counting.result()["page-faults"]
    assert 2000 <= faults < 2500


def test_a_process_that_is_gone_is_said(toucher: "subprocess.Popen[str]") -> None:
    toucher.kill()
    toucher.wait()
    with (
        perf.PerfCounting(toucher.pid) as counting,
        pytest.raises(Unavailable, match="perf failed"),
        counting.on(),
    ):
        pass
