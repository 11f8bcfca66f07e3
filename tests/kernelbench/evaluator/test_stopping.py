"""What is stopped uses no CPU, and who does is found out; who cannot be stopped is tried again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelwright.kernelbench.evaluator import EAGER, Referee
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.processes.worker_handle import NotStopped, Worker
from kernelwright.kernelbench.evaluator.sandbox import process_tree
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE, Evaluate, candidate_of, task_of, variant

SPIN = """
import hashlib, threading
data = bytes(1 << 16)
def spin():
    while True:
        hashlib.sha256(data)
for _ in range(7):
    threading.Thread(target=spin).start()
print("ready", flush=True)
spin()
"""
WOKEN = """
import ctypes, signal, struct
signal.signal(signal.SIGCONT, lambda *_: None)
libc = ctypes.CDLL(None)
for milliseconds in (5, 10, 20, 40, 80, 160):
    timer = ctypes.c_void_p()
    libc.timer_create(0, struct.pack("<QiI48x", 0, signal.SIGCONT, 0), ctypes.byref(timer))
    libc.timer_settime(timer, 0, struct.pack("<qqqq", 0, 0, 0, 1_000_000 * milliseconds), None)
print("ready", flush=True)
while True:
    pass
"""
FORKS = """
import os, signal
def fork(*_):
    if os.fork() == 0:
        while True:
            pass
signal.signal(signal.SIGCONT, fork)
print("ready", flush=True)
while True:
    signal.pause()
"""
COMPUTE = "return torch.nn.functional.gelu(self.norm(x))"


@contextmanager
def running(source: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_eight_threads_that_stand_still_use_no_cpu() -> None:
    with running(SPIN) as spinning:
        for _ in range(10):
            used_ns = process_tree.freeze(spinning.pid)
            time.sleep(0.02)
            assert process_tree.cpu_ns(used_ns) == used_ns and process_tree.stood_still(used_ns)
            process_tree.thaw(list(used_ns))
            time.sleep(0.01)
            assert not process_tree.stood_still(used_ns)


def test_who_is_woken_by_a_timer_has_not_stood_still() -> None:
    """The kernel sends the SIGCONT that the process has asked for, which undoes SIGSTOP."""
    with running(WOKEN) as woken:
        used_ns = process_tree.freeze(woken.pid)
        time.sleep(0.3)
        assert not process_tree.stood_still(used_ns)


def test_who_starts_a_process_after_the_last_look_is_stopped_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new process would be in no list; but who has started it was charged for that."""
    look, note, noted, woken = process_tree.tree, process_tree.cpu_ns, [], []

    def noting(pids: Sequence[int]) -> dict[int, int]:
        noted.extend(pids)
        return note(pids)

    def woken_then(root: int) -> list[int]:
        found = look(root)
        if noted and not woken:
            woken.append(root)
            os.kill(root, signal.SIGCONT)
            time.sleep(0.05)
        return found

    monkeypatch.setattr(process_tree, "cpu_ns", noting)
    monkeypatch.setattr(process_tree, "tree", woken_then)
    with running(FORKS) as forking:
        try:
            used_ns = process_tree.freeze(forking.pid)
            assert woken == [forking.pid]
            assert len(used_ns) == 2 and list(used_ns) == look(forking.pid)
            assert process_tree.stood_still(used_ns)
        finally:
            process_tree.kill(forking.pid)


def test_a_tree_that_is_gone_is_stopped_at_once() -> None:
    with running(SPIN) as ended:
        ended.kill()
        ended.wait()
        before = time.monotonic()
        used_ns = process_tree.freeze(ended.pid)
        assert time.monotonic() - before < 5
    assert list(used_ns) == [ended.pid] and process_tree.stood_still(used_ns)


def test_who_has_ended_has_stood_still() -> None:
    with running(SPIN) as spinning:
        used_ns = process_tree.freeze(spinning.pid)
        assert list(used_ns) == [spinning.pid]
        spinning.kill()  # which makes it use CPU time, to end
        assert process_tree.stood_still(used_ns)
        spinning.wait()
        assert process_tree.stood_still(used_ns)


MUCH_MEMORY = """
import mmap
memory = mmap.mmap(-1, 1 << 29)
memory.madvise(15)  # MADV_NOHUGEPAGE, so that it takes its time to be freed
for page in range(0, 1 << 29, 4096):
    memory[page] = 1
print("ready", flush=True)
input()
"""


def test_who_takes_long_to_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "_END_S", 0.0)
    waited = 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", MUCH_MEMORY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as much:
            assert much.stdout is not None and much.stdout.readline()
            used_ns = process_tree.freeze(much.pid)
            much.kill()
            while process_tree.cpu_ns([much.pid])[much.pid] - used_ns[much.pid] < 1_000_000:
                time.sleep(0)  # it frees its memory, as a GPU's driver does for seconds
            waited += set(process_tree._states(much.pid)) != {b"Z"}
            assert process_tree.stood_still(used_ns)
            assert set(process_tree._states(much.pid)) == {b"Z"}
    assert waited


def test_a_later_process_of_a_tree_that_is_gone_has_run() -> None:
    with running(SPIN) as first, running(SPIN) as second, running(SPIN) as third:
        used_ns: dict[int, int] = {}
        for each in (first, second, third):
            used_ns |= process_tree.freeze(each.pid)
        assert process_tree.stood_still(used_ns)
        third.kill()
        third.wait()
        assert not process_tree.stood_still(used_ns)


