"""Process trees: finds, stops, resumes and kills a worker's processes as one, and reads what they have used.

A shell with a child, as a worker with a compiler:

>>> import subprocess
>>> shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo started; wait"], stdout=subprocess.PIPE)
>>> _ = shell.stdout.readline()
>>> len(tree(shell.pid))
2

All its threads are in state T (stopped) once `freeze` returns, with the CPU time that each process had used
by then. A process may be woken behind the referee's back, by a SIGCONT of its own making; that shows in its
CPU time:

>>> used = freeze(shell.pid)
>>> sorted(used) == sorted(tree(shell.pid)), {state for pid in used for state in _states(pid)}
(True, {b'T'})
>>> stood_still(used)
True
>>> thaw(list(used))
>>> kill(shell.pid)
>>> shell.wait(), children(shell.pid)
(-9, [])
>>> shell.stdout.close()
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

_STOPPED = b"TtZX"  # states of a thread that does not run
_NAMED = 3  # threads that are named in a reason
_STOP_S, _EXEC_S = 0.25, 1e-3  # seconds to stop in; else to reach an exec in (docs/LOG.md, 2026-11-24)
_CPUCLOCK_SCHED = 2  # the CPU-time clock of a process, in the three low bits of its id (linux/posix-timers.h)
_STILL_NS = 10_000  # CPU time a stopped process may be charged; 900 had none (docs/LOG.md, 2026-11-26)
_END_S = 0.25  # seconds until a killed process begins to end; chosen by hand
GONE_S = 10.0  # seconds that one may take to end: a GPU's driver tears its context down first, kernels too
_ENDING = 0x4  # PF_EXITING, of a thread's flags in /proc/PID/stat (include/linux/sched.h)
# Seconds between two looks: a thread stops once it runs, so the referee must not hold its CPU. Without them
# freezing took 5 ms a block, with them 0.6 (docs/LOG.md, 2026-11-21).
_YIELD_S = 5e-5


def tree(root: int) -> list[int]:
    """`root` and all its descendants that are alive, parents first."""
    found = [root]
    for pid in found:
        found += children(pid)
    return found


def children(pid: int) -> list[int]:
    """Return the processes that those of `pid`'s threads have started and that are alive."""
    return [
        int(child) for task in _tasks(pid) for child in _read(f"/proc/{pid}/task/{task}/children").split()
    ]


