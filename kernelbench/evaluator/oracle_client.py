"""The judge's side of the oracle: what it is asked, and the outputs of stopped workers that it compares."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelbench.errors import TaskError
from kernelbench.evaluator.layout import Arena, OutputDescriptor, SlotLayout, TensorLayout
from kernelbench.evaluator.process import Worker, WorkerDied, WorkerPool, WorkerTimeout
from kernelbench.evaluator.protocol import Limits
from kernelbench.evaluator.refusal import Refused
from kernelbench.records import Task, Verdict

Outputs = Sequence[Sequence[OutputDescriptor]]  # of every call of a block

_PART_BYTES = 1 << 18  # of an output that is looked at after every timed block


@dataclass(frozen=True)
class Comparison:
    """The oracle's word on one call; `error` is in units of the budget, None where not comparable."""

    error: float | None
    detail: str

    @property
    def within_budget(self) -> bool:
        return self.error is not None and self.error <= 1.0


class OracleClient:
    """The oracle of one task. Every method raises TaskError when the task itself does not work."""

    def __init__(
        self, pool: WorkerPool, task: Task, limits: Limits, vary_weights: bool, setup_fd: int
    ) -> None:
        """Start the oracle and have it write what workers load into `setup_fd`."""
        self.task, self.limits = task, limits
        self._worker = pool.start("oracle", "kernelbench.evaluator.oracle:serve")
        self._readback: Arena | None = None
        try:
            described = self._ask(
                "load",
                [setup_fd],
                limits.load_s + 60,
                source=task.source,
                lane=str(task.precision),
                seed=secrets.randbits(48),
                vary_weights=vary_weights,
            )
        except BaseException:
            self.close()
            raise
        self.inputs = SlotLayout(tuple(TensorLayout.from_json(t) for t in described["inputs"]))
        self.outputs = tuple(TensorLayout.from_json(t) for t in described["outputs"])
        self.random: bool = described["random"]
        self.flops: int = described["flops"]
        self.call_s: float = described["call_s"]
        self.weight_bytes: int = described["weight_bytes"]
        self.input_bytes = sum(t.element_bytes for t in self.inputs.tensors)
        self.output_bytes = sum(t.element_bytes for t in self.outputs)

    @property
    def alive(self) -> bool:
        """Whether the oracle is there; without it nothing can be evaluated any more."""
        return self._worker.alive

    def attach(self, arena: Arena, slots: int) -> None:
        """Give the oracle the input memory, of `slots` slots, and the memory that outputs are read into."""
        self._readback = Arena.create("readback", 4 * self.output_bytes + (1 << 20))
        fds = [arena.fd, self._readback.fd]
        self._ask("attach", fds, self.limits.load_s, slots=slots, readback_bytes=self._readback.size)

    def close(self) -> None:
        self._worker.close()
        if self._readback is not None:
            self._readback.close()

    def _ask(self, do: str, fds: Sequence[int] = (), timeout_s: float = 300.0, **message: Any) -> Any:
        try:
            answer = json.loads(self._worker.request({"do": do, **message}, timeout_s, fds))["answer"]
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

    def compare(self, worker: Worker, outputs: Outputs, call: int) -> Comparison:
        """Read the outputs of one call from the stopped worker and have the oracle compare them.

        Raises Refused when arity, shape or dtype differ or the memory cannot be read.
        """
        chosen = self._checked(outputs, call)
        others = {o.address for other, each in enumerate(outputs) if other != call for o in each}
        if any(o.address in others for o in chosen if o.layout.span_bytes):
            raise Refused(
                Verdict.wrong_output, "calls share their output memory; return a fresh tensor from each"
            )
        return Comparison(**self._ask("compare", outputs=self._read([(worker, o) for o in chosen])))

    def resembles(self, worker: Worker, outputs: Outputs, other: Worker, theirs: Outputs) -> bool:
        """Hold a part of one output of one call, all chosen in secret, against another worker's.

        Cheap enough for every timed block; the tolerance is that of the call last expected. Raises
        Refused as `compare` does.
        """
        call, position = secrets.randbelow(len(outputs)), secrets.randbelow(len(self.outputs))
        ours, reference = self._checked(outputs, call)[position], theirs[call][position]
        if ours.layout.contiguous and reference.layout.contiguous:
            where = secrets.randbits(62)
            ours, reference = _part(ours, where), _part(reference, where)
        placed = self._read([(worker, ours), (other, reference)])
        return bool(self._ask("resembles", position=position, outputs=placed))

    def _checked(self, outputs: Outputs, call: int) -> Sequence[OutputDescriptor]:
        """The outputs of one call, which have the arity, shapes and dtypes of the reference's."""
        chosen = outputs[call]
        if len(chosen) != len(self.outputs):
            raise Refused(Verdict.wrong_output, f"{len(chosen)} outputs, not {len(self.outputs)}")
        for position, (got, wanted) in enumerate(zip(chosen, self.outputs, strict=True)):
            for what in ("shape", "dtype"):
                a, b = getattr(got.layout, what), getattr(wanted, what)
                if a != b:
                    raise Refused(Verdict.wrong_output, f"output {position} has {what} {a}, not {b}")
        return chosen

    def _read(self, wanted: Sequence[tuple[Worker, OutputDescriptor]]) -> list[list[object]]:
        """Copy outputs of stopped workers to where the oracle can see them: the offset and layout of each."""
        assert self._readback is not None
        placed: list[list[object]] = []
        offset = 0
        with memoryview(self._readback.memory) as memory:
            for worker, output in wanted:
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
        return placed


def _part(output: OutputDescriptor, where: int) -> OutputDescriptor:
    """Some rows of a contiguous output, from a place that `where`, any large number, decides."""
    layout = output.layout
    columns = layout.shape[-1] if len(layout.shape) > 1 else 1
    row_bytes = columns * layout.itemsize
    if not layout.span_bytes:
        return output
    rows = layout.span_bytes // row_bytes
    count = min(rows, max(1, _PART_BYTES // row_bytes))
    start = where % (rows - count + 1)
    part = TensorLayout(layout.dtype, (count, columns), (columns, 1))
    return OutputDescriptor(part, output.address + start * row_bytes)
