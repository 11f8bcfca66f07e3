"""Trace of one call on a GPU: kernels, durations, launch parameters and gaps.

CUPTI's activity records, by torch's profiler; the candidate's process writes them, so they are a report. The
fields are those that Kineto writes into a Chrome trace:
https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.gpu import under_tool
from kernelwright.profiling.gpu.kernels import base_name, declared, is_own
from kernelwright.profiling.records import Metric
from kernelwright.profiling.rung import NotHere, Reading, Subject

_LIMIT_S = 60.0
_MOST_KERNELS = 32  # that are told apart, those that take longest
_MOST = 2.0**63  # of any number, so that no sum or product of some is infinite
Count = Annotated[float, Field(ge=0, lt=_MOST)]
Size = tuple[Count, Count, Count]
# Kineto writes -1, or "inf" in quotes, where it does not know the device.
Known = Annotated[float | None, BeforeValidator(lambda given: given if _is_size(given) else None)]
_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


def _is_size(given: object) -> bool:
    return isinstance(given, int | float) and 0 <= given < _MOST


def _on_gpu(given: object) -> object:
    """Keep the events that ran on the GPU; others have other fields."""
    if not isinstance(given, list):
        return given
    return [event for event in given if isinstance(event, dict) and event.get("cat") in _KINDS]


class Arguments(BaseModel):
    """Arguments of an event; a copy has none of these."""

    model_config = ConfigDict(allow_inf_nan=False)

    grid: Size = (0, 0, 0)
    block: Size = (0, 0, 0)
    registers: Known = Field(None, alias="registers per thread")
    shared_bytes: Known = Field(None, alias="shared memory")
    blocks_per_sm: Known = Field(None, alias="blocks per SM")
    occupancy: Known = Field(None, alias="est. achieved occupancy %")


class Event(BaseModel):
    """One activity on the GPU. Times in µs."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str
    kind: str = Field(alias="cat")  # of _KINDS
    start: float = Field(alias="ts", gt=-_MOST, lt=_MOST)
    duration: Count = Field(0.0, alias="dur")
    arguments: Arguments = Field(default=Arguments.model_validate({}), alias="args")


class _Trace(BaseModel):
    events: Annotated[list[Event], BeforeValidator(_on_gpu)] = Field(alias="traceEvents")


class Trace:
    """Kernels, their launches and the gaps between them, of one call."""

    name = "cupti"

    def available(self) -> str:
        if not any(Path("/dev").glob("nvidia[0-9]*")):
            raise NotHere("there is no NVIDIA device")
        return "kernels of a GPU, their launches and gaps, by torch.profiler"

    def read(self, subject: Subject) -> Reading:
        under_tool.require_kernels(subject)
        with subject.evaluator.sessions.computing():
            session = subject.evaluator.sessions.open(subject.task)
            ran = under_tool.run(session, subject.candidate, "traced", (), _LIMIT_S)
        under_tool.require_success(ran, "torch.profiler")
        found = events(ran.output)
        metrics = tuple(metrics_of(found, declared(subject.candidate.source)))
        return Reading(metrics, f"{len(found)} events on the GPU in a call, by torch.profiler")


def events(text: str) -> list[Event]:
    """Return the GPU events of a Chrome trace, by start. Raises Unavailable if there are none."""
    try:
        found = _Trace.model_validate_json(text).events
    except ValidationError as error:
        raise Unavailable(f"invalid GPU trace: {error.errors()[0]['msg']}") from None
    if not found:
        raise Unavailable("CUPTI recorded nothing on the GPU in the call")
    return sorted(found, key=lambda event: event.start)


def metrics_of(found: Sequence[Event], own: frozenset[str]) -> Iterator[Metric]:
    """Yield metrics of the whole call and of each kernel.

    `found`: events by start; `own`: functions that the candidate's file declares.
    """
    kernels = [event for event in found if event.kind == "kernel"]
    mine = [event for event in kernels if is_own(event.name, own)]
    busy, gaps = busy_and_gaps(found)
    yield metric("launches", len(kernels))
    yield metric("own_launches", len(mine))
    yield metric("gpu_time", busy)
    total = sum(event.duration for event in found)
    if total > 0:
        yield metric("own_share", sum(event.duration for event in mine) / total)
    yield metric("gpu_gaps", gaps)
    yield metric("copy_time", sum(event.duration for event in found if event.kind != "kernel"))
    by_name: dict[str, list[Event]] = {}
    for event in kernels:
        by_name.setdefault(base_name(event.name), []).append(event)
    longest = sorted(by_name.items(), key=lambda item: -sum(event.duration for event in item[1]))
    for name, group in longest[:_MOST_KERNELS]:
        yield from _of_kernel(name, group, total)


def busy_and_gaps(found: Sequence[Event]) -> tuple[float, float]:
    """Return the µs in which something ran, and the idle µs between the first start and the last end.

    `found`: events by start; concurrent ones count once.
    """
    busy = gaps = 0.0
    end = found[0].start
    for event in found:
        gaps += max(0.0, event.start - end)
        last = max(end, event.start + event.duration)
        busy += last - max(end, event.start)
        end = last
    return busy, gaps


def _of_kernel(name: str, group: Sequence[Event], total: float) -> Iterator[Metric]:
    """Yield metrics of one kernel: sizes of its longest launch, and rates averaged by time.

    `total`: µs of everything in the call.
    """
    time = sum(event.duration for event in group)
    yield metric("traced_time", time, name)
    if total > 0:
        yield metric("traced_share", time / total, name)
    yield metric("traced_launches", len(group), name)
    of = max(group, key=lambda event: event.duration).arguments
    yield metric("grid_blocks", math.prod(of.grid), name)
    yield metric("block_threads", math.prod(of.block), name)
    for ours, value in (
        ("registers", of.registers),
        ("shared_memory", of.shared_bytes),
        ("blocks_per_sm", of.blocks_per_sm),
    ):
        if value is not None:
            yield metric(ours, value, name)
    known = [(e.arguments.occupancy / 100, e.duration) for e in group if e.arguments.occupancy is not None]
    if known:
        shares, times = zip(*known, strict=True)
        mean = np.average(shares, weights=times if all(times) else None)
        yield metric("estimated_occupancy", float(mean), name)
