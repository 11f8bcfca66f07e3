"""Metrics of the cost model, for a call whose kernels were built for a chip."""

from collections.abc import Iterator, Sequence

from kernelwright.kernelbench.chips.cards import card_of
from kernelwright.kernelbench.chips.cost_model import (
    DRAM_SHARE,
    STATED_ERROR,
    LaunchPrediction,
    predicted_call,
)
from kernelwright.kernelbench.without_gpu.building import BuiltCall
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Metric


def predictions(
    call: BuiltCall, labels: Sequence[str], chip: str, moved_bytes: int
) -> tuple[tuple[Metric, ...], list[str]]:
    """Return metrics, and what is to be said of them.

    `labels`: of the call's kernels; `moved_bytes`: of the task's inputs, weights and outputs.
    """
    card = card_of(chip)
    if card is None or card.bytes_s is None:
        return (), [f"no time is predicted: no bandwidth of {chip} is stated"]
    found = predicted_call(call.kernels, call.torch_calls, card)
    by_kernel = {id(kernel): label for kernel, label in zip(call.kernels, labels, strict=True)}
    metrics = [
        each
        for launch, prediction in found.launches
        for each in _of_launch(by_kernel[id(launch)], prediction)
    ]
    said = [f"predicted for {card.name}, within a factor of {STATED_ERROR:g} where the model was checked"]
    if found.left:
        return tuple(metrics), [*said, *found.left]
    floor_us = moved_bytes / (DRAM_SHARE * card.bytes_s) * 1e6
    metrics += [
        metric("predicted_call_time", found.time_us),
        metric("predicted_bytes_time", floor_us),
        *([metric("predicted_torch_time", found.torch_us)] if call.torch_calls else []),
    ]
    return tuple(metrics), said


def _of_launch(label: str, found: LaunchPrediction) -> Iterator[Metric]:
    values = {
        "predicted_time": found.time_us,
        "predicted_waves": found.waves,
        "predicted_busy": found.busy,
        "predicted_memory": found.bounds_us["memory"],
        "predicted_latency": found.bounds_us["latency"],
        "predicted_units": max(
            us for name, us in found.bounds_us.items() if name not in ("memory", "latency")
        ),
        "predicted_in_flight": found.in_flight,
        "predicted_needed": found.needed,
        "predicted_waits": found.waits,
        "predicted_dram": found.dram_bytes,
    }
    for name, value in values.items():
        yield metric(name, value, label)
