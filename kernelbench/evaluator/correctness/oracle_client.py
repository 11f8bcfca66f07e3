"""The referee's side of the oracle: what it is asked, and what outputs of stopped workers it compares."""

import functools
import json
import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.evaluator.memory.budget import CallSizes, DeviceBudget, HostBudget
from kernelwright.kernelbench.evaluator.memory.layout import OutputDescriptor, SlotLayout, TensorLayout
from kernelwright.kernelbench.evaluator.processes.shared_memory import (
    DeviceMemory,
    HostMemory,
    Memory,
    Outputs,
)
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker, WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.protocol import Limits
from kernelwright.kernelbench.evaluator.refusal import NO_MEMORY, NoDeviceMemory, Refused
from kernelwright.kernelbench.records import ProductPrecision, Record, Task, Verdict, Work

_NO_MEMORY = ("DeviceError", "OutOfMemoryError")  # of a GPU
_SHORTCUTS_S = 900.0  # for trying all on one input
_DOUBTFUL = 2.0  # budgets by which an honest kernel may be off on few elements
_PART_BYTES = 1 << 18  # of an output that is looked at after every timed block
_log = logging.getLogger("kernelwright")


@cache
def _warn_once(text: str) -> None:
    _log.warning(text)


@dataclass(frozen=True)
class CallComparison:
    """The oracle's word on one call; `error` is in units of the budget, None where not comparable.

    `few`: whether so few elements are beyond their budgets that it may be chance. `pattern`: sentences
    on what wrong elements have in common, where that shows.
    """

    error: float | None
    detail: str
    few: bool = False
    pattern: str = ""

    @property
    def within_budget(self) -> bool:
        return self.error is not None and self.error <= 1.0

    @property
    def doubtful(self) -> bool:
        """True if so few elements are beyond their budgets, by so little, that another draw decides."""
        return self.error is not None and 1.0 < self.error <= _DOUBTFUL and self.few


@dataclass(frozen=True)
class OutputSample:
    """Part of one output of one call of a block, chosen in secret: see `OracleClient.sample`."""

    call: int
    position: int
    where: int  # any large number

    def of(self, outputs: Outputs) -> list[OutputDescriptor]:
        """Return that part; nothing where there is no such output."""
        if self.call >= len(outputs) or self.position >= len(outputs[self.call]):
            return []
        return [_part(outputs[self.call][self.position], self.where)]


class MutationRecord(Record):
    """A way to compute less, and how far it was noticed; see `mutations`."""

    operator: int
    name: str
    operand: int
    reads: str
    dim: int | None
    error: float | None  # in budgets; None where outputs could not be compared
    changes: bool
    noticed_by: str | None
    close: dict[float, bool]

    def __str__(self) -> str:
        where = "" if self.dim is None else f" along dimension {self.dim}"
        what = f"{self.name} (operator {self.operator}) reads {self.reads} of operand {self.operand}{where}"
        return what if self.error is None else f"{what}: {self.error:.2g} of the error budget"


class MutationRecords(Record):
    """Mutations that were tried on a task, of the number that is `possible`."""

    possible: int
    tried: list[MutationRecord]

    @property
    def unnoticed(self) -> list[MutationRecord]:
        """Mutations that change outputs, and that a kernel could take and be called correct."""
        return [mutation for mutation in self.tried if mutation.changes and mutation.noticed_by is None]


