"""One task under evaluation: its oracle, its inputs in shared memory, its baselines."""

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator.correctness.oracle_client import OracleClient
from kernelwright.kernelbench.evaluator.memory.layout import DEVICE_ALIGNMENT, unpack_outputs
from kernelwright.kernelbench.evaluator.processes.shared_memory import Outputs
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker, WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits, Protocol
from kernelwright.kernelbench.evaluator.refusal import CallFailed, Refused, printable
from kernelwright.kernelbench.records import TRAFFIC, Target, Task, Verdict

COMPILER = ("torch._dynamo", "torch._inductor.compile_fx", "torch.utils.cpp_extension")
# Of torch.compile; its own CUDA graphs overwrite the last call's outputs, so they are a baseline apart.
_MODES = {
    "compile": "default",
    "max-autotune": "max-autotune",
    "cuda-graphs": "cuda-graphs",
    TRAFFIC: TRAFFIC,
}
_MODES_ON_GPU = _MODES | {"max-autotune": "max-autotune-no-cudagraphs"}
_PROCESS_BYTES = 1 << 29  # of a worker, beside its outputs
_CONTEXT_BYTES = 1 << 29  # of a GPU, that a process takes for CUDA's context and its libraries' code
_SPARE_OF_GPU = 16  # of its memory, one part in so many is for what a candidate takes beyond its heap
_HEAP_BYTES = 1 << 28  # of a worker on a GPU, beside room for outputs
_CALLS_ON_GPU = 32  # times as many, which take microseconds each
_REST_S = 10.0  # for what runs on a GPU to end, and for the context of a killed process to go
# Of its memory, for the inputs, or outputs, of one worker. A worker takes 3.25 times that, the oracle twice
# and what it holds of each worker's outputs: two slots of four baselines take 46 times.
_SHARE_OF_GPU = 56
_SHARE_OF_MACHINE = 8  # of its memory, for all inputs, and as much for a worker's outputs
_OVERHEAD_CALLS = 64
_SPARE_CALLS = 4  # beside those whose outputs a block keeps: what calls need in between


@dataclass(frozen=True)
class Block:
    """Result of a block of calls: the referee's seconds and where each call's outputs lie.

    `waited_s`: what the worker's threads waited for a CPU meanwhile. Calls that came one by one, in
    `messages` of their own, leave the outputs of the last one only.
    """

    seconds: float
    waited_s: float
    outputs: Outputs
    messages: int = 1
    device_s: float = math.nan  # by the worker's own account

    def followed_by(self, other: "Block") -> "Block":
        return Block(
            self.seconds + other.seconds,
            self.waited_s + other.waited_s,
            other.outputs,
            self.messages + other.messages,
            self.device_s + other.device_s,
        )


