"""Parts of a model that kernels may make faster: modules and functions, largest first."""

import json
import math
import operator
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from kernelwright.agent.whole_model.losses import LossOfLinear, place_at
from kernelwright.agent.whole_model.other_sizes import OtherSizes
from kernelwright.agent.whole_model.places import CallExample, CallSite, StepCost
from kernelwright.agent.whole_model.survey import StepSurvey
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.tracing import TracedCall, trace_call
from kernelwright.kernelbench.modules.writing import task_source

# All chosen by hand.
_LEAST_SHARE = 0.005  # of the step's time, in all operators but products
_LEAST_POSSIBLE = 1.1  # speedup of a part whose every operator but products took no time
_IN_SMALLER = 0.7  # of that time of a part, above which smaller parts within are taken
_CONSTANTS = (bool, int, float, str, type(None))
_OPERATORS_A_CALL = 6  # of ATen for a call of torch, at most, views and copies included


@dataclass
class ModelPart:
    """A kind of call: of modules of one class and setting, or of a function, with arguments of one form."""

    kind: str
    form: str
    example: CallExample | None = None
    places: list[CallSite] = field(default_factory=list)
    calls: int = 0
    cost: StepCost = field(default_factory=StepCost)
    operators: float = 0.0  # calls of torch's operators, in all calls
    looked_at: bool = False
    torch_calls: int = 0  # of one traced call
    source: str = ""  # of its task; "" without one
    reason: str = ""  # why there is none
    one_size: str = ""  # why it has the first size alone, of several
    loss: LossOfLinear | None = None  # the function of a layer's output that is computed with it

    @property
    def is_divided(self) -> bool:
        """Return True if smaller parts within hold most of that time."""
        smaller = sum(child.cost.fusable_s for place in self.places for child in place.children)
        return smaller > _IN_SMALLER * sum(place.cost.fusable_s for place in self.places)

    @property
    def is_a_product(self) -> bool:
        """Return True for a call of a library, a linear layer's say, which has nothing to be fused with."""
        return self.torch_calls == 1 and self.cost.products_s > 0

    @property
    def is_module(self) -> bool:
        return isinstance(self.places[0].called, nn.Module)

    @property
    def reads_a_sum(self) -> bool:
        """Return True if a call of a module has a sum as its first input that autograd has recorded."""
        return self.is_module and self.example is not None and any(self.example.of_sums)

    @property
    def constants(self) -> dict[str, Any]:
        """Numbers, texts and None among the arguments of a function, by name."""
        if self.loss is not None:
            return self.loss.constants
        if self.is_module or self.example is None:
            return {}
        code = self.places[0].called.__code__
        names = code.co_varnames[: code.co_argcount]
        given = {**dict(zip(names, self.example.args, strict=False)), **self.example.kwargs}
        found = {name: value for name, value in given.items() if isinstance(value, _CONSTANTS)}
        return {n: v for n, v in found.items() if not isinstance(v, float) or math.isfinite(v)}

    @property
    def name(self) -> str:
        return type(self.loss.module).__name__ if self.loss is not None else self.kind.rpartition(".")[2]


def parts_of(
    survey: StepSurvey,
    most_calls: int,
    others: OtherSizes | None = None,
    losses: Sequence[LossOfLinear] = (),
) -> list[ModelPart]:
    """Return the parts of a step that make few calls of torch, by the time that fusing could save at most.

    The `losses` are parts, too: what fusing them with a product saves is memory.

    Their tasks are for any size where `others` has the step at other sizes and they can be.

    The largest such parts are taken, unless smaller ones within hold most of that time: kernels for these
    serve more models. What cannot be a task is listed with the reason, and what is within it looked at.
    """
    kinds = _kinds(survey)
    least = _LEAST_SHARE * survey.profiled_s
    found: dict[tuple[str, str], ModelPart] = {}

    def look(place: CallSite) -> None:
        here = [kinds[key] for key in dict.fromkeys((place.kind, call.form) for call in place.calls)]
        here = [part for part in here if part.cost.fusable_s >= least]
        whole = [part for part in here if not part.is_divided]
        for part in whole:
            if not part.looked_at:
                _make_task(part, most_calls, others, survey.trains)
            if part.source or part.reason:
                found[part.kind, part.form] = part
        if here and not (whole and all(part.source for part in whole)):
            for child in place.children:
                look(child)

    look(survey.places[0])
    worth = [part for part in found.values() if not part.is_a_product]
    of_losses = {loss.path: _part_of_loss(loss, survey, others) for loss in losses}
    return sorted([*worth, *of_losses.values()], key=lambda part: -part.cost.fusable_s)


