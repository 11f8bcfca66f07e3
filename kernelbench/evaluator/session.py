"""One task under evaluation: its oracle, its inputs in shared memory, its baselines."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator.block import Block, PrematureLaunch
from kernelwright.kernelbench.evaluator.correctness.oracle_client import OracleClient, OutputSample
from kernelwright.kernelbench.evaluator.footprint import Footprint
from kernelwright.kernelbench.evaluator.memory.budget import DeviceBudget, HostBudget, on_device, on_host
from kernelwright.kernelbench.evaluator.memory.layout import unpack_outputs
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker, WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import BASELINES, Limits, Protocol
from kernelwright.kernelbench.evaluator.refusal import CallFailed, NoDeviceMemory, Refused, printable
from kernelwright.kernelbench.records import TRAFFIC, OperatorCost, Target, Task, Verdict

COMPILER = ("torch._dynamo", "torch._inductor.compile_fx", "torch.utils.cpp_extension")
# Of torch.compile; its own CUDA graphs overwrite the last call's outputs, so they are a baseline apart.
_MODES = {
    "compile": "default",
    "max-autotune": "max-autotune",
    "cuda-graphs": "cuda-graphs",
    TRAFFIC: TRAFFIC,
}
_MODES_ON_GPU = _MODES | {"max-autotune": "max-autotune-no-cudagraphs"}
CALLS_ON_GPU = 16  # times as many: launching takes microseconds
_WORKERS = 1 + len(BASELINES)  # on a GPU at a time: the candidate and the usual baselines
_REST_S = 10.0  # for what runs on a GPU to end, and for the context of a killed process to go
_OVERHEAD_CALLS = 64


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
        self.others_parked: Callable[[], bool] = lambda: False  # sessions that can make way on a GPU
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
        self.budget = self._budget()
        self.footprint = Footprint(self.oracle, self.budget, self._running)
        self.calls, self.slots = self.budget.calls, self.budget.slots
        self.most_calls = self.budget.block  # of a block: 2N, or one
        cache_bytes = target.fingerprint.last_level_cache_bytes
        try:
            with pool.timing_lock.exclusive() if self._on_gpu else contextlib.nullcontext():
                self.oracle.share(self.budget, cache_bytes)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """True if anything can still be evaluated."""
        return self.oracle.alive

    def _running(self) -> list[Worker]:
        """Return the baselines that are up."""
        return [worker for worker in self._baselines.values() if worker is not None and worker.alive]

    def _budget(self) -> HostBudget | DeviceBudget:
        """Calls of a block and their memory; N is as many as take `Protocol.block_s`, if there is room."""
        protocol, memory = self.protocol, self.target.fingerprint.memory_bytes
        by_time = int(-(-protocol.block_s // max(self.oracle.call_s, 1e-6)))
        most = min(by_time, protocol.max_calls * (CALLS_ON_GPU if self._on_gpu else 1))
        if not self._on_gpu:
            return on_host(self.oracle.sizes, memory, most, protocol.inputs_bytes, protocol.outputs_bytes)
        # A candidate's second process runs beside the first, where that takes nothing from the blocks.
        fewer, more = (on_device(self.oracle.sizes, memory, w, most) for w in (_WORKERS, _WORKERS + 1))
        return more if more.fits and more.calls == fewer.calls else fewer

    @property
    def one_process(self) -> bool:
        """True if there is no memory for a candidate's second process beside the first."""
        return isinstance(self.budget, DeviceBudget) and self.budget.workers <= _WORKERS

    @property
    def _on_gpu(self) -> bool:
        return self.target.device != "cpu"

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
                raise (NoDeviceMemory if self._on_gpu else InfrastructureError)(
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

        Raises InfrastructureError when there is no eager one, and NoDeviceMemory where others can make way.
        """
        held = self._baselines.get(mode)
        if held is not None and not held.alive:  # killed between two evaluations
            self._close_baseline(mode)
        if mode not in self._baselines:
            try:
                self._baselines[mode] = self._start_baseline(mode)
            except (WorkerDied, WorkerTimeout, NoDeviceMemory) as error:
                if isinstance(error, NoDeviceMemory) and (mode == "eager" or self.others_parked()):
                    raise
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
            worker.request({"do": "prepare", "room_bytes": self.budget.room_bytes(calls)}, self.call_limit_s)
            worker.freeze()
            if self._timed_on_gpu:
                self.synchronize(worker)
        except WorkerDied as error:
            raise CallFailed(error.verdict, str(error)) from None
        except WorkerTimeout as error:
            raise CallFailed(Verdict.runtime_error, str(error)) from None

    def overhead_s(self) -> tuple[float, float]:
        """Return the seconds that a worker's loop adds to a call, and those it takes the host to launch one.

        Measured in the eager baseline's process, which is trusted, by its own clock: as a call of nothing,
        and as a call of eager before which a GPU is idle (zero on a CPU).

        Raises CallFailed.
        """
        worker = self.eager()
        try:
            worker.thaw()
            answer = worker.ask({"do": "overhead", "calls": _OVERHEAD_CALLS}, self.call_limit_s)
            worker.freeze()
        except (WorkerDied, WorkerTimeout) as error:
            raise CallFailed(Verdict.runtime_error, str(error)) from None
        return float(answer["seconds"]), float(answer["launch_s"])

    def operators(self) -> tuple[OperatorCost, ...]:
        """Return the costs of the reference's operators, as the eager baseline runs them.

        Empty where it cannot run them so: that is no reason to lose a verdict.
        """
        worker = self.eager()
        try:
            self.give_input(worker)
            worker.thaw()
            answer = worker.ask({"do": "operators"}, 8 * self.call_limit_s)
            worker.freeze()
            return tuple(OperatorCost.model_validate(cost) for cost in answer["operators"])
        except (WorkerDied, WorkerTimeout):
            self.end_eager()
            return ()

    def run(
        self,
        worker: Worker,
        slots: Sequence[int],
        seeds: Sequence[int | None],
        strict: bool = False,
        flush: bool = True,
        whole: Collection[int] | None = None,
        part: OutputSample | None = None,
    ) -> Block:
        """Run one block of calls on the referee's clock; the worker is stopped before and after.

        A block ends when the worker is stopped, so that whatever it has put off counts, and what a signal
        does not interrupt. While it is timed on a GPU it ends instead when the device is idle.

        Without `flush`, caches are left as they are. `whole`: the calls whose outputs will be compared, None
        for all; `part`: what else will be.

        A worker whose outputs lie elsewhere is lent memory for copies, and runs the block again, unless it is
        `strict`: it has seen the inputs.

        Raises CallFailed with runtime_error, timeout, wrong_output or cheating, and if it is `strict`
        PrematureLaunch where something ran on a GPU before the worker was asked.
        """
        limit = self.call_limit_s * min(max(1, len(slots)), 4)
        if not worker.has_run:
            limit += self.limits.load_s  # to compile, tune or load what it has compiled before
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
        worker.has_run = True
        self.kernel_s += seconds
        if answer[:2] == b"FN" and not strict and self._lend(worker):
            return self.run(worker, slots, seeds, strict, flush, whole, part)
        if answer[:1] != b"D":
            verdict = Verdict.wrong_output if answer[1:2] == b"O" else Verdict.runtime_error
            raise CallFailed(verdict, answer[2:].decode(errors="replace"), memory=answer[1:2] in (b"M", b"N"))
        try:
            outputs, device_s = unpack_outputs(answer[1:])
        except ValueError as error:
            raise CallFailed(Verdict.cheating, f"the worker's answer was tampered with: {error}") from None
        if len(outputs) != len(slots):
            raise CallFailed(Verdict.cheating, f"{len(outputs)} calls answered, not {len(slots)}")
        try:
            # The device's clock is read by the worker: it only corroborates, and the slower one counts.
            seconds = max(seconds, device_s) if device_s < limit else seconds
            chosen = outputs if whole is None else [outputs[call] for call in whole]
            parts = part.of(outputs) if part is not None else []
            memory.hold(worker, outputs, [output for call in chosen for output in call] + parts)
            return Block(seconds, waited_s, outputs, device_s=device_s)
        except Refused as refusal:
            raise CallFailed(refusal.verdict, refusal.reason) from None

    def _lend(self, worker: Worker) -> bool:
        """Lend a worker memory for outputs that lie elsewhere, if it has none yet. Raises CallFailed."""
        try:
            return self.oracle.memory.lend(worker, self.call_limit_s)
        except (WorkerDied, WorkerTimeout) as error:
            raise CallFailed(Verdict.runtime_error, str(error)) from None
        except NoDeviceMemory:
            reason = "its outputs lie elsewhere, and there is no memory for copies; let torch allocate them"
            raise CallFailed(Verdict.runtime_error, reason) from None

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
            f"another process's kernels are running on {self.target.device}",
            "end that process (`nvidia-smi` lists it), or use another device",
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
