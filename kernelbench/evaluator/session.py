"""One task under evaluation: its oracle, its inputs in shared memory, its baselines."""

import ctypes
import fcntl
import json
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from kernelbench.errors import InfrastructureError, TaskError
from kernelbench.evaluator.layout import Arena, OutputDescriptor, SlotLayout, TensorLayout, unpack_outputs
from kernelbench.evaluator.process import Worker, WorkerDied, WorkerPool, WorkerTimeout
from kernelbench.evaluator.protocol import Limits, Protocol
from kernelbench.records import Target, Task, Verdict

_PART_BYTES = 1 << 18  # of an output that is looked at after every timed block


class Refused(Exception):  # noqa: N818 - the outcome, not an error
    """The candidate's evaluation ends here, with this verdict."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


class CallFailed(Refused):
    """A worker failed in a block: the candidate, whose verdict it is, or a baseline."""


@dataclass(frozen=True)
class Block:
    """What came back from a block of calls: the judge's seconds and where each call's outputs lie."""

    seconds: float
    outputs: list[list[OutputDescriptor]]


@dataclass(frozen=True)
class Comparison:
    """The oracle's word on one call; `error` is in units of the budget, None where not comparable."""

    error: float | None
    detail: str

    @property
    def within_budget(self) -> bool:
        return self.error is not None and self.error <= 1.0


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
        self.kernel_s = 0.0
        self.compile_s: float | None = None
        self._baselines: dict[str, Worker | None] = {}
        self.failed_baselines: dict[str, str] = {}  # mode -> why
        self._setup_fd = os.memfd_create("setup", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._arenas: list[Arena] = []
        self._oracle = pool.start("oracle", "kernelbench.evaluator.oracle:serve")
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        limits, task = self.limits, self.task
        # The oracle closes its copy of the setup after writing; workers read it through ours.
        described = self._ask(
            "load",
            [self._setup_fd],
            limits.load_s + 60,
            source=task.source,
            lane=str(task.precision),
            seed=secrets.randbits(48),
            vary_weights=self.vary_weights,
        )
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        fcntl.fcntl(self._setup_fd, fcntl.F_ADD_SEALS, seals)  # no worker can change what the next one loads
        self.inputs = SlotLayout(tuple(TensorLayout.from_json(t) for t in described["inputs"]))
        self.outputs = tuple(TensorLayout.from_json(t) for t in described["outputs"])
        self.random: bool = described["random"]
        self.flops: int = described["flops"]
        self.call_s: float = described["call_s"]
        self.weight_bytes: int = described["weight_bytes"]
        self.input_bytes = sum(t.element_bytes for t in self.inputs.tensors)
        self.output_bytes = sum(t.element_bytes for t in self.outputs)
        self.calls = self._calls_per_block()
        self.slots = 3 * self.calls
        self._arena = Arena.create("inputs", self.inputs.slot_bytes * self.slots)
        self._readback = Arena.create("readback", 4 * self.output_bytes + (1 << 20))
        self._arenas += [self._arena, self._readback]
        self._flush = ctypes.create_string_buffer(2 * self.target.fingerprint.last_level_cache_bytes)
        self._ask(
            "attach",
            [self._arena.fd, self._readback.fd],
            limits.load_s,
            slots=self.slots,
            readback_bytes=self._readback.size,
        )
        self._arena.seal()

    @property
    def alive(self) -> bool:
        """Whether the oracle is there; without it nothing can be evaluated any more."""
        return self._oracle.alive

    def _calls_per_block(self) -> int:
        protocol = self.protocol
        by_time = -(-protocol.block_s // max(self.call_s, 1e-6))
        by_inputs = protocol.inputs_bytes // max(1, 3 * self.inputs.slot_bytes)
        by_outputs = protocol.outputs_bytes // max(1, 2 * self.output_bytes)
        return int(max(1, min(by_time, by_inputs, by_outputs, protocol.max_calls)))

    # -- the oracle -------------------------------------------------------------------------------

    def _ask(self, do: str, fds: Sequence[int] = (), timeout_s: float = 300.0, **message: Any) -> Any:
        try:
            answer = json.loads(self._oracle.request({"do": do, **message}, timeout_s, fds))["answer"]
        except (WorkerDied, WorkerTimeout) as error:
            raise TaskError(
                f"the reference of {self.task.id} did not survive '{do}': {error}",
                "run its Model on its get_inputs() by hand, or reduce its sizes with --set",
            ) from None
        if isinstance(answer, dict) and "error_type" in answer:
            raise TaskError(
                f"the reference of {self.task.id} fails: {answer['error_type']}: {answer['error_text']}",
                "run its Model on its get_inputs() by hand and mend the task file",
            )
        return answer

    def fill(self, slots: Sequence[int], family: str = "task") -> None:
        """Fresh inputs of `family`, from seeds that nobody else will ever know, into the slots."""
        seeds = [secrets.randbits(62) for _ in slots]
        self._ask("fill", slots=list(slots), seeds=seeds, family=family)

    def expect(self, slot: int, seed: int | None, rate: bool = False) -> dict[str, Any]:
        """Have the oracle compute what the outputs for a slot must be; see `Oracle.expect`."""
        answer = self._ask("expect", slot=slot, seed=seed, rate=rate)
        assert isinstance(answer, dict)
        return answer

    def needed_share(self) -> float:
        return float(self._ask("needed_share", slot=0, probes=8))

    def audit(self) -> list[str]:
        """What makes the task measure nothing, in words; empty for a sound task."""
        answer = self._ask("audit", seeds=[secrets.randbits(62) for _ in range(3)])
        assert isinstance(answer, list)
        return [str(finding) for finding in answer]

    def call_seeds(self, count: int) -> list[int | None]:
        """Seeds for the calls of a block: none unless the reference draws random numbers itself."""
        return [secrets.randbits(31) if self.random else None for _ in range(count)]

    # -- workers ----------------------------------------------------------------------------------

    def load(
        self, role: str, source: str, module: str, cls: str, timeout_s: float
    ) -> tuple[Worker, dict[str, Any]]:
        """A fresh worker that has loaded `source`. Raises WorkerDied or WorkerTimeout."""
        worker = self.pool.start(role, "kernelbench.evaluator.worker:serve")
        message = {
            "do": "load",
            "source": source,
            "module": module,
            "class": cls,
            "layout": [t.to_json() for t in self.inputs.tensors],
            "slots": self.slots,
        }
        try:
            setup = os.open(f"/proc/self/fd/{self._setup_fd}", os.O_RDONLY)
            try:
                answer = worker.ask(message, timeout_s, [setup, self._arena.fd])
            finally:
                os.close(setup)
        except (WorkerDied, WorkerTimeout):
            worker.close()
            raise
        worker.freeze()
        return worker, answer

    def baseline(self, mode: str) -> Worker | None:
        """The reference as a stopped worker, started on first use; None where torch.compile cannot do it.

        Raises InfrastructureError when there is no eager one.
        """
        if mode not in self._baselines:
            try:
                self._baselines[mode] = self._start_baseline(mode)
            except (WorkerDied, WorkerTimeout) as error:
                self._baselines[mode] = None
                self.failed_baselines[mode] = str(error)
        worker = self._baselines[mode]
        if mode == "eager" and worker is None:
            raise InfrastructureError(
                f"the eager baseline failed: {self.failed_baselines[mode]}", "reduce the sizes"
            )
        return worker

    def _start_baseline(self, mode: str) -> Worker:
        started = time.monotonic()
        worker, answer = self.load("baseline", self.task.source, "reference", "Model", self.limits.load_s)
        try:
            if answer.get("ok") and mode == "compile":
                self.fill([0])
                worker.thaw()
                answer = worker.ask({"do": "compile"}, self.limits.compile_s)
                self.compile_s = time.monotonic() - started
            if not answer.get("ok"):
                raise WorkerDied(str(answer.get("error")))
            worker.freeze()
        except (WorkerDied, WorkerTimeout):
            self.compile_s = None if mode == "compile" else self.compile_s
            worker.close()
            raise
        return worker

    def drop_baseline(self, mode: str, why: str) -> None:
        """Do without a baseline that failed: eager is started afresh when it is next asked for."""
        worker = self._baselines.pop(mode)
        if worker is not None:
            worker.close()
        self.failed_baselines[mode] = why
        if mode != "eager":
            self._baselines[mode] = None

    def prepare(self, worker: Worker) -> None:
        """Before a block, and before its inputs exist: let go of old outputs, poison memory, stand still.

        Raises CallFailed.
        """
        try:
            worker.thaw()
            worker.request(
                {"do": "prepare", "outputs": [t.to_json() for t in self.outputs]}, self.call_limit_s
            )
            worker.freeze()
        except (WorkerDied, WorkerTimeout) as error:
            raise CallFailed(Verdict.runtime_error, str(error)) from None

    def run(self, worker: Worker, slots: Sequence[int], seeds: Sequence[int | None]) -> Block:
        """One block of calls on the judge's clock; the worker stands still before and after.

        Raises CallFailed with runtime_error, timeout, wrong_output or cheating.
        """
        limit = self.call_limit_s * min(len(slots), 4)
        if self._must_flush(len(slots)):
            ctypes.memset(self._flush, secrets.randbits(7), len(self._flush))
        message = {"do": "run", "slots": list(slots), "seeds": list(seeds)}
        try:
            start = time.perf_counter()
            worker.thaw()
            answer = worker.request(message, limit)
            seconds = time.perf_counter() - start
            worker.freeze()
        except WorkerDied as error:
            raise CallFailed(Verdict.runtime_error, str(error)) from None
        except WorkerTimeout:
            reason = f"{len(slots)} calls took more than {limit:g} s"
            raise CallFailed(Verdict.timeout, reason) from None
        self.kernel_s += seconds
        if answer[:1] != b"D":
            verdict = Verdict.wrong_output if answer[1:2] == b"O" else Verdict.runtime_error
            raise CallFailed(verdict, answer[2:].decode(errors="replace"))
        try:
            outputs = unpack_outputs(answer[1:])
        except ValueError as error:
            raise CallFailed(Verdict.cheating, f"the worker's answer was tampered with: {error}") from None
        if len(outputs) != len(slots):
            raise CallFailed(Verdict.cheating, f"{len(outputs)} calls answered, not {len(slots)}")
        return Block(seconds, outputs)

    @property
    def call_limit_s(self) -> float:
        return max(self.limits.call_s, 20 * self.call_s)

    def _must_flush(self, calls: int) -> bool:
        """Whether inputs could still lie in the cache: not where the block reads four times what it holds."""
        cold = self.protocol.caches == "cold"
        return cold and calls * self.inputs.slot_bytes < 2 * len(self._flush)

    def check_inputs(self, worker: Worker) -> None:
        """Raises Refused when the stopped worker has written to its inputs."""
        try:
            wrote = worker.wrote_to("inputs")
        except WorkerDied as error:
            raise Refused(Verdict.runtime_error, str(error)) from None
        if wrote:
            raise Refused(Verdict.wrong_output, "forward changes its inputs")

    def resembles(self, worker: Worker, block: Block, other: Worker, theirs: Block) -> bool:
        """Hold a part of one output of one call, all chosen in secret, against another worker's.

        Cheap enough for every timed block; the tolerance is that of the call last expected.
        """
        call = secrets.randbelow(len(block.outputs))
        position = secrets.randbelow(len(self.outputs))
        ours, reference = block.outputs[call][position], theirs.outputs[call][position]
        layout, again = ours.layout, reference.layout
        if not layout.contiguous or not again.contiguous or not layout.shape:
            count, start = 1, 0  # the whole of it
        else:
            count = max(1, layout.shape[0] * _PART_BYTES // max(1, layout.span_bytes))
            start = secrets.randbelow(max(1, layout.shape[0] - count + 1))
            layout = TensorLayout(
                layout.dtype, (min(count, layout.shape[0]), *layout.shape[1:]), layout.strides
            )
            again = TensorLayout(again.dtype, layout.shape, again.strides)
        if not layout.span_bytes:
            return True
        placed: list[object] = [[position]]
        offset = 0
        with memoryview(self._readback.memory) as memory:
            for source, descriptor, part in ((worker, ours, layout), (other, reference, again)):
                step = part.strides[0] * part.itemsize * start if start else 0
                if offset + part.span_bytes > self._readback.size:
                    return True
                source.read(descriptor.address + step, memory[offset : offset + part.span_bytes])
                placed.append([offset, part.to_json()])
                offset += -(-part.span_bytes // 64) * 64
        return bool(self._ask("resembles", outputs=placed))

    def compare(self, worker: Worker, block: Block, call: int) -> Comparison:
        """Read the outputs of one call from the stopped worker and have the oracle compare them.

        Raises Refused when arity, shape or dtype differ or the memory cannot be read.
        """
        outputs = block.outputs[call]
        others = block.outputs[:call] + block.outputs[call + 1 :]
        if len(outputs) != len(self.outputs):
            raise Refused(Verdict.wrong_output, f"{len(outputs)} outputs, not {len(self.outputs)}")
        for position, (got, wanted) in enumerate(zip(outputs, self.outputs, strict=True)):
            for what in ("shape", "dtype"):
                a, b = getattr(got.layout, what), getattr(wanted, what)
                if a != b:
                    raise Refused(Verdict.wrong_output, f"output {position} has {what} {a}, not {b}")
        shared = {o.address for call in others for o in call} & {
            o.address for o in outputs if o.layout.span_bytes
        }
        if shared:
            raise Refused(
                Verdict.wrong_output, "calls share their output memory; return a fresh tensor from each"
            )
        placed, offset = [], 0
        with memoryview(self._readback.memory) as memory:
            for output in outputs:
                span = output.layout.span_bytes
                if offset + span > self._readback.size:
                    raise Refused(
                        Verdict.wrong_output, "an output is spread over far more memory than it needs"
                    )
                if span:
                    try:
                        worker.read(output.address, memory[offset : offset + span])
                    except WorkerDied as error:
                        raise Refused(Verdict.runtime_error, str(error)) from None
                placed.append([offset, output.layout.to_json()])
                offset += -(-span // 64) * 64
        return Comparison(**self._ask("compare", outputs=placed))

    def close(self) -> None:
        self._oracle.close()
        for worker in self._baselines.values():
            if worker is not None:
                worker.close()
        for arena in self._arenas:
            arena.close()
        os.close(self._setup_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
