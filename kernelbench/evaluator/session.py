"""One task under evaluation: its oracle, its inputs in shared memory, its baselines."""

import ctypes
import json
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import xxhash

from kernelbench.errors import InfrastructureError, TaskError
from kernelbench.evaluator.layout import Arena, OutputDescriptor, SlotLayout, TensorLayout, unpack_outputs
from kernelbench.evaluator.process import Worker, WorkerDied, WorkerPool, WorkerTimeout
from kernelbench.evaluator.protocol import Limits, Protocol
from kernelbench.records import Target, Task, Verdict

_BASELINE_MODES = ("eager", "compile")


class Refused(Exception):  # noqa: N818 - the outcome, not an error
    """The candidate's evaluation ends here, with this verdict."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


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
        self._baselines: dict[str, Worker] = {}
        self._setup_fd = os.memfd_create("setup")
        self._oracle = pool.start("oracle", "kernelbench.evaluator.oracle:serve")
        # The oracle closes its copy of the setup after writing; workers read it through ours.
        described = self._ask(
            "load",
            [self._setup_fd],
            limits.load_s + 60,
            source=task.source,
            lane=str(task.precision),
            seed=secrets.randbits(48),
            vary_weights=vary_weights,
        )
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
        self._flush = ctypes.create_string_buffer(2 * target.fingerprint.last_level_cache_bytes)
        self._ask(
            "attach",
            [self._arena.fd, self._readback.fd],
            limits.load_s,
            slots=self.slots,
            readback_bytes=self._readback.size,
        )

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

    def fingerprint(self, slot: int) -> int:
        """A hash of the inputs in a slot, to see whether a call changed them."""
        size = self.inputs.slot_bytes
        with memoryview(self._arena.memory) as memory:
            return xxhash.xxh3_64_intdigest(memory[slot * size : (slot + 1) * size])

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
                answer = worker.request(message, timeout_s, [setup, self._arena.fd])
            finally:
                os.close(setup)
        except (WorkerDied, WorkerTimeout):
            worker.close()
            raise
        return worker, json.loads(answer)

    def baseline(self, mode: str) -> Worker | None:
        """The reference as a stopped worker, started on first use; None where this mode cannot be had."""
        assert mode in _BASELINE_MODES, mode
        if mode not in self._baselines:
            started = time.monotonic()
            try:
                worker, answer = self.load(
                    "baseline", self.task.source, "reference", "Model", self.limits.load_s
                )
                if not answer["ok"]:
                    raise InfrastructureError(f"the baseline does not load: {answer['error']}", "report this")
                if mode == "compile":
                    self.fill([0])
                    answer = json.loads(worker.request({"do": "compile"}, self.limits.compile_s))
                    self.compile_s = time.monotonic() - started
                    if not answer["ok"]:
                        worker.close()
                worker.freeze()
            except (WorkerDied, WorkerTimeout) as error:
                if mode == "eager":
                    raise InfrastructureError(
                        f"the eager baseline failed: {error}", "reduce the sizes"
                    ) from None
                self.compile_s = None
                worker.close()
            self._baselines[mode] = worker
        worker = self._baselines[mode]
        return worker if worker.alive else None

    def run(self, worker: Worker, slots: Sequence[int], seeds: Sequence[int | None]) -> Block:
        """One block of calls on the judge's clock; the worker is stopped before and after.

        Raises Refused with runtime_error, timeout or wrong_output.
        """
        each = max(self.limits.call_s, 20 * self.call_s)
        try:
            worker.thaw()
            worker.request(
                {"do": "prepare", "outputs": [t.to_json() for t in self.outputs]}, each
            )
            if self._must_flush(len(slots)):
                ctypes.memset(self._flush, secrets.randbits(7), len(self._flush))
            message = {"do": "run", "slots": list(slots), "seeds": list(seeds)}
            start = time.perf_counter()
            answer = worker.request(message, each * min(len(slots), 4))
            seconds = time.perf_counter() - start
            worker.freeze()
        except WorkerDied as error:
            raise Refused(Verdict.runtime_error, str(error)) from None
        except WorkerTimeout:
            raise Refused(Verdict.timeout, f"a call took more than {each:g} s") from None
        self.kernel_s += seconds
        if answer[:1] != b"D":
            text = answer[2:].decode(errors="replace")
            raise Refused(Verdict.wrong_output if answer[1:2] == b"O" else Verdict.runtime_error, text)
        try:
            outputs = unpack_outputs(answer[1:])
        except ValueError as error:
            raise Refused(Verdict.cheating, f"the worker's answer was tampered with: {error}") from None
        if len(outputs) != len(slots):
            raise Refused(Verdict.cheating, f"{len(outputs)} calls answered, not {len(slots)}")
        return Block(seconds, outputs)

    def _must_flush(self, calls: int) -> bool:
        """Whether inputs could still lie in the cache: not where the block reads four times what it holds."""
        cold = self.protocol.caches == "cold"
        return cold and calls * self.inputs.slot_bytes < 2 * len(self._flush)

    def compare(self, worker: Worker, outputs: Sequence[OutputDescriptor]) -> Comparison:
        """Read the outputs of one call from the stopped worker and have the oracle compare them.

        Raises Refused when arity, shape or dtype differ or the memory cannot be read.
        """
        if len(outputs) != len(self.outputs):
            raise Refused(Verdict.wrong_output, f"{len(outputs)} outputs, not {len(self.outputs)}")
        for position, (got, wanted) in enumerate(zip(outputs, self.outputs, strict=True)):
            for what in ("shape", "dtype"):
                a, b = getattr(got.layout, what), getattr(wanted, what)
                if a != b:
                    raise Refused(Verdict.wrong_output, f"output {position} has {what} {a}, not {b}")
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
                        worker.read(output.address, span, memory[offset : offset + span])
                    except WorkerDied as error:
                        raise Refused(Verdict.runtime_error, str(error)) from None
                placed.append([offset, output.layout.to_json()])
                offset += -(-span // 64) * 64
        return Comparison(**self._ask("compare", outputs=placed))

    def close(self) -> None:
        self._oracle.close()
        for worker in self._baselines.values():
            worker.close()
        for arena in (self._arena, self._readback):
            arena.close()
        os.close(self._setup_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