class OracleClient:
    """The oracle of one task. Every method raises TaskError when the task itself does not work."""

    def __init__(
        self, pool: WorkerPool, task: Task, limits: Limits, vary_weights: bool, setup_fd: int, device: str
    ) -> None:
        """Start the oracle and have it write what workers load into `setup_fd`."""
        self.task, self.limits, self.device = task, limits, device
        self._worker_device = pool.worker_device
        self.memory: Memory
        self._worker = pool.start("oracle", "kernelwright.kernelbench.evaluator.correctness.oracle:serve")
        try:
            described = self._ask(
                "load",
                [setup_fd],
                limits.load_s + 60,
                source=task.source,
                precision=str(task.precision),
                seed=secrets.randbits(48),
                vary_weights=vary_weights,
                device=self._worker_device,
            )
        except BaseException:
            self._worker.close()
            raise
        self.inputs = SlotLayout(tuple(TensorLayout.from_json(t) for t in described["inputs"]))
        self.outputs = tuple(TensorLayout.from_json(t) for t in described["outputs"])
        self.views: list[bool] = described["views"]  # outputs that are an input's or a weight's memory
        self.overlap: list[bool] = described["overlap"]  # outputs whose elements share memory
        self.unchecked: list[str] = described["unchecked"]  # of forward, that no verdict says anything of
        self.effects: list[str] = described["effects"]  # of forward, beside its outputs, in words
        self.unvaried: list[str] = described["unvaried"]  # inputs that are always the same, in words
        self.needs_inputs: bool = described["needs_inputs"]  # whether the reference fails on zeros
        self.families: list[str] = described["families"]  # of inputs, that this task has beside the others
        self.random: bool = described["random"]
        for name, why in described["not_built"].items():
            _warn_once(f"the evaluator's {name}.cpp was not built, so that verifying takes longer: {why}")
        self.flops: dict[ProductPrecision, int] = described["flops"]
        self.weight_bytes: int = described["weight_bytes"]
        self.input_bytes = sum(t.element_bytes for t in self.inputs.tensors)
        self.output_bytes = sum(t.element_bytes for t in self.outputs)
        try:
            with pool.timing_lock.exclusive():
                called = self._ask("called", timeout_s=limits.load_s + 60)
        except BaseException:
            self.close()
            raise
        self.call_s = float(called["seconds"])
        outputs = [t.element_bytes for t in self.outputs]
        self.sizes = CallSizes(
            self.inputs.slot_bytes,
            outputs,
            self.weight_bytes,
            live=max(int(called["live_bytes"]), self.output_bytes),
            largest=max([*outputs, *(t.element_bytes for t in self.inputs.tensors)]),
            widening=described["widening"],
            slices=described["slices"],
        )

    @property
    def work(self) -> Work:
        """Bytes that a call must move, and FLOPs that it must compute."""
        return Work(
            input_bytes=self.input_bytes,
            weight_bytes=self.weight_bytes,
            output_bytes=self.output_bytes,
            flops=sum(self.flops.values()),
            products=self.flops,
        )

    @property
    def alive(self) -> bool:
        """True while the oracle runs; without it nothing can be evaluated any more."""
        return self._worker.alive

    @property
    def memory_bytes(self) -> int:
        return self._worker.memory_bytes

    def device_bytes(self) -> int:
        """Memory of a GPU that the oracle has taken, for itself and for workers; 0 on the CPU."""
        return self.memory.taken_bytes() if isinstance(self.memory, DeviceMemory) else 0

    def free_device_bytes(self) -> int:
        """Memory of the GPU that nobody has taken."""
        assert isinstance(self.memory, DeviceMemory)
        return self.memory.free_bytes()

    def share(self, budget: HostBudget | DeviceBudget, cache_bytes: int) -> None:
        """Make memory for the inputs of all slots, and on a GPU for workers' tensors: see `DeviceMemory`.

        `cache_bytes`: what the L2 cache of a GPU holds.
        """
        slots = budget.slots
        if isinstance(budget, HostBudget):
            host = HostMemory(self.inputs, slots, self.output_bytes)
            self.memory = host
            fds = [host.inputs.fd, host.readback.fd]
            self._ask("attach", fds, self.limits.load_s, slots=slots, readback_bytes=host.readback.size)
            host.inputs.seal()
        else:
            self._ask("attach_device", slots=slots, cache_bytes=cache_bytes)
            ask = functools.partial(self._ask, of="exporter")
            self.memory = DeviceMemory(ask, self._worker_device, budget.heap_bytes, budget.aside_bytes, slots)

    def close(self, within_s: float = 0.0) -> None:
        """End the oracle; `within_s`: see `Worker.close`."""
        self._worker.close(within_s)
        if hasattr(self, "memory"):
            self.memory.close()

    def stop_again(self) -> None:
        """Let the oracle go on for a moment. Raises NotStopped where this machine cannot stop even that."""
        self._worker.thaw()
        self._worker.freeze()

    def _ask(self, do: str, fds: Sequence[int] = (), timeout_s: float = 300.0, **message: Any) -> Any:
        """Return the oracle's answer; descriptors that came with it are its "fds"."""
        try:
            self._worker.thaw()
            answer = json.loads(self._worker.request({"do": do, **message}, timeout_s, fds))["answer"]
            # Its OpenMP threads go on spinning for milliseconds, on the CPUs of what is timed next. A probe
            # starts none, and timed blocks wait for it: stopping 20 threads would take longer than it does.
            if do != "probe_s":
                self._worker.freeze()
        except (WorkerDied, WorkerTimeout) as error:
            if isinstance(error, WorkerDied) and error.out_of_memory and hasattr(self, "memory"):
                raise InfrastructureError(
                    f"the machine ran out of memory, for the reference of {self.task.id} had enough before",
                    "free some, or reduce the sizes with --set",
                ) from None
            raise TaskError(
                f"the reference of {self.task.id} did not survive '{do}': {error}",
                "run its Model on its get_inputs() by hand, or reduce its sizes with --set",
            ) from None
        if isinstance(answer, dict) and answer.get("error_type") in _NO_MEMORY:
            raise NoDeviceMemory(
                f"no memory on {self.device} for {self.task.id}: {answer['error_text']}",
                "reduce the sizes with --set, or end what else uses the device",
            )
        if isinstance(answer, dict) and answer.get("error_type") == "TaskFault":
            raise TaskError(f"the reference of {self.task.id} {answer['error_text']}", answer["fix"])
        if isinstance(answer, dict) and "error_type" in answer:
            raised = f"{answer['error_type']}: {answer['error_text']}"
            by_hand = "run its Model on its get_inputs() by hand and fix the task file"
            fix = "reduce its sizes with --set" if NO_MEMORY.search(raised) else by_hand
            raise TaskError(f"the reference of {self.task.id} fails: {raised}", fix)
        return answer | {"fds": self._worker.fds} if self._worker.fds else answer

    def begin(self) -> None:
        """Compare outputs of another candidate from now on, which is being verified."""
        self._ask("begin")

    def fill(self, slots: Sequence[int], family: str = "task") -> None:
        """Fresh inputs of `family`, from seeds that nobody else will ever know, into the slots."""
        seeds = [secrets.randbits(62) for _ in slots]
        self._ask("fill", slots=list(slots), seeds=seeds, family=family)

    def expect(self, slot: int, seed: int | None, rate: bool = False) -> dict[str, Any]:
        """Make the oracle compute the budgets of the outputs for a slot; see `Oracle.expect`."""
        answer = self._ask("expect", slot=slot, seed=seed, rate=rate)
        assert isinstance(answer, dict)
        return answer

    def read_of(self, weights: Sequence[str]) -> str | None:
        """Return the name of one of these weights that an output depends on, if there is one."""
        seed, call_seed = secrets.randbits(62), self.call_seeds(1)[0]
        read = self._ask("read_of", names=list(weights), seed=seed, call_seed=call_seed)
        return None if read is None else str(read)

    def needed_share(self) -> float:
        return float(self._ask("needed_share", slot=0, probes=8))

    def audit(self) -> list[str]:
        """Sentences on what makes the task measure nothing; none for a sound task."""
        answer = self._ask("audit", seeds=[secrets.randbits(62) for _ in range(3)])
        assert isinstance(answer, list)
        return [str(finding) for finding in answer]

    def mutations(self, families: Sequence[str]) -> MutationRecords:
        """Return what a kernel could leave out, and whether that is noticed on inputs of these families."""
        answer: dict[str, Any] = {}
        families = [*families, *self.families]
        for family in sorted(families, key="perturbed".__eq__):  # which changes what lies there
            self.fill([0], family)
            seed = self.call_seeds(1)[0]
            if self.expect(0, seed)["usable"]:
                answer = self._ask("mutations", slot=0, seed=seed, restart=not answer, timeout_s=_SHORTCUTS_S)
        return MutationRecords(**answer)

    def call_seeds(self, count: int) -> list[int | None]:
        """Seeds for the calls of a block: none unless the reference draws random numbers itself."""
        return [secrets.randbits(31) if self.random else None for _ in range(count)]

    def compare(self, worker: Worker, outputs: Outputs, call: int) -> CallComparison:
        """Read the outputs of one call from the stopped worker and have the oracle compare them.

        Raises Refused when arity, shape or dtype differ or the memory cannot be read.
        """
        chosen = self._checked(outputs, call)
        others = {o.address for other, each in enumerate(outputs) if other != call for o in each}
        own = [o for o, view in zip(chosen, self.views, strict=True) if o.layout.span_bytes and not view]
        self._check_place(worker, own)
        if any(o.address in others for o in own):
            raise Refused(
                Verdict.wrong_output, "calls share their output memory; return a fresh tensor from each"
            )
        return CallComparison(**self._ask("compare", outputs=self.memory.place(worker, chosen)))

    def sample(self, calls: int, but: int | None = None) -> OutputSample | None:
        """Choose a part of one output of one of these calls; None where there is none.

        Call number `but`, whose inputs may be of another family than the task's own, is not chosen.
        """
        chosen = [call for call in range(calls) if call != but]
        if not chosen:
            return None
        position = secrets.randbelow(len(self.outputs))
        return OutputSample(secrets.choice(chosen), position, secrets.randbits(62))

    def agrees(
        self, worker: Worker, outputs: Outputs, other: Worker, theirs: Outputs, sample: OutputSample
    ) -> bool:
        """Hold a sample of a worker's outputs against the same of another's.

        Cheap enough for every timed block; the tolerance is that of `budget.Tolerance`. Raises Refused as
        `compare` does.
        """
        position = sample.position
        ours = self._checked(outputs, sample.call)[position]
        self._check_place(worker, [ours] if ours.layout.span_bytes and not self.views[position] else [])
        placed = self.memory.place(worker, sample.of(outputs))
        try:
            placed += self.memory.place(other, sample.of(theirs), second=True)
        except Refused as failure:  # not the candidate's doing
            raise InfrastructureError(
                f"a baseline's output: {failure.reason}", "retry the evaluation"
            ) from None
        return bool(self._ask("agrees", position=position, outputs=placed))

    def _check_place(self, worker: Worker, outputs: Sequence[OutputDescriptor]) -> None:
        """Raise Refused where one of them is an input, or a view of one, that nobody has copied."""
        try:
            if any(self.memory.is_input(worker, output) for output in outputs):
                reason = "an output is a view of an input; return a tensor of its own"
                raise Refused(Verdict.wrong_output, reason)
        except WorkerDied as error:
            raise Refused(error.verdict, str(error)) from None

    def _checked(self, outputs: Outputs, call: int) -> Sequence[OutputDescriptor]:
        """Return the outputs of one call, which have the arity, shapes and dtypes of the reference's."""
        chosen = outputs[call]
        if len(chosen) != len(self.outputs):
            raise Refused(
                Verdict.wrong_output, f"forward gives {len(chosen)} outputs, not {len(self.outputs)}"
            )
        for position, (got, wanted) in enumerate(zip(chosen, self.outputs, strict=True)):
            if _is_none(got.layout) and not _is_none(wanted):
                reason = f"output {position} is None, not a tensor of shape {wanted.shape}"
                raise Refused(Verdict.wrong_output, reason)
            for what in ("shape", "dtype"):
                a, b = getattr(got.layout, what), getattr(wanted, what)
                if a != b:
                    hint = _reshaped(a, b) if what == "shape" else ""
                    raise Refused(Verdict.wrong_output, f"output {position} has {what} {a}, not {b}{hint}")
            if got.layout.overlaps and not self.overlap[position]:
                reason = f"output {position} has elements that share memory: write each of them"
                raise Refused(Verdict.wrong_output, reason)
        return chosen