class PrematureLaunch(Exception):  # noqa: N818 - what happened
    """Something ran on a GPU between the coming of a worker's inputs and its being asked."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker


class TaskSession:
    """Holds what all candidates of a task share. Raises TaskError when the task itself does not work."""

    def __init__(
        self,
        pool: WorkerPool,
        target: Target,
        task: Task,
        protocol: Protocol,
        limits: Limits,
        vary_weights: bool,
    ) -> None:
        self.pool, self.target, self.task = pool, target, task
        self.protocol, self.limits = protocol, limits
        self.vary_weights = vary_weights
        self.chip: str | None = None  # that host code is told of where there is no GPU; None: any
        self.unread: list[str] = []  # weights that no output depends on, so that candidates may lack them
        self.kernel_s = 0.0
        self.compile_s: dict[str, float] = {}
        self._baselines: dict[str, Worker | None] = {}
        self.failed_baselines: dict[str, str] = {}  # mode -> why
        self.same_code: dict[str, str] = {}  # mode -> the one that it is no other baseline than
        self._code: dict[str, str | None] = {}  # of those that run; None where it is not known
        self._setup_fd = os.memfd_create("setup", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # The oracle closes its copy of the setup after writing; workers read it through ours.
            self.oracle = OracleClient(pool, task, limits, vary_weights, self._setup_fd, target.device)
        except BaseException:
            os.close(self._setup_fd)
            raise
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        fcntl.fcntl(self._setup_fd, fcntl.F_ADD_SEALS, seals)  # no worker can change what the next one loads
        self.calls = self._calls_per_block()
        self.slots = self._slots_per_call * self.calls
        # Where it is full, a GPU's driver has more.
        self._heap_bytes = sum(self._room_bytes(2 * self.calls)) * 5 // 4 + _HEAP_BYTES
        aside = 2 * self.calls * sum(t.element_bytes + DEVICE_ALIGNMENT for t in self.oracle.outputs)
        cache_bytes = target.fingerprint.last_level_cache_bytes
        try:
            with pool.timing_lock.exclusive() if self._on_gpu else contextlib.nullcontext():
                self.oracle.share(self.slots, self._heap_bytes, aside, cache_bytes)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """True if anything can still be evaluated."""
        return self.oracle.alive

    def memory_bytes(self) -> int:
        """Memory of its oracle and its baselines."""
        return self.oracle.memory_bytes + self._baselines_bytes()

    def lacking_bytes(self, workers: int) -> int:
        """Memory that so many workers, baselines among them, may take beyond what its baselines have."""
        return workers * (self._heap_bytes + _PROCESS_BYTES) - self._baselines_bytes()

    def device_bytes(self) -> int:
        """Memory of the GPU that its oracle and its baselines have; 0 on the CPU."""
        if not self._on_gpu:
            return 0
        return self.oracle.device_bytes() + (1 + len(self._running())) * _CONTEXT_BYTES

    def lacking_device_bytes(self, workers: int) -> int:
        """Memory of the GPU that so many workers, baselines among them, need and that is not free.

        0 on the CPU, and where there is enough.
        """
        if not self._on_gpu:
            return 0
        more = max(0, workers - len(self._running()))
        lent = self._heap_bytes + self.oracle.inputs.slot_bytes * self.slots
        spare = self.target.fingerprint.memory_bytes // _SPARE_OF_GPU
        return max(0, more * (lent + _CONTEXT_BYTES) + spare - self.oracle.free_device_bytes())

    def _baselines_bytes(self) -> int:
        return sum(worker.memory_bytes for worker in self._running())

    def _running(self) -> list[Worker]:
        """Return the baselines that are up."""
        return [worker for worker in self._baselines.values() if worker is not None and worker.alive]

    def _calls_per_block(self) -> int:
        protocol = self.protocol
        by_time = -(-protocol.block_s // max(self.oracle.call_s, 1e-6))
        slots_bytes = self._slots_per_call * self.oracle.inputs.slot_bytes
        by_inputs = self._budget(protocol.inputs_bytes) // max(1, slots_bytes)
        by_outputs = self._budget(protocol.outputs_bytes) // max(1, 2 * self.oracle.output_bytes)
        most = protocol.max_calls * (_CALLS_ON_GPU if self._on_gpu else 1)
        return int(max(1, min(by_time, by_inputs, by_outputs, most)))

    @property
    def _slots_per_call(self) -> int:
        """Slots for a block of 2N calls, with a third more on a CPU to choose from, by the N of a block."""
        return 2 if self._on_gpu else 3

    @property
    def _on_gpu(self) -> bool:
        return self.target.device != "cpu"

    def _budget(self, nbytes: int) -> int:
        """Memory for inputs or outputs: less on a small machine, more on a GPU, where calls are short."""
        whole = self.target.fingerprint.memory_bytes
        if self._on_gpu:
            return max(nbytes, whole // _SHARE_OF_GPU)
        return min(nbytes, whole // _SHARE_OF_MACHINE)

    def _room_bytes(self, calls: int) -> list[int]:
        """Return the pieces of memory for the outputs of a block of `calls`, and some more.

        A small output that is kept splits the piece that a large temporary was in, so that the next call's
        takes new memory: there is a piece as large as the largest tensor for every call, as far as they go.
        """
        outputs = [t.element_bytes for t in self.oracle.outputs]
        budget = self._budget(self.protocol.outputs_bytes)
        most = budget // max(1, self.oracle.output_bytes)
        kept = max(calls, min(calls + _SPARE_CALLS, most))
        largest = max([*outputs, *(t.element_bytes for t in self.oracle.inputs.tensors)])
        left = max(0, budget // 2 - kept * self.oracle.output_bytes)
        return kept * outputs + min(calls, left // largest) * [largest]

    def load(
        self,
        role: str,
        source: str,
        module: str,
        cls: str,
        timeout_s: float,
        candidate: str = "",
        entry: str = "kernelwright.kernelbench.evaluator.processes.worker:serve",
    ) -> tuple[Worker, dict[str, Any]]:
        """Return a fresh worker that has loaded `source`.

        `candidate`: its sha256, if it is one's.

        `entry`: what it runs, which must understand "load".

        Raises WorkerDied or WorkerTimeout.
        """
        worker = self.pool.start(role, entry, candidate)
        return worker, self.load_into(worker, source, module, cls, timeout_s)

    def load_into(
        self, worker: Worker, source: str, module: str, cls: str, timeout_s: float
    ) -> dict[str, Any]:
        """Make a worker load `source` and stop it afterwards. Raises WorkerDied or WorkerTimeout.

        Memory is mapped first, before the source is there: what fails then is not the candidate's doing, and
        raises InfrastructureError; what it says later of memory is one of its errors.
        """
        started = self.pool.timing_lock.clock()
        fds = [self.open_setup()]
        try:
            if module == "candidate":  # by the referee: a disk that is full says nothing of the candidate
                file = worker.scratch / f"{module}.py"
                file.write_text(source, encoding="utf-8", errors="surrogatepass")
                file.chmod(0o644)  # whatever the umask: the worker may have another user id
            mapping, lent = self.oracle.memory.describe(worker)
            fds += lent
            layout = [t.to_json() for t in self.oracle.inputs.tensors]
            try:
                mapped = worker.ask({"do": "load", "layout": layout, **mapping}, timeout_s, fds)
            except WorkerDied as error:
                mapped = {"error": error}
            if not mapped.get("ok"):
                raise InfrastructureError(
                    f"no memory for a worker's inputs and weights: {printable(str(mapped.get('error')))}",
                    "reduce the sizes, or free some memory",
                )
            message = {"do": "load", "source": source, "module": module, "class": cls, "chip": self.chip}
            # A builder is alone when it compiles, and ends with what it has started.
            compilers = self.pool.compile_workers if worker.role == "builder" else 1
            answer = worker.ask({**message, "unread": self.unread, "compilers": compilers}, timeout_s)
        except BaseException:
            worker.close()
            raise
        finally:
            for fd in fds:
                os.close(fd)
        worker.freeze()
        worker.load_s = self.pool.timing_lock.clock() - started
        return answer

    def open_setup(self) -> int:
        """Return a read-only descriptor of what a process needs to be the same model as the reference."""
        return os.open(f"/proc/self/fd/{self._setup_fd}", os.O_RDONLY)

    def baseline(self, mode: str) -> Worker | None:
        """Return the reference as a stopped worker, started on first use.

        None where torch.compile cannot do it, or has generated the same code for a mode before (`same_code`).

        Raises InfrastructureError when there is no eager one.
        """
        held = self._baselines.get(mode)
        if held is not None and not held.alive:  # killed between two evaluations
            self._close_baseline(mode)
        if mode not in self._baselines:
            try:
                self._baselines[mode] = self._start_baseline(mode)
            except (WorkerDied, WorkerTimeout) as error:
                if mode == "eager":  # not remembered: the next evaluation may start one
                    raise InfrastructureError(
                        f"the eager baseline failed: {error}", "try again, or reduce the sizes"
                    ) from None
                self._baselines[mode] = None
                self.failed_baselines[mode] = str(error)
            if (twin := self._twin(mode)) is not None:
                self._close_baseline(mode)
                self._baselines[mode], self.same_code[mode] = None, twin
        return self._baselines[mode]

    def _twin(self, mode: str) -> str | None:
        """Another baseline that runs the code that was generated for this one."""
        code = self._code.get(mode)
        others = (other for other, text in self._code.items() if other != mode and text == code)
        return next(others, None) if code is not None else None

    def _start_baseline(self, mode: str) -> Worker:
        if mode not in ("eager", TRAFFIC):
            self.pool.import_first(COMPILER)
        started = self.pool.timing_lock.clock()
        worker, answer = self.load("baseline", self.task.source, "reference", "Model", self.limits.load_s)
        try:
            if answer.get("ok") and mode != "eager":
                self.give_input(worker)
                worker.thaw()
                modes = _MODES_ON_GPU if self._on_gpu else _MODES
                message = {"do": "compile", "mode": modes[mode], "compilers": self.pool.compile_workers}
                try:
                    answer = worker.ask(message, self.limits.compile_s)
                except WorkerTimeout:
                    took = f"compiling took longer than {self.limits.compile_s:g} s"
                    raise WorkerTimeout(took) from None
                if mode != TRAFFIC:
                    self.compile_s[mode] = self.pool.timing_lock.clock() - started
            if not answer.get("ok"):
                raise WorkerDied(str(answer.get("error")))
            self._code[mode] = answer.get("code")
            worker.freeze()
        except (WorkerDied, WorkerTimeout):
            self.compile_s.pop(mode, None)
            worker.close()
            raise
        return worker

    def eager(self) -> Worker:
        """Return the eager baseline. Raises InfrastructureError."""
        worker = self.baseline("eager")
        assert worker is not None
        return worker

    def end_eager(self) -> None:
        """End eager; the next eager baseline will be a new process."""
        self._close_baseline("eager")

    def drop_baseline(self, mode: str, why: str) -> None:
        """Do without a baseline that failed: eager is started afresh when it is next asked for."""
        self._close_baseline(mode)
        self.failed_baselines[mode] = why
        if mode != "eager":
            self._baselines[mode] = None

    def _close_baseline(self, mode: str) -> None:
        worker = self._baselines.pop(mode)
        self._code.pop(mode, None)
        if worker is not None:
            worker.close()

    def prepare(self, worker: Worker, calls: int) -> None:
        """Prepare a worker for a block, before its inputs exist: release old outputs, poison memory, stop it.

        `calls`: that the block may have; memory for their outputs is there when it begins. Raises CallFailed.
        """
        try:
            worker.thaw()
            worker.request({"do": "prepare", "room_bytes": self._room_bytes(calls)}, self.call_limit_s)
            worker.freeze()
            if self._timed_on_gpu:
                self.synchronize(worker)
        except WorkerDied as error:
            raise CallFailed(error.verdict, str(error)) from None
        except WorkerTimeout as error:
            raise CallFailed(Verdict.runtime_error, str(error)) from None

    def overhead_s(self) -> float:
        """Return the seconds that a worker's loop adds to a call.

        Measured as a call of nothing in the eager baseline's process, which is trusted, by its own clock.

        Raises CallFailed.
        """
        worker = self.eager()
        try:
            worker.thaw()
            answer = worker.ask({"do": "overhead", "calls": _OVERHEAD_CALLS}, self.call_limit_s)
            worker.freeze()
        except (WorkerDied, WorkerTimeout) as error:
            raise CallFailed(Verdict.runtime_error, str(error)) from None
        return float(answer["seconds"])

    def run(
        self,
        worker: Worker,
        slots: Sequence[int],
        seeds: Sequence[int | None],
        strict: bool = False,
        flush: bool = True,
    ) -> Block:
        """Run one block of calls on the referee's clock; the worker is stopped before and after.

        A block ends when the worker is stopped, so that whatever it has put off counts, and what a signal
        does not interrupt. While it is timed on a GPU it ends instead when the device is idle.

        Without `flush`, caches are left as they are.

        Raises CallFailed with runtime_error, timeout, wrong_output or cheating, and if it is `strict`
        PrematureLaunch where something ran on a GPU before the worker was asked.
        """
        limit = self.call_limit_s * min(max(1, len(slots)), 4)
        memory = self.oracle.memory
        if not memory.reveal(worker, slots, flush and self._must_flush(len(slots))) and strict:
            raise PrematureLaunch(worker)
        message = {"do": "run", "slots": list(slots), "seeds": list(seeds)}
        waited_s = -worker.waited_s()
        try:
            start = time.perf_counter()
            worker.thaw()
            answer = worker.request(message, limit)
            rests = self._timed_on_gpu and memory.is_idle()
            seconds = time.perf_counter() - start
            worker.freeze()
            if self._timed_on_gpu and not (rests and memory.is_idle()):
                self.synchronize(worker)
                seconds = time.perf_counter() - start
            elif not self._timed_on_gpu:
                seconds = time.perf_counter() - start
        except WorkerDied as error:
            raise CallFailed(error.verdict, str(error)) from None
        except WorkerTimeout:
            reason = f"{len(slots)} calls took more than {limit:g} s"
            raise CallFailed(Verdict.timeout, reason) from None
        waited_s += worker.waited_s()
        self.kernel_s += seconds
        if answer[:1] != b"D":
            verdict = Verdict.wrong_output if answer[1:2] == b"O" else Verdict.runtime_error
            raise CallFailed(verdict, answer[2:].decode(errors="replace"), memory=answer[1:2] == b"M")
        try:
            outputs, device_s = unpack_outputs(answer[1:])
        except ValueError as error:
            raise CallFailed(Verdict.cheating, f"the worker's answer was tampered with: {error}") from None
        if len(outputs) != len(slots):
            raise CallFailed(Verdict.cheating, f"{len(outputs)} calls answered, not {len(slots)}")
        try:
            # The device's clock is read by the worker: it only corroborates, and the slower one counts.
            seconds = max(seconds, device_s) if device_s < limit else seconds
            return Block(seconds, waited_s, memory.held(worker, outputs), device_s=device_s)
        except Refused as refusal:
            raise CallFailed(refusal.verdict, refusal.reason) from None

    @property
    def call_limit_s(self) -> float:
        return max(self.limits.call_s, 20 * self.oracle.call_s)

    def _must_flush(self, calls: int) -> bool:
        """Return True if inputs could still be cached: not where the block moves four times as much."""
        moved = calls * (self.oracle.inputs.slot_bytes + self.oracle.output_bytes)
        return self.protocol.caches == "cold" and moved < 4 * self.target.fingerprint.last_level_cache_bytes

    @property
    def cold(self) -> bool:
        """True if calls that are timed find their inputs in memory, not in a cache."""
        return self.protocol.caches == "cold" and self.oracle.memory.empties_caches

    @property
    def _timed_on_gpu(self) -> bool:
        return self._on_gpu and self.pool.timing_lock.closed_here

    def synchronize(self, worker: Worker, within_s: float = _REST_S) -> None:
        """Wait for what the stopped worker has launched on a GPU.

        Raises CallFailed with cheating where killing it ends that, InfrastructureError where nothing does.
        """
        if self._rests(within_s):
            return
        worker.close()
        if self._rests(_REST_S):
            raise CallFailed(Verdict.cheating, "its kernels were still running after it had answered")
        raise self.not_alone()

    def _rests(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while not self.oracle.memory.is_idle():
            if time.monotonic() > deadline:
                return False
        return True

    def not_alone(self) -> InfrastructureError:
        return InfrastructureError(
            f"something else is running on {self.target.device}", "let kernelwright have the device to itself"
        )

    def give_input(self, worker: Worker) -> None:
        """Fill slot 0 with a fresh input, for a call that nobody judges."""
        self.oracle.fill([0])
        self.oracle.memory.reveal(worker, [0], False)

    def check_inputs(self, worker: Worker, slots: Sequence[int]) -> None:
        """Raise Refused when the stopped worker has written to its inputs, which are those of `slots`."""
        try:
            wrote = self.oracle.memory.wrote_inputs(worker, slots)
        except WorkerDied as error:
            raise Refused(error.verdict, str(error)) from None
        if wrote:
            raise Refused(Verdict.wrong_output, "forward changes its inputs")

    def close(self, within_s: float = 0.0) -> None:
        """End the oracle and the baselines; `within_s`: see `Worker.close`."""
        for worker in self._baselines.values():
            if worker is not None:
                worker.close(within_s)
        self.oracle.close(within_s)
        os.close(self._setup_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
