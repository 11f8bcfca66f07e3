"""Survey of a step: the time of its operators, by the module or function that called them.

Operators are timed by torch.profiler, each without those that it calls. An operator of the backward pass
counts for the part whose forward operator it belongs to, by autograd's sequence numbers. What a part keeps
for the backward pass is counted by hooks of saved tensors, each storage once, weights left out.

The profiler adds to each operator, so the shares of small ones are too large.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from kernelwright.agent.whole_model.marks import MARK, Marks
from kernelwright.agent.whole_model.places import CallSite, StepCost
from kernelwright.agent.whole_model.step import ModelStep

_STEPS = 3  # that are timed
# Operators that a library of products computes, by what their names begin with.
_PRODUCTS = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "dot", "linear", "mkldnn_linear", "conv", "_conv",
    "mkldnn_conv", "cudnn_conv", "miopen_conv", "slow_conv", "thnn_conv", "scaled_dot_product",
    "_scaled_dot_product", "_flash_attention", "_efficient_attention", "_scaled_mm", "_grouped_mm",
)  # fmt: skip


@dataclass(frozen=True)
class StepSurvey:
    """The places of a step, the model itself first. `seconds`: of a step without the profiler."""

    places: list[CallSite]
    seconds: float
    trains: bool

    @property
    def profiled_s(self) -> float:
        return self.places[0].cost.seconds


def survey(step: ModelStep, clock: Callable[[], float]) -> StepSurvey:
    """Survey a step. Raises UsageError where the model fails."""
    step.run()  # lazy initialisation
    times = []
    for _ in range(_STEPS):
        began = clock()
        step.run()
        times.append(clock() - began)
    marks = Marks(step.model)
    with marks.capturing(), _kept_by(marks):
        step.run()
    gpu = any(parameter.is_cuda for parameter in step.model.parameters())
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with marks.recording(), profile(activities=activities) as profiled:
        for _ in range(_STEPS):
            step.run()
    _attribute(list(profiled.events() or []), marks, gpu)
    return StepSurvey(marks.places(), sorted(times)[len(times) // 2], step.trains)


@contextmanager
def _kept_by(marks: Marks) -> Iterator[None]:
    """Count the bytes of tensors that are saved for the backward pass, for the place that saves them."""
    weights = {each.untyped_storage().data_ptr() for each in marks.root.called.parameters()}
    seen: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen | weights:
            seen.add(storage.data_ptr())
            marks.here.own.kept_bytes += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


def _attribute(events: list[Any], marks: Marks, gpu: bool) -> None:
    """Add each operator's own time to a place."""
    places = marks.numbered()
    own: dict[int, CallSite | None] = {}

    def place_of(event: Any) -> CallSite | None:
        """Return the place whose mark is around an event."""
        chain = []
        found = None
        while event is not None and event.id not in own:
            chain.append(event)
            if event.name in places:
                found = places[event.name]
                break
            event = event.cpu_parent
        if found is None and event is not None:
            found = own.get(event.id)
        for each in chain:
            own[each.id] = found
        return found

    latest: dict[int, Any] = {}
    counts: Counter[int] = Counter()
    for event in events:
        if event.sequence_nr >= 0 and not event.name.startswith("autograd::") and place_of(event):
            before = latest.get(event.sequence_nr)
            if before is None or event.time_range.start >= before.time_range.start:
                latest[event.sequence_nr] = event
    for event in events:
        if event.name.startswith(MARK) or event.is_async:
            continue
        seconds = (event.self_device_time_total if gpu else event.self_cpu_time_total) / 1e6 / _STEPS
        if not seconds:
            continue
        place, backward = place_of(event), False
        if place is None:
            node = event
            while node is not None and not node.name.startswith("autograd::engine::evaluate_function"):
                node = node.cpu_parent
            if node is None:
                continue
            backward = True
            forward = latest.get(node.sequence_nr)
            place = place_of(forward) if forward is not None else marks.root
        assert place is not None
        _count(place.own, event.name, seconds, backward)
        if not backward and event.name.startswith("aten::") and not _within_operator(event):
            counts[id(place)] += 1
    for place in marks.places():
        place.operators = counts[id(place)] // _STEPS


def _within_operator(event: Any) -> bool:
    return event.cpu_parent is not None and event.cpu_parent.name.startswith("aten::")


def _count(cost: StepCost, name: str, seconds: float, backward: bool) -> None:
    if backward:
        cost.backward_s += seconds
    else:
        cost.forward_s += seconds
    if name.removeprefix("aten::").startswith(_PRODUCTS):
        cost.products_s += seconds
