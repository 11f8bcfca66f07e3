"""Tasks of any size for the parts of a model, whose step is run at further sizes.

A part's input of [8, 128, 64] in a step with batch=8 and length=128, and of [17, 19, 64] with 17 and 19, is
[batch, length, 64]. An axis with the length of none of these names, batch * length say, is one of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelwright.agent.whole_model.losses import LossOfLinear, at, losses_of
from kernelwright.agent.whole_model.marks import StepCalls
from kernelwright.agent.whole_model.model_name import lengths
from kernelwright.agent.whole_model.places import CallSite
from kernelwright.agent.whole_model.step import ModelStep
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.free_sizes.size import Terms
from kernelwright.kernelbench.free_sizes.unify import Grid, value_of
from kernelwright.kernelbench.modules.tensor_code import input_like
from kernelwright.kernelbench.modules.tracing import TracedCall, trace_call
from kernelwright.kernelbench.modules.writing import (
    free_task_source,
    small_grid,
    taken_names,
    task_source,
    unused_name,
)
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.sizes import workload_text

_ROWS, _LENGTH = "rows", "size"  # names of axes whose lengths are products of others, or other functions

StepAt = Callable[[Mapping[str, int]], ModelStep]


@dataclass(frozen=True)
class _PartAxis:
    """An axis of a part's inputs. `terms`: its length, in the model's axes; `values`: that at each point."""

    name: str
    terms: Terms
    values: tuple[int, ...]
    place: tuple[int, int]  # an input by its number, and the axis of it


class OtherSizes:
    """The calls of a model's parts at other sizes than those of its first step."""

    def __init__(self, step_at: StepAt, workload: Sequence[Size]) -> None:
        self._step_at, self._workload = step_at, workload
        self._first = lengths(workload[0])
        every = [lengths(size) for size in workload]
        self._names = [name for name in self._first if len({size[name] for size in every}) > 1]

    @cached_property
    def _grid(self) -> Grid:
        step = self._step_at(self._first)
        return small_grid(self._names, [*step.model.parameters(), *step.model.buffers()])

    @cached_property
    def _steps(self) -> list[StepCalls]:
        return [StepCalls.of(self._step_at({**self._first, **point})) for point in self._grid.points]

    @cached_property
    def _given(self) -> list[StepCalls]:
        """The steps at the sizes of the workload but the first."""
        return [StepCalls.of(self._step_at(lengths(size))) for size in self._workload[1:]]

    @cached_property
    def _losses(self) -> list[list[LossOfLinear]]:
        return [losses_of(self._step_at({**self._first, **point})) for point in self._grid.points]

    @cached_property
    def _given_losses(self) -> list[list[LossOfLinear]]:
        return [losses_of(self._step_at(lengths(size))) for size in self._workload[1:]]

    def source(self, place: CallSite, form: str, call: TracedCall) -> str:
        """Return the task of a call for any size, with its workload; `call`: at the model's first size.

        Raises UsageError where it is none for any size.
        """
        number = next(number for number, each in enumerate(place.calls) if each.form == form)
        calls = [self._traced(step, place, number) for step in self._steps]
        return self._source(call, calls, lambda: [self._traced(step, place, number) for step in self._given])

    def source_of_loss(self, loss: LossOfLinear, call: TracedCall) -> str:
        """Return the same of a loss of a linear layer's output."""
        calls = [at(losses, loss.path).traced() for losses in self._losses]
        return self._source(
            call, calls, lambda: [at(losses, loss.path).traced() for losses in self._given_losses]
        )

    def _source(
        self, call: TracedCall, calls: Sequence[TracedCall], given: Callable[[], Sequence[TracedCall]]
    ) -> str:
        """Return the task of a call, with those on the grid, and `given` those at the workload's sizes."""
        if any(len(each.inputs) != len(call.inputs) for each in calls):
            raise _not_any_size(call, "it has another number of tensors at other sizes")
        axes = self._axes(call, calls)
        if not axes:
            return task_source(call)
        grid, points = self._grid_of(axes)
        sizes = [self._size(size, axes) for size in self._workload]
        base = list(call.inputs.values())

        def example(point: Mapping[str, int]) -> tuple[TracedCall, list[str]]:
            there = call if point == lengths(sizes[0]) else calls[points[tuple(point.values())]]
            inputs = there.inputs.items()
            return there, [
                input_like(own, f"the input {name}", each)
                for own, (name, each) in zip(base, inputs, strict=True)
            ]

        places = {axis.name: axis.place for axis in axes}
        source = free_task_source(example, lengths(sizes[0]), places, grid, given())
        workload = _merged(sizes)
        return source if len(workload) == 1 else f"{source}\n\n{workload_text(workload)}\n"

    def _traced(self, step: StepCalls, place: CallSite, number: int) -> TracedCall:
        _, example = step.call(place.path, number)
        return trace_call(place.called, example.args, example.kwargs)

    def _axes(self, call: TracedCall, calls: Sequence[TracedCall]) -> list[_PartAxis]:
        """Return the axes of a call's inputs that differ between sizes, each once."""
        found: dict[tuple[int, ...], _PartAxis] = {}
        taken = taken_names(call)
        for number, inputs in enumerate(zip(*(each.inputs.values() for each in calls), strict=True)):
            if len({tensor.dim() for tensor in inputs}) > 1:
                raise _not_any_size(call, "an input of it has other dimensions at other sizes")
            for axis, values in enumerate(zip(*(tensor.shape for tensor in inputs), strict=True)):
                if len(set(values)) == 1 or values in found:
                    continue
                terms = self._grid.fitted(values)
                if terms is None:
                    raise _not_any_size(call, "a length in it is no polynomial of the sizes")
                found[values] = _PartAxis(_name(terms, taken), terms, values, (number, axis))
        own = [axis for axis in found.values() if any(axis.terms == {(name,): 1} for name in self._names)]
        named = {name for axis in own for names in axis.terms for name in names}
        if all(set(names) <= named for axis in found.values() for names in axis.terms):
            return own
        if len(found) == 1:
            return list(found.values())
        raise _not_any_size(call, "several of its lengths are products of sizes")

    def _grid_of(self, axes: Sequence[_PartAxis]) -> tuple[Grid, dict[tuple[int, ...], int]]:
        """Return the grid in a part's own axes, and the number of a step by these axes' lengths there."""
        names = [axis.name for axis in axes]
        lists = zip(*(axis.values for axis in axes), strict=True)
        found = [dict(zip(names, values, strict=True)) for values in lists]
        corners = len(found) - len(self._grid.checks)
        points = {tuple(each.values()): place for place, each in enumerate(found)}
        return Grid(found[0], found[corners - 1], tuple(found[corners:])), points

    def _size(self, size: Size, axes: Sequence[_PartAxis]) -> Size:
        values = lengths(size)
        constants = {axis.name: str(value_of(axis.terms, values)) for axis in axes}
        return size.model_copy(update={"constants": constants})


def _not_any_size(call: TracedCall, why: str) -> UsageError:
    return UsageError(f"{call.name} is not one task for any size: {why}", "give one size")


def _name(terms: Terms, taken: set[str]) -> str:
    """Return the name of an axis, which is that of the model's if it is one."""
    (names, factor), *rest = terms.items()
    name = (names[0] if len(names) == 1 and factor == 1 else _ROWS) if not rest else _LENGTH
    name = unused_name(name, taken)
    taken.add(name)
    return name


def _merged(sizes: Sequence[Size]) -> list[Size]:
    """Return each size once, with the sum of its weights; hidden if all of these are."""
    found: dict[tuple[str, ...], Size] = {}
    for size in sizes:
        key = tuple(size.constants.values())
        if (known := found.get(key)) is not None:
            hidden, weight = known.hidden and size.hidden, known.weight + size.weight
            size = size.model_copy(update={"hidden": hidden, "weight": weight})
        found[key] = size
    return list(found.values())