def why_not_stopped(root: int) -> str:
    """Return the threads of the tree that run or cannot be interrupted, and what they are doing."""
    doing = []
    for pid in tree(root):
        for task in _tasks(pid):
            name, _, rest = _read(f"/proc/{pid}/task/{task}/stat").rpartition(b")")
            if rest and (state := rest.split()[0]) not in _STOPPED:
                where = _read(f"/proc/{pid}/task/{task}/wchan").decode(errors="replace")
                comm = name.partition(b"(")[2].decode(errors="replace")
                doing.append(f"{comm} in state {state.decode()} ({where})")
    return ", ".join(doing[:_NAMED]) or "it forks faster than it can be stopped"


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _read(path: str) -> bytes:
    """Return a file of /proc; empty when its process is gone.

    Every timed block waits for several of these.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(fd, 4096):  # a short part is not the last one: long lists come in several
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)


def freeze(root: int, timeout_s: float = 20.0, likely: Sequence[int] = ()) -> dict[int, int]:
    """Stop every thread of the tree and return its pids, parents first, with their CPU times (`cpu_ns`).

    Empty where the tree could not be stopped in time.

    `likely`: processes that are certain to be in it, to be stopped before the tree is looked at. A signal
    makes a stopped process go on, and the kernel can be asked to send one: so what they have used is read
    before the tree is looked at for the last time. Who is woken later has used more, and what it has started
    earlier is seen.
    """
    for pid in likely:
        _signal(pid, signal.SIGSTOP)
    now = time.monotonic()
    deadline, stop_s, exec_s = now + timeout_s, _STOP_S, _EXEC_S
    go_on_at = now + stop_s
    while (now := time.monotonic()) < deadline:
        pids = tree(root)
        if now > go_on_at:
            # One stopped between vfork and exec keeps its parent from stopping. Where others wait for a CPU
            # too, its turn may come many milliseconds later, as may that of what is being stopped.
            thaw([child for pid in pids if b"D" in _states(pid) for child in children(pid)])
            time.sleep(exec_s)
            stop_s, exec_s = 1.5 * stop_s, 2 * exec_s
            go_on_at = time.monotonic() + stop_s
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        if all(state in _STOPPED for pid in pids for state in _states(pid)) and all(map(_is_off_cpu, pids)):
            used = _used_by(pids)
            # One that forked while we looked shows up in the next look.
            if tree(root) == pids and _used_by(pids) == used:
                return used
        time.sleep(_YIELD_S)
    return {}


def _is_off_cpu(pid: int) -> bool:
    """Return True if no thread of a stopped process is on a CPU any more.

    A thread says that it has stopped a moment before it leaves its CPU, a long one where a hypervisor takes
    that away just then, and what it has run since the last tick is only charged as it leaves. The kernel
    waits for that before it tells the system call of a stopped thread (wait_task_inactive in
    kernel/sched/core.c). Where it tells us nothing, we take the thread for stopped.
    """
    return all(_read(f"/proc/{pid}/task/{task}/syscall") != b"running\n" for task in _tasks(pid))


def _used_by(pids: Sequence[int]) -> dict[int, int]:
    """CPU time as of `cpu_ns`; 0 for processes that are gone."""
    return dict.fromkeys(pids, 0) | cpu_ns(pids)


def thaw(pids: Sequence[int]) -> None:
    """Let processes that `freeze` stopped go on."""
    for pid in pids:
        _signal(pid, signal.SIGCONT)


def cpu_ns(pids: Iterable[int]) -> dict[int, int]:
    """Return the CPU time of each of these processes, ended threads included, without those gone.

    A stopped process uses none: of 900 stops of honest trees, on idle CPUs and at a load of three
    on two, none was followed by a nanosecond of it. Of one that runs on another CPU the last tick's is read,
    4 ms old. https://man7.org/linux/man-pages/man2/clock_getres.2.html
    """
    used = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            used[pid] = time.clock_gettime_ns(~pid << 3 | _CPUCLOCK_SCHED)
    return used


def stood_still(before: Mapping[int, int]) -> bool:
    """Return True if stopped processes have used no CPU since; `before`: their `cpu_ns` then.

    That holds, too, where the first of them, init, or the second, the worker, was killed: to end takes CPU
    time, and what has ended computes nothing. A later one that is gone has run: only its parent could have
    reaped it, and that is stopped.
    """
    now = cpu_ns(before)
    if all(pid in now and now[pid] - used <= _STILL_NS for pid, used in before.items()):
        return True
    first_two, started = list(before)[:2], time.monotonic()
    while (waited_s := time.monotonic() - started) < GONE_S:
        if any(all(state in b"ZX" for state in _states(pid)) for pid in first_two):
            return True
        if waited_s > _END_S and not any(_is_ending(pid) for pid in first_two):
            return False
        time.sleep(_EXEC_S)
    return False


def _is_ending(pid: int) -> bool:
    """Return True if all threads of a process are on their way out, from which none comes back."""
    stats = [_read(f"/proc/{pid}/task/{task}/stat").rpartition(b")")[2].split() for task in _tasks(pid)]
    # After the name: state, parent, process group, session, terminal, its process group, flags.
    return all(int(fields[6]) & _ENDING for fields in stats if fields)


def memory_bytes(pids: Sequence[int]) -> int:
    """Memory of these processes; what they share with others counts in part. 0 for those that are gone."""
    return sum(map(_memory_bytes, pids))


def _memory_bytes(pid: int) -> int:
    size = _read(f"/proc/{pid}/smaps_rollup").partition(b"\nPss:")[2].split(maxsplit=1)
    if size:
        return int(size[0]) << 10
    pages = _read(f"/proc/{pid}/statm").split()  # of a process that hides its memory; what it shares is whole
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def waited_s(pids: Sequence[int]) -> float:
    """Seconds that threads of these processes were ready to run and found no CPU free, all threads together.

    Zero where the kernel does not count it. https://docs.kernel.org/scheduler/sched-stats.html
    """
    lines = (_read(f"/proc/{pid}/task/{task}/schedstat") for pid in pids for task in _tasks(pid))
    return sum(int(fields[1]) for line in lines if len(fields := line.split()) > 1) / 1e9


def kill(root: int) -> None:
    """End the tree: stop it so that it cannot grow, then kill it, descendants first."""
    freeze(root, timeout_s=0.5)
    for pid in reversed(tree(root)):
        _signal(pid, signal.SIGKILL)


def kill_descendants() -> None:
    """End everything below this process, however often it forks.

    For processes outside a PID namespace: within one, /proc may still show the pids of the other side.
    """
    me = os.getpid()
    while len(pids := tree(me)) > 1:
        for pid in pids[1:]:
            _signal(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _states(pid: int) -> Iterator[bytes]:
    for task in _tasks(pid):
        after_name = _read(f"/proc/{pid}/task/{task}/stat").rpartition(b")")[2].split()
        if after_name:
            yield after_name[0]


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
