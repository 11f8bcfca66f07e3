"""Output of Nsight Compute: the counters of a chip, and a table with a row for every launch.

https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html
"""

import csv
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.profiling.catalogue import CATALOGUE, metric
from kernelwright.profiling.gpu.kernels import base_name
from kernelwright.profiling.records import Metric

# In units of the catalogue's; of what else there is the number is taken as it stands. Older versions spell
# units out.
_UNITS = {
    "%": ("1", 0.01),
    "ns": ("us", 1e-3), "nsecond": ("us", 1e-3), "us": ("us", 1.0), "usecond": ("us", 1.0),
    "ms": ("us", 1e3), "msecond": ("us", 1e3), "s": ("us", 1e6), "second": ("us", 1e6),
    "byte": ("bytes", 1.0), "Kbyte": ("bytes", 1e3), "Mbyte": ("bytes", 1e6), "Gbyte": ("bytes", 1e9),
}  # fmt: skip
_LISTED = re.compile(r'"?([a-z][a-z0-9]*__[a-z0-9_]+)')
_NUMBER = re.compile(r"-?[\d,]*\.?\d+(?:[eE][-+]?\d+)?")
_OF_THE_TOOL = "launch__"  # it counts these itself, and lists them nowhere


@dataclass(frozen=True)
class LaunchCounters:
    """One launch of a kernel. `values`: metrics of the catalogue, in its units."""

    kernel: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Wanted:
    """Metrics to ask for: ncu's name for each, and those the chip has no counter for."""

    names: Mapping[str, str]
    lacking: tuple[str, ...]

    def without(self, bases: Collection[str]) -> "Wanted":
        """Return the request without the metrics ncu cannot find, named up to the first dot."""
        gone = tuple(ours for ours, name in self.names.items() if name.partition(".")[0] in bases)
        left = {ours: name for ours, name in self.names.items() if ours not in gone}
        return Wanted(left, (*self.lacking, *gone))


def listed(text: str) -> frozenset[str]:
    """Return the counters in the output of `ncu --query-metrics`, without rollups: one starts each line."""
    return frozenset(found[1] for line in text.splitlines() if (found := _LISTED.match(line.strip())))


def wanted(ours: Sequence[str], known: frozenset[str]) -> Wanted:
    """Choose ncu's name for each metric in `ours`.

    `known`: the chip's counters; empty if they are unknown.
    """
    names: dict[str, str] = {}
    for name in ours:
        for theirs in CATALOGUE[name].names:
            if not known or theirs.startswith(_OF_THE_TOOL) or theirs.partition(".")[0] in known:
                names[name] = theirs
                break
    return Wanted(names, tuple(name for name in ours if name not in names))


def launches(text: str, asked: Wanted) -> list[LaunchCounters]:
    """Return the launches in the output of `--csv --page raw`, whose second row holds the units.

    Raises Unavailable if it has no table.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise Unavailable("ncu gave no table")
    try:
        header, *rows = csv.reader(line for line in lines[start:] if line.startswith('"'))
        kernel, units = header.index("Kernel Name"), rows.pop(0)
    except (ValueError, IndexError, csv.Error):
        raise Unavailable("ncu's table is not one with kernels and units") from None
    columns = {ours: header.index(name) for ours, name in asked.names.items() if name in header}
    found = []
    for row in rows:
        if len(row) == len(header) == len(units):
            read = {ours: _value(ours, row[at], units[at]) for ours, at in columns.items()}
            found.append(LaunchCounters(row[kernel], {ours: v for ours, v in read.items() if v is not None}))
    return found


def _value(ours: str, text: str, unit: str) -> float | None:
    """Return a cell in the catalogue's unit; None for "n/a" and for any other unit."""
    number = _NUMBER.match(text.strip())
    if number is None:
        return None
    kind, factor = _UNITS.get(unit.strip(), ("", 1.0))
    if CATALOGUE[ours].unit in ("1", "us", "bytes") and CATALOGUE[ours].unit != kind:
        return None
    value = float(number[0].replace(",", "")) * factor
    return value if math.isfinite(value) else None


def metrics_of(found: Sequence[LaunchCounters]) -> Iterator[Metric]:
    """Yield the metrics of each kernel over its launches: sums of additive ones, else means by duration."""
    by_kernel: dict[str, list[LaunchCounters]] = {}
    for launch in found:
        by_kernel.setdefault(base_name(launch.kernel), []).append(launch)
    for kernel, group in by_kernel.items():
        yield metric("profiled_launches", len(group), kernel)
        for name in dict.fromkeys(name for launch in group for name in launch.values):
            having = [launch for launch in group if name in launch.values]
            values = [launch.values[name] for launch in having]
            if not CATALOGUE[name].adds_up:
                weights = [launch.values.get("duration", 0.0) for launch in having]
                yield metric(
                    name, float(np.average(values, weights=weights if all(weights) else None)), kernel
                )
            elif len(having) == len(group):  # a part of a sum would be taken for the whole
                yield metric(name, sum(values), kernel)
