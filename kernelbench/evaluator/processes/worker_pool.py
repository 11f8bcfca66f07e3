"""The fork server, and the workers that the referee has it start."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from kernelwright.kernelbench.devices import visible_name
from kernelwright.kernelbench.errors import InfrastructureError, MissingPrerequisite, StorageError
from kernelwright.kernelbench.evaluator import faults
from kernelwright.kernelbench.evaluator.processes.channel import Channel, ChannelClosed, ChannelTimeout
from kernelwright.kernelbench.evaluator.processes.scratch import ScratchFolder
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker, remove
from kernelwright.kernelbench.evaluator.protocol import Limits
from kernelwright.kernelbench.evaluator.sandbox import cgroups, process_tree
from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.machine import memory_bytes as machine_bytes
from kernelwright.kernelbench.machine import usable_cpus
from kernelwright.kernelbench.records import Capability

# Chosen by hand.
_THREADS = 4  # threads that a worker may start for each that computes, besides its processes
_STACK_BYTES = 8 << 20  # bytes of a thread's stack, for which memory is only taken as it is used
_SIDE_BY_SIDE = 4  # trees that share a user id, by which the system counts: an evaluation pool's slots
_MOST_SHARE = 0.75  # share of the machine's memory for one worker, so that the referee is not the one killed
_COMPILES, _COMPILE_BYTES = 32, 1 << 29  # compilers at a time at most, and bytes of memory that one may take
_CPUS_LEFT = 2  # by compilers: for the referee, and the worker that waits for them
# Of the referee's environment, what compilers, torch, Triton and the CUDA driver are found by; images set it.
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CC", "CXX", "CUDA_HOME", "CUDA_PATH",
                "TORCH_CUDA_ARCH_LIST", "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH",
                "TRITON_PTXAS_BLACKWELL_PATH")  # fmt: skip


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, which workers of other user ids can enter, whatever the umask."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir(exist_ok=True)
            path.chmod(0o755)


class WorkerPool:
    """The fork server and the workers forked from it."""

    def __init__(
        self,
        *,
        threads: int,
        cache: Path,
        limits: Limits,
        without: Collection[str] = (),
        device: str = "cpu",
        timing_lock: TimingLock | None = None,
        cpus: Collection[int] = (),
    ) -> None:
        """`without`: layers of the sandbox to leave off, to learn what they cost or how it goes without.

        `device`: the target that workers run on; of several GPUs they see this one only. `timing_lock`:
        another pool's, whose timings these workers must not disturb. `cpus`: that they may run on; all by
        default.

        Raises MissingPrerequisite and StorageError.
        """
        self.device = device
        on_gpu = device != "cpu"
        shown = visible_name(device) if on_gpu else ""
        self.limits = limits
        self.timing_lock = timing_lock or TimingLock()
        self._lock = threading.RLock()  # evaluations in several threads share a pool
        self.cache = cache
        self.threads = threads
        most_bytes = min(limits.memory_bytes, int(_MOST_SHARE * machine_bytes()))
        spare = min(usable_cpus(), len(cpus) or usable_cpus()) - _CPUS_LEFT
        self.compile_workers = max(1, min(spare, _COMPILES, most_bytes // _COMPILE_BYTES))
        self._headers = cache / "trusted" / "headers"
        try:
            for folder in (self._headers, cache / "inductor"):  # Landlock opens only folders that are there
                make_folder(folder)
        except OSError as error:
            raise StorageError(
                f"the cache folder {cache} cannot be made: {error.strerror}",
                "set KERNELWRIGHT_HOME to a writable folder",
            ) from None
        self._workers: list[Worker] = []
        self._scratch = ScratchFolder()
        self._base = self._scratch.path
        try:
            faults.check_folder(cache, "the cache folder", "KERNELWRIGHT_HOME")
            faults.check_folder(self._base, "the temporary folder", "TMPDIR")
        except StorageError:
            self._scratch.remove()
            raise
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).parents[4])  # of the package `kernelwright`
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment |= {
            "OMP_NUM_THREADS": str(threads),
            "OMP_PROC_BIND": "close",
            "OPENBLAS_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TMPDIR": str(cache / "inductor"),  # where Inductor, when imported, decides to keep its headers
            # Inductor's compilers are processes, which a fork server cannot have: a worker has its own.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCH_WARM_POOL": "0",
            "HOME": str(self._base),
            "KERNELWRIGHT_CACHE": str(cache / "trusted"),  # until a worker is told its own
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            # torch must not initialize CUDA to learn whether there is a GPU: that does not survive a fork.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "CUDA_VISIBLE_DEVICES": shown,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # NVML's, and nvidia-smi's
        }
        if not on_gpu:  # GPU kernels are interpreted and emulated there, though a GPU may be here
            environment |= {"TRITON_INTERPRET": "1"}
        if self.compile_workers > 1:
            environment |= {"MAX_JOBS": str(self.compile_workers)}  # of ninja, in torch's builds
        self.no_uid = sandbox.why_no_distinct_uid(
            {"the build cache": cache, "the temporary folder": self._base}
        )
        if "distinct_uid" in without:
            self.no_uid = "left off on request"
        self._layers = sandbox.layers(self.no_uid, without, gpu=on_gpu)
        self._on = {layer.name for layer in self._layers if layer.on}
        self._groups: list[cgroups.Group] = []  # of workers that have ended
        if not sandbox.can_read_memory_of(None):
            raise MissingPrerequisite(
                "this machine does not let a process read its child's memory",
                "set kernel.yama.ptrace_scope to 1 or less, or let the container use process_vm_readv",
            )
        # -P: modules are not looked up in the folder that the workers' folders lie in
        command = [
            sys.executable,
            "-P",
            "-m",
            "kernelwright.kernelbench.evaluator.processes.fork_server",
            str(theirs.fileno()),
            device,
        ]
        self._fork_server = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=self._base,
            process_group=0,  # Ctrl-C is for the referee alone
        )
        if cpus:
            os.sched_setaffinity(self._fork_server.pid, cpus)
        theirs.close()
        self._channel = Channel(ours)
        self._ready = False
        self._imported: list[str] = []

    @property
    def worker_device(self) -> str:
        """Name of the device in workers: "cpu", or "cuda:0", as they see one GPU only."""
        return "cpu" if self.device == "cpu" else "cuda:0"

    def layers(self) -> tuple[Capability, ...]:
        """Return the layers of the sandbox around this pool's workers."""
        return self._layers

    def _uid(self, role: str) -> int | None:
        return sandbox.uid_of(role) if self.no_uid is None else None

    def builds_of(self, candidate: str) -> Path:
        """Return the folder of a candidate's builds, which its builder alone writes to.

        `candidate`: its sha256.
        """
        folder = self.cache / "build" / candidate[:2] / candidate
        make_folder(folder)
        if (owner := self._uid("builder")) is not None:
            os.chown(folder, owner, owner)
        return folder

    @property
    def space_left(self) -> bool:
        """True unless builds and scratch folders are known not to be writable."""
        return faults.space_left(self.cache) and faults.space_left(self._base)

    def start(self, role: str, entry: str, candidate: str = "", memory_bytes: int | None = None) -> Worker:
        """Start a worker that runs `entry` ("module:function") in the sandbox of its `role`.

        `candidate`: the sha256 of what a builder or candidate will load. `memory_bytes`: its limit, if it is
        not that of all workers.
        """
        with self._lock:
            return self._start(role, entry, candidate, memory_bytes)

    def _start(self, role: str, entry: str, candidate: str, memory_bytes: int | None) -> Worker:
        if not self._ready:
            self._await_fork_server()
        with contextlib.ExitStack() as unused, contextlib.ExitStack() as sent:
            ours, theirs = socket.socketpair()
            unused.callback(ours.close)
            sent.callback(theirs.close)
            (stderr_r, stderr_w), (status_r, status_w) = (_pipe(unused, sent) for _ in range(2))
            scratch = Path(tempfile.mkdtemp(prefix=f"{role}-", dir=self._base))
            unused.callback(remove, scratch)
            uid = self._uid(role)
            if uid is not None:
                os.chown(scratch, uid, uid)
            trusted = role in sandbox.TRUSTED
            if memory_bytes is None:
                memory_bytes = self.limits.memory_bytes * (4 if role == "oracle" else 1)
            memory_bytes = min(memory_bytes, int(_MOST_SHARE * machine_bytes()))
            group = self._group(memory_bytes)
            if group is not None:
                unused.callback(self._groups.append, group)
            spec = sandbox.SandboxSpec(
                role=role,
                scratch=str(scratch),
                uid=uid,
                # What a candidate's builder wrote is loaded by that candidate only.
                cache=str(self.cache / "trusted" if trusted else self.builds_of(candidate)),
                headers=None if trusted else str(self._headers),
                memory_bytes=memory_bytes + self.threads * _STACK_BYTES,
                file_bytes=self.limits.file_bytes,
                processes=_SIDE_BY_SIDE * self._tasks,
                layers=sandbox.layers_of(role, self._on, gpu=self.device != "cpu"),
                gpu=self.device != "cpu",
                entrances=() if group is None else group.entrances,
            )
            request = {"entry": entry, "sandbox": spec.to_json()}
            try:
                self._channel.send_json(request, [theirs.fileno(), stderr_w, status_w])
            except ChannelClosed:
                raise InfrastructureError("the fork server died", "run `kernelwright doctor`") from None
            sent.close()
            worker = Worker(
                Channel(ours, takes_fds=role == "oracle"),
                stderr_r,
                status_r,
                scratch,
                self.limits,
                self.timing_lock,
                group,
                role,
            )
            unused.pop_all()
        self._workers.append(worker)
        return worker

    @property
    def _tasks(self) -> int:
        """Processes and threads that a worker's tree may have."""
        return self.limits.processes + _THREADS * self.threads

    def _group(self, memory_bytes: int) -> cgroups.Group | None:
        """Return a control group for one worker, if there are any; remove those of ended workers."""
        self._remove_groups()
        parents = cgroups.parents()
        if "control_groups" not in self._on or isinstance(parents, str):
            return None
        try:
            return parents.make(memory_bytes, self._tasks)
        except OSError as error:
            raise InfrastructureError(
                f"no control group for a worker: {error.strerror}", "run `kernelwright doctor`"
            ) from None

    def _remove_groups(self) -> None:
        """Remove the control groups of closed workers, as soon as their processes are gone."""
        closed = [worker for worker in self._workers if worker.closed]
        self._workers = [worker for worker in self._workers if not worker.closed]
        self._groups += [worker.group for worker in closed if worker.group is not None]
        self._groups = [group for group in self._groups if not group.remove()]

    def import_first(self, modules: Sequence[str]) -> None:
        """Import these modules, which may take seconds, before any worker is forked from now on."""
        with self._lock:
            if not self._ready:
                self._await_fork_server()
            wanted = [name for name in modules if name not in self._imported]
            if wanted:
                self._imported += wanted
                with contextlib.suppress(ChannelClosed):  # which shows when it is waited for
                    self._channel.send_json({"import": wanted})
                self._await_fork_server()

    def _await_fork_server(self) -> None:
        try:
            self._channel.receive_json(timeout_s=120)
        except (ChannelClosed, ChannelTimeout):
            raise InfrastructureError(
                "the fork server did not start", "does `python -c 'import torch'` work in this environment?"
            ) from None
        self._ready = True

    def abort(self) -> None:
        """End all workers at once, from any thread; pending waits for one raise WorkerDied."""
        self._fork_server.kill()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._channel.close()
        if not self._ready:  # nobody needed it
            self._fork_server.kill()
        try:
            self._fork_server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._fork_server.kill()
            self._fork_server.wait()
        self._scratch.remove()
        deadline = time.monotonic() + process_tree.GONE_S
        self._remove_groups()
        while self._groups and time.monotonic() < deadline:
            time.sleep(0.002)
            self._remove_groups()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    """Return the two ends of a pipe, each closed with its stack."""
    ours, theirs = os.pipe()
    reading.callback(os.close, ours)
    writing.callback(os.close, theirs)
    return ours, theirs
