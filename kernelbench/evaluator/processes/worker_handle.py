"""The referee's hold on a worker: talk with deadlines, freeze, read its memory, kill."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator.processes.channel import (
    Channel,
    ChannelClosed,
    ChannelGarbage,
    ChannelTimeout,
    readable,
)
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.protocol import Limits
from kernelwright.kernelbench.evaluator.refusal import printable
from kernelwright.kernelbench.evaluator.sandbox import cgroups, process_tree
from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.records import Verdict

_LOOK_EVERY_S = 0.25  # at the number of processes of a tree that is being waited for
_KEPT_OUTPUT = 8192


class WorkerDied(Exception):  # noqa: N818 - what happened, for the verdict
    """The worker ended without an answer; `str()` says how, `printable`."""

    def __init__(self, how: str) -> None:
        super().__init__(printable(how))

    out_of_memory = False  # whether the system ended it for that
    verdict = Verdict.runtime_error  # where it was a candidate


class RanWhileStopped(WorkerDied):
    """The worker was stopped, and has used CPU time all the same; it was killed."""

    verdict = Verdict.cheating

    def __init__(self) -> None:
        super().__init__("it was stopped, and its processes ran on")


class NotStopped(InfrastructureError):  # noqa: N818
    """A worker could not be stopped, and was killed; `role` is its role."""

    def __init__(self, role: str, why: str) -> None:
        super().__init__(f"the processes of a {role} could not be stopped: {why}", "retry the evaluation")
        self.role = role


class WorkerTimeout(Exception):  # noqa: N818
    """The worker did not answer in time and was killed."""


class _TooMany(Exception):  # noqa: N818
    """A worker has started more processes than it may."""


class Worker:
    """One sandboxed process. Answers are read with a deadline; past it the whole tree is killed."""

    def __init__(
        self,
        channel: Channel,
        stderr_fd: int,
        status_fd: int,
        scratch: Path,
        limits: Limits,
        timing_lock: TimingLock,
        group: cgroups.Group | None,
        role: str,
    ) -> None:
        self.channel = channel
        self.role = role
        self.limits = limits
        self.scratch = scratch
        self.timing_lock = timing_lock
        self.group = group
        self._status_fd = status_fd
        self._tail = bytearray()
        if not readable(status_fd, 30):
            raise InfrastructureError("a worker did not start within 30 s", "is the machine out of memory?")
        first = os.read(status_fd, 32)
        if not first:
            raise InfrastructureError("a worker could not be started", "run `kernelwright doctor`")
        self.init_pid = int(first.split()[0])
        self._rest = first.partition(b"\n")[2]
        self._pid: int | None = None
        self.fds: list[int] = []  # that came with the last answer; only a trusted worker can send any
        self.load_s = 0.0  # what it took to load a model, its start not counted
        self.has_run = False  # a call of the model that it loaded
        self._stopped: list[int] = []
        self._used_ns: dict[int, int] | None = None  # CPU time of stopped processes, at that time
        self.closed = False
        try:
            self._pidfd = os.pidfd_open(self.init_pid)
        except ProcessLookupError:
            raise InfrastructureError("a worker ended at its start", "run `kernelwright doctor`") from None
        self._drain = threading.Thread(target=self._keep_tail, args=(stderr_fd,), daemon=True)
        self._drain.start()

    @property
    def alive(self) -> bool:
        """True if it can still be sent requests; its tree may have been killed from outside."""
        return not self.closed and not readable(self._pidfd, 0)

    @property
    def pid(self) -> int:
        """The worker proper: the first child of its init."""
        if self._pid is None:
            pids = process_tree.tree(self.init_pid)
            if len(pids) < 2:
                raise WorkerDied(self._how_it_ended())
            self._pid = pids[1]
        return self._pid

    @property
    def memory_bytes(self) -> int:
        """Memory of its whole tree."""
        return process_tree.memory_bytes(process_tree.tree(self.init_pid))

    @property
    def output(self) -> str:
        """The end of what the worker printed."""
        return self._tail.decode(errors="replace")

    def request(self, message: dict[str, Any], timeout_s: float, fds: Sequence[int] = ()) -> bytes:
        """Send `message` and return the answer. Raises WorkerDied or WorkerTimeout; then the tree is gone."""
        if self.closed:
            raise WorkerDied("it had ended before")
        try:
            with self.timing_lock.waiting_for_worker(self.init_pid):
                self.channel.send_json(message, fds)
                return self._wait(timeout_s)
        except ChannelClosed:
            died = WorkerDied(self._how_it_ended())
            died.out_of_memory = self.group is not None and self.group.out_of_memory
            self.close()
            if self.timing_lock.ran_on(self.init_pid):
                raise self._ran_on() from None
            if self.timing_lock.ended(self.init_pid):
                raise NotStopped(self.role, "another candidate was to be timed") from None
            raise died from None
        except ChannelGarbage as error:
            self.close()
            raise WorkerDied(f"its answer to '{message['do']}' was {error}") from None
        except _TooMany:
            self.close()
            raise WorkerDied(f"more than {self.limits.processes} processes") from None
        except ChannelTimeout:
            self.close()
            raise WorkerTimeout(f"no answer to '{message['do']}' within {timeout_s:g} s") from None

    def ask(self, message: dict[str, Any], timeout_s: float, fds: Sequence[int] = ()) -> dict[str, Any]:
        """`request` for an answer that is a JSON object. Raises WorkerDied too when it is not one."""
        answer = self.request(message, timeout_s, fds)
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.close()
            raise WorkerDied(f"its answer to '{message['do']}' was not one that a worker gives")
        return found

    def _wait(self, timeout_s: float) -> bytes:
        deadline = self.timing_lock.clock() + timeout_s
        sock = self.channel.sock.fileno()
        while not readable(sock, min(_LOOK_EVERY_S, timeout_s)):
            if self.timing_lock.clock() > deadline:
                raise ChannelTimeout
            if readable(self._status_fd, 0) and not readable(sock, 0):
                raise ChannelClosed  # it ended, but something it started holds the socket
            if (
                not self.timing_lock.elsewhere
                and len(process_tree.tree(self.init_pid)) > self.limits.processes
            ):
                raise _TooMany
        answer, self.fds = self.channel.receive(max(deadline - self.timing_lock.clock(), 1.0))
        return answer

    def freeze(self) -> None:
        """Stop the whole tree. Raises NotStopped when that fails; then it is gone."""
        if self.closed:
            return
        self.check_stood_still()
        # The worker itself and its init are there as long as the worker is.
        likely = self._stopped if len(self._stopped) == 2 else ()
        used_ns = process_tree.freeze(self.init_pid, likely=likely)
        self._stopped = list(used_ns)
        if not self._stopped:
            why = process_tree.why_not_stopped(self.init_pid)
            self.close()
            raise NotStopped(self.role, why)
        self._used_ns = used_ns

    def thaw(self) -> None:
        """Let the stopped tree go on; a matter of microseconds, since it is part of timed blocks.

        Raises RanWhileStopped.
        """
        if not self.closed:
            self.check_stood_still()
            self._used_ns = None
            process_tree.thaw(self._stopped)

    def check_stood_still(self) -> None:
        """Raise RanWhileStopped if the tree has used CPU time since it was stopped; then it is gone.

        Of a trusted worker, which has no reason to, NotStopped: the evaluation is repeated.
        """
        if self._used_ns is not None and not process_tree.stood_still(self._used_ns):
            self._used_ns = None
            self.close()
            raise self._ran_on()

    def _ran_on(self) -> RanWhileStopped | NotStopped:
        trusted = self.role in sandbox.TRUSTED
        return NotStopped(self.role, "they ran on when they had been") if trusted else RanWhileStopped()

    def waited_s(self) -> float:
        """Seconds that the threads of the frozen tree, its init apart, have waited for a CPU so far.

        See `process_tree.waited_s`.
        """
        return process_tree.waited_s(self._stopped[1:])

    def read(self, addresses: np.ndarray[Any, Any], length: int, into: memoryview) -> None:
        """Fill `into` with the `length` bytes at each of these addresses of the worker's memory, in order.

        Raises WorkerDied when there is no such memory, RanWhileStopped when the worker did.

        To be called while the worker is frozen: then nothing in it can change what is read.
        """
        error = sandbox.read_memory(self.pid, addresses, length, into)
        self.check_stood_still()
        if error is not None:
            raise WorkerDied(f"its output memory cannot be read: {error}")

    def wrote_to(self, name: str) -> bool:
        """Return True if the worker changed its private mapping of shared memory, and so has own pages."""
        try:
            text = Path(f"/proc/{self.pid}/smaps").read_text()
        except OSError:
            raise WorkerDied(self._how_it_ended()) from None
        self.check_stood_still()
        inside = False
        for line in text.splitlines():
            first = line.split(" ", 1)[0]
            if "-" in first:
                inside = f"/memfd:{name}" in line
            elif inside and first == "Anonymous:" and line.split()[1] != "0":
                return True
        return False

    def has_in(self, name: str, address: int) -> bool:
        """Return True if `address` lies in one of the worker's mappings of shared memory `name`."""
        try:
            text = Path(f"/proc/{self.pid}/maps").read_text()
        except OSError:
            raise WorkerDied(self._how_it_ended()) from None
        for line in text.splitlines():
            if f"/memfd:{name}" in line:
                start, end = (int(bound, 16) for bound in line.split(" ", 1)[0].split("-"))
                if start <= address < end:
                    return True
        return False

    def has_code_from(self, folder: Path) -> bool:
        """Return True if it has mapped code of a file in `folder` or its scratch folder, or a nameless one.

        As the system says, whatever the worker does. Code in memory that is of no file does not count: torch
        makes some itself.
        """
        try:
            text = Path(f"/proc/{self.pid}/maps").read_text()
        except OSError:
            raise WorkerDied(self._how_it_ended()) from None
        own = tuple(f"{os.path.realpath(place)}/" for place in (folder, self.scratch))
        for line in text.splitlines():
            _, permissions, _, _, inode, *path = line.split(maxsplit=5)
            if "x" in permissions and inode != "0" and path[0].startswith((*own, "/memfd:")):
                return True
        return False

    def _how_it_ended(self) -> str:
        status = self._rest
        with contextlib.suppress(OSError):
            if not status and readable(self._status_fd, 5):
                status = os.read(self._status_fd, 32)
        if self.group is not None and self.group.out_of_memory:
            return "killed, for its processes took too much memory together"
        if not status.strip():
            return "it was killed"
        code = int(status.split()[0])
        if code < 0:
            name = _signal_name(-code)
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return f"killed by {name}{hint}"
        self._drain.join(timeout=1)
        last = [line for line in self.output.strip().splitlines() if line.strip()]
        return f"exited with status {code}" + (f": {last[-1][:500]}" if code and last else "")

    def _keep_tail(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(fd, 1 << 16):
                self._tail += data
                del self._tail[:-_KEPT_OUTPUT]
        os.close(fd)

    def close(self, within_s: float = 0.0) -> None:
        """Kill the whole tree and remove the scratch folder. Idempotent.

        `within_s`: seconds to wait at most for its end, with which a GPU's memory is free.
        """
        if self.closed:
            return
        self.closed = True
        if not readable(self._pidfd, 0):  # else its pid may be another process's by now
            process_tree.kill(self.init_pid)
        self.channel.close()
        os.close(self._status_fd)
        readable(self._pidfd, within_s)
        remove(self.scratch)
        if self.scratch.exists():  # a process that was dying had made a file there meanwhile
            readable(self._pidfd, process_tree.GONE_S)
            remove(self.scratch)
        os.close(self._pidfd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove(folder: Path) -> None:
    """Delete a folder that a candidate filled as it liked: deep, wide, unreadable."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, timeout=60, check=False)


def size_bytes(folder: Path) -> int:
    """Disk space of all files below a folder; more than any limit where there are too many to count."""
    words = ["du", "-sk", "--", str(folder)]
    try:
        said = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60).stdout
    except subprocess.TimeoutExpired:
        return sys.maxsize
    return int(said.split()[0]) << 10 if said else 0  # there is no such folder


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