def test_who_runs_while_another_lane_times_is_killed_for_it() -> None:
    timing_lock = TimingLock()
    with running(WOKEN) as woken, timing_lock.shared():
        with timing_lock._changed:
            timing_lock._away.add(woken.pid)
        with timing_lock.exclusive():
            time.sleep(0.3)
        assert woken.wait(30) == -signal.SIGKILL
        assert timing_lock.ran_on(woken.pid) and not timing_lock.ran_on(woken.pid)


VFORKS = r"""
#include <unistd.h>
#include <atomic>
#include <thread>
std::atomic<long> count;
int main() {
    std::thread([] { for (;;) ++count; }).detach();
    if (write(1, "ready\n", 6) == 6 && !vfork()) {
        usleep(20000);
        for (volatile long i = 0; i < 3000000;) i = i + 1;  // some milliseconds, with others on the CPU
        execlp("sleep", "sleep", "60", nullptr);
    }
    pause();
}
"""


def test_who_is_about_to_start_a_program_is_stopped_on_a_busy_machine(tmp_path: Path) -> None:
    """Only the child goes on for a moment, for longer each time: its turn may come late."""
    source, program = tmp_path / "vforks.cpp", tmp_path / "vforks"
    source.write_text(VFORKS)
    subprocess.run(["g++", "-O1", "-pthread", "-o", program, source], check=True)
    parent = subprocess.Popen([program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with running(SPIN):
        try:
            assert parent.stdout.readline() == b"ready\n"
            while len(process_tree.tree(parent.pid)) < 2:
                time.sleep(0.001)
            assert list(process_tree.freeze(parent.pid)) == process_tree.tree(parent.pid)
        finally:
            process_tree.kill(parent.pid)
            parent.wait()


def test_who_says_that_it_has_stopped_may_be_on_its_cpu_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """For milliseconds, where a hypervisor takes the CPU away; its clock is not what it was stopped with."""
    clocks = iter([5, 6, 9, 9, 9])
    monkeypatch.setattr(process_tree, "cpu_ns", lambda pids: dict.fromkeys(pids, next(clocks)))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert process_tree.freeze(child.pid) == {child.pid: 9}
    finally:
        monkeypatch.undo()
        process_tree.kill(child.pid)
        child.wait()


def test_a_thread_that_is_stopped_is_waited_for_until_it_has_left_its_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then it is charged for what it has run since the last tick of its CPU."""
    read, told = process_tree._read, []

    def slow_to_leave(path: str) -> bytes:
        if path.endswith("/syscall"):
            told.append(read(path))
            return b"running\n" if len(told) < 20 else told[-1]
        return read(path)

    with running(SPIN) as process:
        monkeypatch.setattr(process_tree, "_read", slow_to_leave)
        used = process_tree.freeze(process.pid)
        assert used and len(told) > 20
        stopped = [words for words in told if words]  # none where we may not know
        assert all(words.split()[0] != b"running" for words in stopped[-8:]), stopped
        process_tree.thaw(list(used))


@pytest.mark.parametrize(
    ("failures", "verdict"), [(1, Verdict.correct), (100, Verdict.runtime_error)], ids=["once", "always"]
)
def test_an_evaluation_in_which_a_candidate_did_not_stop_is_repeated(
    failures: int, verdict: Verdict, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the machine; but no candidate escapes a verdict by being hard to stop."""
    stop, failed = Worker.freeze, []

    def fail(worker: Worker) -> None:
        if worker.role == "candidate" and len(failed) < failures:
            failed.append(worker)
            worker.close()
            raise NotStopped(worker.role, "python in state D (vfork)")
        stop(worker)

    monkeypatch.setattr(Worker, "freeze", fail)
    evaluation = evaluate(variant(COMPUTE, COMPUTE + f"  # {failures}"))
    assert evaluation.verdict is verdict, evaluation.reason
    assert len(failed) == min(failures, 3)


def test_an_evaluation_in_which_a_baseline_ran_on_is_repeated(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is trusted, so the cause is the machine's."""
    look, failed = Worker.check_stood_still, []

    def fail(worker: Worker) -> None:
        if worker.role == "baseline" and worker._used_ns is not None and not failed:
            failed.append(worker)
            worker._used_ns = dict.fromkeys(worker._used_ns, -(10**9))  # less than it has used
        look(worker)

    monkeypatch.setattr(Worker, "check_stood_still", fail)
    evaluation = evaluate(variant(COMPUTE, COMPUTE + "  # a baseline runs on"))
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert len(failed) == 1


def test_where_nothing_stops_no_candidate_is_charged(
    evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, failed = Worker.freeze, []

    def fail(worker: Worker) -> None:
        if worker.role == "candidate" or (worker.role == "oracle" and len(failed) == 3):
            failed.append(worker)
            worker.close()
            raise NotStopped(worker.role, "nothing stops")
        stop(worker)

    monkeypatch.setattr(Worker, "freeze", fail)
    candidate = candidate_of(variant(COMPUTE, COMPUTE + "  # nothing stops"))
    with pytest.raises(NotStopped, match="oracle could not be stopped"):
        evaluator.evaluate(task_of(REFERENCE), candidate, EAGER)