def _part_of_loss(loss: LossOfLinear, survey: StepSurvey, others: OtherSizes | None) -> ModelPart:
    layer, within = (place_at(survey.places, path) for path in (loss.path, loss.within))
    part = ModelPart(layer.kind, layer.calls[0].form, places=[layer], calls=1, loss=loss)
    for place in (layer, within):
        part.cost.add(place.own)
    try:
        traced = loss.traced()
        part.torch_calls = _calls_in(traced)
        part.source = task_source(traced)
        if others is not None:
            try:
                part.source = others.source_of_loss(loss, traced)
            except UsageError as error:
                part.one_size = error.message
    except UsageError as error:
        part.reason = error.message
    return part


def _kinds(survey: StepSurvey) -> dict[tuple[str, str], ModelPart]:
    """Return the calls of a step by kind and form; a place called in several forms counts for each."""
    kinds: dict[tuple[str, str], ModelPart] = {}
    for place in survey.places:
        for form, count in Counter(call.form for call in place.calls).items():
            key = place.kind, form
            if key not in kinds:
                kinds[key] = ModelPart(place.kind, form)
            part = kinds[key]
            if part.example is None:
                part.example = next((c for c in place.calls if c.form == form and c.is_kept), None)
            part.places.append(place)
            part.calls += count
            part.cost.add(place.cost, count / len(place.calls))
            part.operators += place.all_operators * count / len(place.calls)
    return kinds


def _make_task(part: ModelPart, most_calls: int, others: OtherSizes | None, trains: bool) -> None:
    """Trace the part and write its task, unless it makes more calls of torch."""
    part.looked_at = True
    if part.operators / part.calls > _OPERATORS_A_CALL * most_calls:
        return
    assert part.example is not None
    if not part.is_module and not _is_replaceable(part.kind):
        part.reason = "it is no attribute of a module, where another could take its place"
        return
    try:
        traced = trace_call(part.places[0].called, part.example.args, part.example.kwargs)
        part.torch_calls = _calls_in(traced)
        if part.cost.seconds < _LEAST_POSSIBLE * part.cost.products_s:
            most = part.cost.seconds / part.cost.products_s
            part.reason = f"nearly all of it is products: fusing makes it {most:.2f} times as fast at most"
        elif 0 < part.torch_calls <= most_calls:  # none: it takes a slice, say
            part.source = _source(part, traced, others) + (_undifferentiated(part, traced) if trains else "")
    except UsageError as error:
        part.reason = error.message


def _source(part: ModelPart, traced: TracedCall, others: OtherSizes | None) -> str:
    """Return the part's task, for any size if it can be."""
    if others is not None:
        try:
            return others.source(part.places[0], part.form, traced)
        except UsageError as error:
            part.one_size = error.message
    return task_source(traced)


def _undifferentiated(part: ModelPart, traced: TracedCall) -> str:
    """Return the line of a task file that names inputs of which the step wants no gradient; "" for none."""
    assert part.example is not None
    pairs = zip(traced.inputs.items(), part.example.differentiated, strict=True)
    names = [n for (n, tensor), wanted in pairs if tensor.is_floating_point() and not wanted]
    return f"\n\nwithout_gradient = {json.dumps(names)}\n" if names else ""


def _is_replaceable(function: str) -> bool:
    """Return True if a module has a function of this name."""
    module, _, name = function.rpartition(".")
    return callable(getattr(sys.modules.get(module), name, None))


def _calls_in(traced: TracedCall) -> int:
    """Return the number of torch calls, without those that take an element of a tuple or an attribute."""
    calls = [node for node in traced.graph.nodes if node.op.startswith("call")]
    return sum(node.target not in (operator.getitem, getattr) for node in calls)
