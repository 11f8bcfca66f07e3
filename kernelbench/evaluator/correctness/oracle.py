"""The oracle: runs the reference out of the candidate's reach.

It draws inputs from the referee's secret seeds into the shared slots, computes what the outputs must be
in float64 and how far an honest result may lie from that, and compares what the referee read from a
stopped candidate.
"""

import io
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernelwright.kernelbench.evaluator.correctness import families
from kernelwright.kernelbench.evaluator.correctness.audit import audit
from kernelwright.kernelbench.evaluator.correctness.comparison import compare
from kernelwright.kernelbench.evaluator.correctness.constants import (
    Constants,
    constant_inputs,
    defined,
    is_plain,
    not_finite,
    partly_constant,
)
from kernelwright.kernelbench.evaluator.correctness.expected_call import ExpectedCall, OutputTraits
from kernelwright.kernelbench.evaluator.correctness.mutations import MutationTrials
from kernelwright.kernelbench.evaluator.correctness.row_errors import columns_differ
from kernelwright.kernelbench.evaluator.correctness.tolerance import Tolerance
from kernelwright.kernelbench.evaluator.memory import native
from kernelwright.kernelbench.evaluator.memory.cuda import MemoryExporter
from kernelwright.kernelbench.evaluator.memory.layout import Arena, SlotLayout, TensorLayout, Tensors
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.reference.draws import Draws
from kernelwright.kernelbench.evaluator.reference.float64 import is_eight_bit_float
from kernelwright.kernelbench.evaluator.reference.loading import dump, pickled, samples
from kernelwright.kernelbench.evaluator.reference.model import Reference
from kernelwright.kernelbench.evaluator.reference.rounded import BITS
from kernelwright.kernelbench.evaluator.reference.slices import SLICES
from kernelwright.kernelbench.evaluator.reference.task_format import TaskFault

_TRIAL_CALLS = 5  # to learn how long one takes
_SHORT_CALL_S = 0.02  # on a GPU, below which calls are also timed in a row; chosen by hand
_FAN_IN_PROBES = 3
_MOST_ALONE = 16  # weights that a candidate lacks, to be varied one by one