def _reshaped(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Say how a wrong shape comes by the wanted one, where the elements are as many."""
    if [size for size in shape if size > 1] == [size for size in wanted if size > 1]:
        return ": dimensions of size 1 are missing or left over (keepdim, squeeze)"
    if sorted(shape) == sorted(wanted):
        return ": the dimensions are in another order"
    return ": as many elements; reshape it" if math.prod(shape) == math.prod(wanted) else ""


def _is_none(layout: TensorLayout) -> bool:
    """Return True if an output is None, or looks like it: see `outputs.flattened`."""
    return layout.dtype == "bool" and layout.shape == (0,)


def _part(output: OutputDescriptor, where: int) -> OutputDescriptor:
    """Return some rows of an output, from a place that `where` decides, whatever its strides."""
    layout, address = output.layout, output.address
    shape = list(layout.shape)
    for d, size in enumerate(shape[:-1] or shape):
        inner = math.prod(shape[d + 1 :]) * layout.itemsize  # bytes
        count = min(size, max(1, _PART_BYTES // max(1, inner)))
        where, start = divmod(where, size - count + 1) if size else (where, 0)
        address += start * layout.strides[d] * layout.itemsize
        shape[d] = count
        if count > 1:
            break
    return OutputDescriptor(TensorLayout(layout.dtype, tuple(shape), layout.strides), address)
