"""The actor on a node: the evaluator of one device, with its pool."""

import contextlib
import io
import os
import tarfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Protocol

from pydantic import PositiveInt

from kernelwright.kernelbench.evaluator import CHECK, LocalEvaluator, Measurement
from kernelwright.kernelbench.evaluator.pool import EvaluationPool
from kernelwright.kernelbench.machine import parts_of_cpus
from kernelwright.kernelbench.records import Candidate, Environment, Evaluation, Record, Target, Task, Work
from kernelwright.kernelbench.version import kernelwright_version

_MOST_BYTES = 64 << 20  # of a build that is sent; larger ones are built again
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class SlotPool(Protocol):
    """Protocol of `kernelwright.agent.profiled.ProfilingPool`, as far as a slot needs it."""

    @property
    def pool(self) -> EvaluationPool: ...

    @property
    def evaluator(self) -> LocalEvaluator: ...

    def profile(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, known: str | None, closely: bool
    ) -> str | None:
        """Return what profilers read of a candidate, as JSON."""
        ...


StartSlot = Callable[[], AbstractContextManager[SlotPool]]  # which a node imports by its name


class SlotInfo(Record):
    """Facts of a slot. `machine`: equal for two slots whose CPUs are the same."""

    version: str  # of kernelwright
    machine: str
    target: Target
    environment: Environment
    slots: PositiveInt  # evaluations under way at a time


class ClusterSlot:
    """Evaluations on one device. Thread-safe; it times one at a time, and builds others meanwhile."""

    def __init__(self, start: StartSlot, number: int = 0, of: int = 1) -> None:
        """Start the evaluator, with its part of the CPUs where it is one of several on a node.

        Raises what `start` raises.
        """
        if of > 1:  # of this thread, and of all processes that it starts
            os.sched_setaffinity(0, parts_of_cpus(of)[number])
        with contextlib.suppress(PermissionError):  # Ray starts its workers at nice 15
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._stack = ExitStack()
        self._started = self._stack.enter_context(start())
        self._pool, self._evaluator = self._started.pool, self._started.evaluator

    def info(self) -> SlotInfo:
        return SlotInfo(
            version=kernelwright_version(),
            machine=_BOOT.read_text().strip(),
            target=self._evaluator.target,
            environment=self._evaluator.environment,
            slots=self._pool.slots,
        )

    def evaluate(
        self, task: Task, candidate: Candidate, measurement: Measurement, build: bytes | None = None
    ) -> Evaluation:
        """Return the verdict on a candidate. `build`: as `check` returned it on a machine of this kind."""
        if build is not None:
            unpack(build, self._evaluator.sessions.pool.builds_of(candidate.sha256))
        return self._pool.submit(task, candidate, measurement, task.id).result()

    def check(self, task: Task, candidate: Candidate) -> tuple[Evaluation, bytes | None]:
        """Return the verdict on a candidate that is not timed, and its build if it is worth timing."""
        found = self._pool.submit(task, candidate, CHECK, task.id).result()
        if not found.only_checked:
            return found, None
        return found, packed(self._evaluator.sessions.pool.builds_of(candidate.sha256))

    def work(self, task: Task) -> Work:
        return self._pool.work(task)

    def profile(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, known: str | None, closely: bool
    ) -> str | None:
        return self._started.profile(task, candidate, evaluation, known, closely)

    def fault(self) -> str | None:
        """Say why the device no longer works; None while it does."""
        return self._evaluator.fault()

    def close(self) -> None:
        """End all that is under way, and the evaluator."""
        self._pool.abort()
        self._stack.close()


def packed(folder: Path) -> bytes | None:
    """Return the files of a build; None where they are too large to send, or there are none."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    if not sizes or sum(sizes) > _MOST_BYTES:
        return None
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        archive.add(folder, ".")
    return written.getvalue()


def unpack(build: bytes, folder: Path) -> None:
    """Write the files of a build into the empty folder of a candidate; do nothing if it is not empty.

    A candidate wrote them: what leads out of the folder is left out.
    """
    if any(folder.iterdir()):
        return
    owner = folder.stat().st_uid
    with tarfile.open(fileobj=io.BytesIO(build)) as archive, contextlib.suppress(tarfile.FilterError):
        archive.extractall(folder, filter="data")
    for path in (folder, *folder.rglob("*")):
        if path.lstat().st_uid != owner:
            os.chown(path, owner, owner, follow_symlinks=False)
