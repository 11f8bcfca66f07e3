"""The judge's hold on its workers: start, talk with deadlines, freeze, read their memory, kill."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from kernelbench.errors import InfrastructureError, MissingPrerequisite
from kernelbench.evaluator import cgroups, sandbox
from kernelbench.evaluator.channel import Channel, ChannelClosed, ChannelGarbage, ChannelTimeout, readable
from kernelbench.evaluator.gate import Gate
from kernelbench.evaluator.protocol import Limits
from kernelbench.records import Layer

_LOOK_EVERY_S = 0.25  # at the number of processes of a tree that is being waited for
_KEPT_OUTPUT = 8192
_THREADS = 4  # a worker may start for each that computes, beside its processes
_GROUPS_LEFT_S = 2.0  # for control groups to be left by killed processes
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CXX", "CUDA_HOME", "CUDA_VISIBLE_DEVICES")


class WorkerDied(Exception):  # noqa: N818 - what happened, for the verdict
    """The worker ended without an answer; `str()` says how."""


class WorkerTimeout(Exception):  # noqa: N818
    """The worker did not answer in time and was killed."""


class _TooMany(Exception):  # noqa: N818
    """A worker has started more processes than it may."""


class Worker:
    """One fenced process. Answers are read with a deadline; past it the whole tree is killed."""

    def __init__(
        self,
        channel: Channel,
        stderr_fd: int,
        status_fd: int,
        scratch: Path,
        limits: Limits,
        gate: Gate,
        group: cgroups.Group | None,
    ) -> None:
        self.channel = channel
        self.limits = limits
        self.scratch = scratch
        self.gate = gate
        self.group = group
        self._status_fd = status_fd
        self._tail = bytearray()
        self._drain = threading.Thread(target=self._keep_tail, args=(stderr_fd,), daemon=True)
        self._drain.start()
        if not readable(status_fd, 30):
            raise InfrastructureError("a worker did not start within 30 s", "is the machine out of memory?")
        first = os.read(status_fd, 32)
        if not first:
            raise InfrastructureError("a worker could not be started", "run `kernelwright doctor`")
        self.init_pid = int(first.split()[0])
        self._rest = first.partition(b"\n")[2]
        self._pid: int | None = None
        self.load_s = 0.0  # what it took to load a model, its start not counted
        self._stopped: list[int] = []
        self.closed = False
        try:
            self._pidfd = os.pidfd_open(self.init_pid)
        except ProcessLookupError:
            raise InfrastructureError("a worker ended at its start", "run `kernelwright doctor`") from None

    @property
    def alive(self) -> bool:
        """Whether it can still be asked; its tree may have been killed from outside."""
        return not self.closed and not readable(self._pidfd, 0)

    @property
    def pid(self) -> int:
        """The worker proper: the first child of its init."""
        if self._pid is None:
            pids = sandbox.tree(self.init_pid)
            if len(pids) < 2:
                raise WorkerDied(self._how_it_ended())
            self._pid = pids[1]
        return self._pid

    @property
    def output(self) -> str:
        """The end of what the worker printed."""
        return self._tail.decode(errors="replace")

    def request(self, message: dict[str, Any], timeout_s: float, fds: Sequence[int] = ()) -> bytes:
        """Send `message` and return the answer. Raises WorkerDied or WorkerTimeout; then the tree is gone."""
        if self.closed:
            raise WorkerDied("it had ended before")
        try:
            with self.gate.away(self.init_pid):
                self.channel.send_json(message, fds)
                return self._wait(timeout_s)
        except ChannelClosed:
            how = self._how_it_ended()
            self.close()
            if self.gate.ended(self.init_pid):
                raise InfrastructureError(
                    "a worker that did not stop while another lane timed was ended", "evaluate once more"
                ) from None
            raise WorkerDied(how) from None
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
        deadline = self.gate.clock() + timeout_s
        sock = self.channel.sock.fileno()
        while not readable(sock, min(_LOOK_EVERY_S, timeout_s)):
            if self.gate.clock() > deadline:
                raise ChannelTimeout
            if readable(self._status_fd, 0) and not readable(sock, 0):
                raise ChannelClosed  # it ended, but something it started holds the socket
            if not self.gate.elsewhere and len(sandbox.tree(self.init_pid)) > self.limits.processes:
                raise _TooMany
        return self.channel.receive(max(deadline - self.gate.clock(), 1.0))[0]

    def freeze(self) -> None:
        """Stop the whole tree. Raises WorkerDied when that fails; then it is gone."""
        if self.closed:
            return
        self._stopped = sandbox.freeze(self.init_pid)
        if not self._stopped:
            self.close()
            raise WorkerDied("its processes could not be stopped")

    def thaw(self) -> None:
        """Let the stopped tree go on; a matter of microseconds, since it is part of timed blocks."""
        if not self.closed:
            sandbox.thaw(self._stopped)

    def waited_s(self) -> float:
        """What the threads of the frozen tree, its init apart, have waited for a CPU so far.

        See `sandbox.waited_s`.
        """
        return sandbox.waited_s(self._stopped[1:])

    def read(self, addresses: np.ndarray[Any, Any], length: int, into: memoryview) -> None:
        """Fill `into` with the `length` bytes at each of these addresses of the worker's memory, in order.

        Raises WorkerDied when there is no such memory.

        To be called while the worker is frozen: then nothing in it can change what is read.
        """
        error = sandbox.read_memory(self.pid, addresses, length, into)
        if error is not None:
            raise WorkerDied(f"its output memory cannot be read: {error}")

    def wrote_to(self, name: str) -> bool:
        """Whether the worker changed its private mapping of shared memory `name`: it has own pages then."""
        try:
            text = Path(f"/proc/{self.pid}/smaps").read_text()
        except OSError:
            raise WorkerDied(self._how_it_ended()) from None
        inside = False
        for line in text.splitlines():
            first = line.split(" ", 1)[0]
            if "-" in first:
                inside = f"/memfd:{name}" in line
            elif inside and first == "Anonymous:" and line.split()[1] != "0":
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

    def close(self) -> None:
        """Kill the whole tree and remove the scratch folder. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if not readable(self._pidfd, 0):  # else its pid may be another process's by now
            sandbox.kill(self.init_pid)
        os.close(self._pidfd)
        self.channel.close()
        os.close(self._status_fd)
        remove(self.scratch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_folder(folder: Path) -> None:
    """With its parents, to be entered by workers with user ids of their own, whatever the umask."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir(exist_ok=True)
            path.chmod(0o755)


def remove(folder: Path) -> None:
    """Delete a folder that a candidate filled as it liked: deep, wide, unreadable."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, timeout=60, check=False)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class WorkerPool:
    """The zygote and the workers forked from it."""

    def __init__(self, *, threads: int, cache: Path, limits: Limits, without: Collection[str] = ()) -> None:
        """`without`: layers of the fence to leave off, to learn what they cost or how it goes without."""
        self.limits = limits
        self.gate = Gate()
        self._lock = threading.RLock()  # evaluations in several threads share a pool
        self.cache = cache
        self.threads = threads
        self._headers = cache / "trusted" / "headers"
        for folder in (self._headers, cache / "inductor"):  # Landlock opens only folders that are there
            make_folder(folder)
        self._workers: list[Worker] = []
        self._base = Path(tempfile.mkdtemp(prefix="kernelwright-"))
        self._base.chmod(0o711)
        ours, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment |= {
            "OMP_NUM_THREADS": str(threads),
            "OMP_PROC_BIND": "close",
            "OPENBLAS_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TMPDIR": str(cache / "inductor"),  # where Inductor, when imported, decides to keep its headers
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "HOME": str(self._base),
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TRITON_INTERPRET": "1",
        }
        self.no_uid = sandbox.why_no_distinct_uid(
            {"the build cache": cache, "the temporary folder": self._base}
        )
        if "distinct_uid" in without:
            self.no_uid = "left off on request"
        self._layers = sandbox.layers(self.no_uid, without)
        self._on = {layer.name for layer in self._layers if layer.on}
        self._groups: list[cgroups.Group] = []  # of workers that have ended
        if not sandbox.can_read_memory_of(None):
            raise MissingPrerequisite(
                "this machine does not let a process read its child's memory",
                "set kernel.yama.ptrace_scope to 1 or less, or let the container use process_vm_readv",
            )
        # -P: modules are not looked up in the folder that the workers' folders lie in
        command = [sys.executable, "-P", "-m", "kernelbench.evaluator.zygote", str(theirs.fileno())]
        self._zygote = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=self._base,
            process_group=0,  # Ctrl-C is for the judge alone
        )
        theirs.close()
        self._channel = Channel(ours)
        self._ready = False
        self._imported: list[str] = []

    def layers(self) -> tuple[Layer, ...]:
        """The layers of the fence around this pool's workers."""
        return self._layers

    def _uid(self, role: str) -> int | None:
        return sandbox.uid_of(role) if self.no_uid is None else None

    def builds_of(self, candidate: str) -> Path:
        """The folder of a candidate's builds, which its builder alone writes to. `candidate`: its sha256."""
        folder = self.cache / "build" / candidate[:2] / candidate
        make_folder(folder)
        if (owner := self._uid("builder")) is not None:
            os.chown(folder, owner, owner)
        return folder

    def start(self, role: str, entry: str, candidate: str = "") -> Worker:
        """A new worker that runs `entry` ("module:function") behind the fence of its `role`.

        `candidate`: the sha256 of what a builder or candidate will load.
        """
        with self._lock:
            return self._start(role, entry, candidate)

    def _start(self, role: str, entry: str, candidate: str) -> Worker:
        if not self._ready:
            self._await_zygote()
        scratch = Path(tempfile.mkdtemp(prefix=f"{role}-", dir=self._base))
        uid = self._uid(role)
        if uid is not None:
            os.chown(scratch, uid, uid)
        ours, theirs = socket.socketpair()
        stderr_r, stderr_w = os.pipe()
        status_r, status_w = os.pipe()
        trusted = role in sandbox.TRUSTED
        memory_bytes = self.limits.memory_bytes * (4 if role == "oracle" else 1)
        group = self._group(memory_bytes)
        fence = sandbox.Fence(
            role=role,
            scratch=str(scratch),
            uid=uid,
            # What a candidate's builder wrote is loaded by that candidate only.
            cache=str(self.cache / "trusted" if trusted else self.builds_of(candidate)),
            headers=None if trusted else str(self._headers),
            memory_bytes=memory_bytes,
            file_bytes=self.limits.file_bytes,
            processes=self.limits.processes,
            layers=sandbox.layers_of(role, self._on),
            entrances=() if group is None else group.entrances,
        )
        try:
            request = {"entry": entry, "fence": fence.to_json()}
            self._channel.send_json(request, [theirs.fileno(), stderr_w, status_w])
        except ChannelClosed:
            raise InfrastructureError("the fork server died", "run `kernelwright doctor`") from None
        finally:
            theirs.close()
            os.close(stderr_w)
            os.close(status_w)
        worker = Worker(
            Channel(ours, takes_fds=False), stderr_r, status_r, scratch, self.limits, self.gate, group
        )
        self._workers.append(worker)
        return worker

    def _group(self, memory_bytes: int) -> cgroups.Group | None:
        """A control group for one worker, where there are any; removes those of workers that have ended."""
        self._remove_groups()
        parents = cgroups.parents()
        if "control_groups" not in self._on or isinstance(parents, str):
            return None
        try:
            return parents.make(memory_bytes, self.limits.processes + _THREADS * self.threads)
        except OSError as error:
            raise InfrastructureError(
                f"no control group for a worker: {error.strerror}", "run `kernelwright doctor`"
            ) from None

    def _remove_groups(self) -> None:
        """Those of closed workers, as soon as their processes are gone."""
        closed = [worker for worker in self._workers if worker.closed]
        self._workers = [worker for worker in self._workers if not worker.closed]
        self._groups += [worker.group for worker in closed if worker.group is not None]
        self._groups = [group for group in self._groups if not group.remove()]

    def import_first(self, modules: Sequence[str]) -> None:
        """Have workers started from now on find these modules of torch imported, which may take seconds."""
        with self._lock:
            if not self._ready:
                self._await_zygote()
            wanted = [name for name in modules if name not in self._imported]
            if wanted:
                self._imported += wanted
                with contextlib.suppress(ChannelClosed):  # which shows when it is waited for
                    self._channel.send_json({"import": wanted})
                self._await_zygote()

    def _await_zygote(self) -> None:
        try:
            self._channel.receive_json(timeout_s=120)
        except (ChannelClosed, ChannelTimeout):
            raise InfrastructureError(
                "the fork server did not start", "does `python -c 'import torch'` work in this environment?"
            ) from None
        self._ready = True

    def abort(self) -> None:
        """End all workers at once, from any thread; who waits for one is told that it died."""
        self._zygote.kill()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._channel.close()
        if not self._ready:  # nobody needed it
            self._zygote.kill()
        try:
            self._zygote.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait()
        remove(self._base)
        deadline = time.monotonic() + _GROUPS_LEFT_S
        self._remove_groups()
        while self._groups and time.monotonic() < deadline:
            time.sleep(0.002)
            self._remove_groups()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