class Oracle:
    def __init__(
        self, source: str, precision: str, seed: int, vary_weights: bool, device: str = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self.precision = precision
        self.reference = Reference(source, precision, seed, vary_weights, self.device)
        tensors = self.reference.first
        given = getattr(self.reference.module, "input_domains", None)
        self.domains = list(given) if given else [families.infer_domain(t) for t in tensors]
        if len(self.domains) != len(tensors):
            raise TaskFault(
                f"names {len(self.domains)} input_domains, and get_inputs gives {len(tensors)} tensors",
                "name one domain for each",
            )
        draw = lambda number: self._tensors(seed + number)  # noqa: E731
        constant = constant_inputs(tensors, draw)
        for position in constant if not given else ():
            if is_plain(tensors[position]):
                self.domains[position] = "fixed"
        if given:  # what is named fixed stays what it is
            constant = [position for position in constant if self.domains[position] != "fixed"]
        run = lambda inputs: self._run(inputs, seed)  # noqa: E731
        numbers = [value for _, value, _ in self.reference.leaves]
        partly = {} if given else partly_constant(tensors, draw)
        self.constants = Constants(tensors, constant, self.domains, run, numbers, partly)
        self.layout = SlotLayout(tuple(TensorLayout.of(t) for t in tensors))
        self.slots: list[list[torch.Tensor]] = []
        self.expected: ExpectedCall | None = None
        self._families: dict[int, str] = {}  # slot -> what lies in it
        self._seeds: dict[int, int] = {}  # slot -> what that was drawn from
        self._mixed: dict[int, bool] = {}  # slot -> whether part of it has signs that the task does not draw
        self._family = ""  # of the inputs of what is expected
        self._verified: list[float] = []  # by output, how far the candidate's were from the reference's
        self._unlike: list[float] = []  # by output, the share that was finite where the reference's is not
        self._verifying = False
        columns = [columns_differ(output) for output in run(tensors)]
        self._sizes = [families.scale_of(t.abs() if t.is_complex() else t.float()) for t in tensors]
        self.memory: Mapping[Any, Tensors] = {}  # where outputs lie that are to be compared
        self.exporter: MemoryExporter | None = None  # on a GPU
        self._mutations: MutationTrials | None = None
        self._first = tensors
        outputs = self.reference.outputs
        kinds = [getattr(torch, output.dtype) for output in outputs]
        self.integers = not all(kind.is_floating_point for kind in kinds)
        self._indices = any(not kind.is_floating_point and kind not in families.MIDPOINTS for kind in kinds)
        self._stored = [kind for kind in kinds if kind in families.MIDPOINTS]  # in eight bits
        self.leeway = [Tolerance() for _ in outputs]  # of calls with inputs of the task's own distribution
        bits = BITS.get(precision, ()) if self.reference.products else ()
        self.traits = OutputTraits(columns, self.reference.coarse(), self.integers, bits)

    def _tensors(self, seed: int, into: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
        return self.reference.tensors(seed, into)

    def _run(self, tensors: Sequence[torch.Tensor], seed: int | None) -> list[torch.Tensor]:
        return self.reference.run(self.reference.own, tensors, seed)

    def describe(self) -> dict[str, Any]:
        return {
            "inputs": [t.to_json() for t in self.layout.tensors],
            "outputs": [t.to_json() for t in self.reference.outputs],
            "views": self.reference.views,
            "overlap": self.reference.overlap,
            "unchecked": self.reference.unchecked(),
            "weight_bytes": sum(t.numel() * t.element_size() for t in self._state().values()),
            "effects": [*self.reference.effects(), *self.constants.notes()],
            "families": ["varied"] * bool(self.constants.variations) + ["midpoints"] * bool(self._stored),
            "unvaried": self.constants.notes(),
            "needs_inputs": not self._runs([torch.zeros_like(t) for t in self._first], self.reference.seed),
            "domains": self.domains,
            "random": self.reference.random,
            "not_built": native.not_built(),
            "flops": self.reference.flops,
            "widening": 4 if self.traits.coarse else 2,
            "slices": SLICES if self.reference.batch and not self.integers else 1,
        }

    def _state(self) -> dict[str, torch.Tensor]:
        return dict(self.reference.model.state_dict())

    def called(self) -> dict[str, Any]:
        """Return the "seconds" that a call takes, and on a GPU the most memory that it has, in "live_bytes".

        To be asked once, when nothing else runs.
        """
        tensors, self._first, self.reference.first = self._first, [], []
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if on_gpu else 0

        def seconds_of(calls: int) -> float:
            started = time.perf_counter()
            for _ in range(calls):
                self._run(tensors, None)
            if on_gpu:
                torch.cuda.synchronize(self.device)
            return time.perf_counter() - started

        times: list[float] = []
        while len(times) < _TRIAL_CALLS and sum(times) <= 1.0:
            times.append(seconds_of(1))
        live_bytes = torch.cuda.max_memory_allocated() - before if on_gpu else 0
        seconds = min(times)
        if on_gpu and seconds < _SHORT_CALL_S:  # of which waiting for the device may be most
            seconds = min(seconds, (seconds_of(1 + _TRIAL_CALLS) - seconds) / _TRIAL_CALLS)
        return {"seconds": max(seconds, 0.0), "live_bytes": live_bytes}

    def setup(self) -> bytes:
        """Return bytes to build the same model from: init arguments, weights, the structure of inputs.

        After these follows what the constructor drew, which only some need.
        """
        reference = self.reference
        self.reference.own.state.restore()
        buffer = io.BytesIO()
        dump(
            {
                "init": pickled(reference.init),
                "state": {name: value.cpu() for name, value in self._state().items()},
                "weights": reference.weights,
                "samples": samples(reference.drawn),
                "leaves": reference.leaves,
                "spec": reference.spec,
                "seed": reference.seed,
                "precision": self.precision,
                "mutated": reference.mutated,
                "kept": reference.kept,
                "refilled": reference.refilled,
            },
            buffer,
        )
        dump(reference.drawn, buffer)
        return buffer.getvalue()

    def read_of(self, names: Sequence[str], seed: int, call_seed: int | None) -> str | None:
        """One of these weights that an output depends on: it changes by more than its budget allows.

        On a draw of the task's own. `attach` or `attach_device` comes before.
        """
        known = [name for name in names if name in self.reference.weights]
        if len(known) < len(names) or not names:
            return "an unknown one"
        self.fill([0], [seed], "task")
        self.expect(0, call_seed, rate=False)
        self._verifying = False

        def unread(*varied: str) -> bool:
            outputs = self.reference.varied(varied, self.slots[0], call_seed)
            error = self.judged(outputs)["error"]
            return error is not None and error <= 1.0

        if unread(*known) and (len(known) == 1 or all(map(unread, known[:_MOST_ALONE]))):
            return None
        return next((name for name in known[:_MOST_ALONE] if not unread(name)), known[0])

    def attach(self, inputs_fd: int, slots: int, readback_fd: int, readback_bytes: int) -> None:
        arena = Arena(inputs_fd, self.layout.slot_bytes * slots)
        self.slots = [self.layout.views(arena, slot) for slot in range(slots)]
        self.memory = {"readback": Arena(readback_fd, readback_bytes)}

    def attach_device(self, slots: int, cache_bytes: int) -> None:
        self.exporter = MemoryExporter(self.layout, slots, self.device, cache_bytes)
        self.slots, self.memory = self.exporter.slots, self.exporter.held

    def fill(self, slots: Sequence[int], seeds: Sequence[int], family: str) -> None:
        """Draw inputs of `family` into the slots; "perturbed" changes a little of what lies there.

        "varied" are the task's own but for inputs that are the same in every draw. Inputs on which the
        reference fails become the task's own.
        """
        self.expected = None
        for slot, seed in zip(slots, seeds, strict=True):
            self._families[slot], self._mixed[slot] = family, False
            targets = self.slots[slot]
            if family != "perturbed":
                _place(self._tensors(seed, into=targets), targets)
            self._seeds[slot] = seed
            draws = Draws(seed ^ 0x5EED, device=self.device)
            if family == "perturbed":
                kept = [target.clone() for target in targets]
                families.perturb(targets, self.domains, draws)
                if not self._runs(targets, seed):
                    _place(kept, targets)
                continue
            self._vary(targets, family, seed)
            if family == "midpoints":
                families.fill_with_midpoints(targets, self.domains, self._stored, draws)
            elif family not in ("task", "varied"):
                if family == "dominated" and not self.traits.fan_in:
                    self.traits.fan_in = self._measured_fan_in(targets, self._run(targets, seed), seed)
                fan_in = max(self.traits.fan_in, default=1.0)
                mixed = families.rewrite(targets, self.domains, family, draws, self._indices, fan_in)
                self._mixed[slot] = mixed
            if family != "task" and not self._runs(targets, seed):
                self.fill([slot], [seed], "task")

    def _runs(self, tensors: Sequence[torch.Tensor], seed: int) -> bool:
        """Return True if the reference runs on these inputs: it may need indices or invertible matrices."""
        try:
            self._run(tensors, seed)
        except TaskFault:
            return False
        return True

    def _vary(self, tensors: Sequence[torch.Tensor], family: str, seed: int) -> None:
        """Vary what is the same in every draw, as a family asks for; with one seed always alike."""
        self.constants.vary(tensors, Draws(seed ^ 0xC0DE, device=self.device), family)

    def expect(self, slot: int, seed: int | None, rate: bool) -> dict[str, Any]:
        """Compute the expected outputs of a slot.

        `usable` is False where more of them is not finite than on the task's own draws.

        With `rate`, the reference's own result is held to the budget too.
        """
        self.expected = None  # before memory is needed for what will be
        tensors = self.slots[slot]
        if not self.traits.fan_in:
            self.traits.fan_in = self._measured_fan_in(tensors, self._run(tensors, seed), seed)
        self._family, moved = self._families[slot], tensors
        if self._family == "small":
            moved = list(map(families.moved_as_drawn, tensors, self._sizes))
        self.expected = call = ExpectedCall(self.reference, self.traits, tensors, seed, moved)
        if self._family == "task":
            self.reference.check_precision(call.reference_outputs, call.exact)
            with_room = call.with_room_for_loops()
            self.leeway = [old.widened(e) for old, e in zip(self.leeway, with_room, strict=True)]
        usable = self._usable(slot, seed, call.reference_outputs)
        worst = max((compare(x, x.reference).error for x in call.budgets if rate), default=0.0)
        return {"usable": usable, "reference_error": _finite(worst)}

    def _usable(self, slot: int, seed: int | None, outputs: Sequence[torch.Tensor]) -> bool:
        """Return True if the reference is about as defined on a slot as on the task's own draw behind it."""
        family, entirely = self._families[slot], self._mixed.get(slot, False)
        if family in ("task", "perturbed") or defined(outputs, [0.0] * len(outputs), entirely):
            return True
        drawn = self._tensors(self._seeds[slot])
        self._vary(drawn, "task" if family == "varied" else family, self._seeds[slot])
        return defined(outputs, [not_finite(output) for output in self._run(drawn, seed)], entirely)

    def _measured_fan_in(
        self, tensors: Sequence[torch.Tensor], before: Sequence[torch.Tensor], seed: int | None
    ) -> list[float]:
        """Estimate the number of input elements that an element of each output depends on.

        Counted the other way round: the elements of an output that change with one of an input.
        """
        moved = [tensor.clone() for tensor in tensors]
        found = [0.0] * len(before)
        free = [t for t in moved if t.is_floating_point() or t.is_complex()]
        free = [t for t in free if not is_eight_bit_float(t.dtype) and t.numel()]
        for tensor in free:
            changed = [0] * len(before)
            for _ in range(_FAN_IN_PROBES):
                where = tuple(int(torch.randint(size, ())) for size in tensor.shape)
                kept = tensor[where].clone()
                tensor[where] += 3 * torch.linalg.vector_norm(tensor, math.inf) + 1
                try:
                    after = self._run(moved, seed)
                except TaskFault:  # an index that is out of range now
                    continue
                finally:
                    tensor[where] = kept
                for i, (old, new) in enumerate(zip(before, after, strict=True)):
                    changed[i] = max(changed[i], int((old != new).sum()))
            for i, old in enumerate(before):
                found[i] += changed[i] * tensor.numel() / max(1, old.numel())
        every = sum(t.numel() for t in tensors) + sum(p.numel() for p in self.reference.model.parameters())
        return [max(n, every / max(1, old.numel())) for n, old in zip(found, before, strict=True)]

    def compare(self, outputs: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Compare outputs, each given as what memory it lies in, offset and layout; shapes are checked."""
        return self.judged([self._view(placed) for placed in outputs], named=True)

    def judged(self, outputs: Sequence[torch.Tensor], named: bool = False) -> dict[str, Any]:
        """Compare tensors. Errors a little beyond a budget are held to one from more disturbances.

        `named`: whether to say what pattern wrong elements show.
        """
        assert self.expected is not None
        results = self.expected.compare(outputs)
        worst = max(range(len(results)), key=lambda i: results[i].error)
        detail = results[worst].detail
        if detail and len(results) > 1:
            detail = f"output {worst}: {detail}"
        few = all(result.few for result in results if result.error > 1.0)
        if (results[worst].error <= 1.0 or few) and (lower := self.expected.lower_precision(outputs)):
            detail = f"its errors are those of products with operands in {lower}"
            return {"error": None, "detail": detail, "few": False, "pattern": ""}
        if self._verifying and self._family == "task":
            for i, (output, wanted) in enumerate(zip(outputs, self.expected.budgets, strict=True)):
                distance = self.leeway[i].distance(output, wanted.reference)
                self._verified[i] = max(self._verified[i], distance)
                unlike = self.leeway[i].unlike(output, wanted.reference)
                self._unlike[i] = max(self._unlike[i], unlike)
        wrong = named and not results[worst].error <= 1.0
        pattern = self.expected.pattern(worst, outputs) if wrong else ""
        return {"error": _finite(results[worst].error), "detail": detail, "few": few, "pattern": pattern}

    def begin(self) -> None:
        """Compare outputs of a new candidate from now on, which is being verified."""
        self._verified, self._verifying = [0.0] * len(self.reference.outputs), True
        self._unlike = list(self._verified)

    def agrees(self, position: int, outputs: Sequence[Sequence[Any]]) -> bool:
        """Return True if parts of two outputs agree. See `budget.Tolerance`."""
        self._verifying = False
        a, b = map(self._view, outputs)
        verified = self._verified[position] if self._verified else math.inf
        unlike = self._unlike[position] if self._unlike else math.inf
        return not a.numel() or self.leeway[position].covers(a, b, verified, unlike)

    def _view(self, placed: Sequence[Any]) -> torch.Tensor:
        memory, offset, layout = placed
        return self.memory[memory].tensor(TensorLayout.from_json(layout), offset).to(self.device)

    def audit(self, seeds: Sequence[int]) -> list[str]:
        """Sentences on what makes this task measure nothing; see `correctness.audit`."""
        draws = []
        for seed in seeds:
            draws.append([tensor.clone() for tensor in self._tensors(seed)])
        self._vary(draws[0], "varied", seeds[0])
        written = self.reference.mutated  # memory for an output, perhaps
        constant = {i: matters or i in written for i, matters in self.constants.matter.items()}
        return audit(self.reference.model, draws, lambda inputs: self._run(inputs, 0), constant)

    def mutations(self, slot: int, seed: int | None, restart: bool) -> dict[str, Any]:
        """Mutations that stay unnoticed in this slot and in all others since the last `restart`.

        See `Mutations`. `expect` has just been called for this slot.
        """

        def run() -> list[torch.Tensor]:
            return self._run(self.slots[slot], seed)

        def error_of(outputs: list[torch.Tensor]) -> float:
            error = self.judged(outputs)["error"]
            return math.inf if error is None else float(error)

        if restart or self._mutations is None:
            self._mutations = MutationTrials(run, self.precision)
        assert self.expected is not None
        self._mutations.attempt(run, self.expected.budgets, self._families[slot], error_of)
        tried = [mutation.outcome() for mutation in self._mutations.tried]
        return {"possible": self._mutations.possible, "tried": tried}

    def needed_share(self, slot: int, probes: int) -> float:
        """Return the share of the input bytes that outputs depend on, by disturbing parts of each input.

        `probes`: the parts of each input.

        For tasks that by design read only a part (a slice, a gather), so that a fast kernel for one is
        not called implausible.
        """
        tensors = [t.clone() for t in self.slots[slot]]
        before = self._run(tensors, 0)
        needed = total = 0.0
        for tensor in tensors:
            flat = tensor.view(-1) if tensor.is_contiguous() else None
            size = tensor.numel() * tensor.element_size()
            total += size
            if flat is None or not tensor.is_floating_point() or is_eight_bit_float(tensor.dtype):
                needed += size
                continue
            for part in flat.chunk(probes):
                kept = part.clone()
                part.add_(1.0)
                after = self._run(tensors, 0)
                part.copy_(kept)
                changed = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
                needed += part.numel() * part.element_size() * changed
        return needed / total if total else 0.0


def _place(values: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copy the values where they belong; some may have been drawn there, or where another one belongs."""
    homes = {target.data_ptr() for target in targets}
    at_home = [v.data_ptr() == t.data_ptr() for v, t in zip(values, targets, strict=True)]
    values = [
        v if home or v.data_ptr() not in homes else v.clone() for v, home in zip(values, at_home, strict=True)
    ]
    for value, target, home in zip(values, targets, at_home, strict=True):
        if TensorLayout.of(value) != TensorLayout.of(target):
            raise TaskFault(
                "has a get_inputs that does not always give the same shapes, strides and dtypes",
                "make them constants",
            )
        if not home:
            target.copy_(value)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def serve(channel: Channel) -> None:
    """Run the oracle's main loop.

    A failing task answers {"error": …}; the referee raises a TaskError of it.
    """
    torch.set_grad_enabled(False)
    oracle: Oracle | None = None
    while True:
        message, fds = channel.receive_json()
        do = message.pop("do")
        try:
            if do == "load":
                oracle = Oracle(**message)
                with os.fdopen(fds[0], "wb") as file:
                    file.write(oracle.setup())
                answer: Any = oracle.describe()
            else:
                assert oracle is not None
                if do == "attach":
                    message |= {"inputs_fd": fds[0], "readback_fd": fds[1]}
                asked = oracle.exporter if message.pop("of", None) == "exporter" else oracle
                answer = getattr(asked, do)(**message)
        except TaskFault as fault:
            answer = {"error_type": "TaskFault", "error_text": str(fault)[:2000], "fix": fault.fix}
        except Exception as error:  # noqa: BLE001 - task code may raise anything
            answer = {"error_type": type(error).__name__, "error_text": str(error)[:2000]}
        lent = answer.pop("fds", []) if isinstance(answer, dict) else []
        channel.send_json({"answer": answer}, lent)
        for fd in lent:
            os.close(fd)
