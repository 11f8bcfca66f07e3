"""Plot of the speedups that `suite` and `upstream` have published, each task with its 95% interval.

    python -m benchmarks plot

Reads cpu/suite-level1.csv, -level2 and -level3, and cpu/upstream.csv; nothing is measured. Tasks that measure
nothing, by the audit, are left out, as they are of the tables' means. Machine: any. Time: 1 second. Writes
cpu/speedups.svg.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.publishing import CPU
from kernelwright.results.store.folder import write_atomically

_TABLES = {
    "suite-level1": "level 1, operators",
    "suite-level2": "level 2, fusions",
    "suite-level3": "level 3, models",
    "upstream": "KernelBench sample",
}
_PANELS = {
    "eager": "Speedup over eager PyTorch",
    "fastest": "Speedup over the fastest of eager, torch.compile and max-autotune",
}
# In SVG user units.
_LEFT, _STEP, _GAP, _NARROWEST = 46, 4.5, 20, 122
_TOP, _HEIGHT, _BETWEEN = 66, 190, 58
_TICKS = (1, 2, 4, 8, 16, 32)
_LOW, _HIGH = 0.6, 34.0  # of the axis; what reaches beyond is drawn up to it


@dataclass(frozen=True)
class _Mark:
    title: str  # shown where the pointer rests on it
    x: float
    low: float
    median: float
    high: float


@dataclass(frozen=True)
class _Group:
    name: str
    colour: int
    left: float
    mean: float
    marks: list[_Mark]


def run() -> None:
    panels: list[dict[str, object]] = []
    widest = 0.0
    for number, (baseline, title) in enumerate(_PANELS.items()):
        top = _TOP + number * (_HEIGHT + _BETWEEN)
        groups, right = _groups(baseline, top)
        ticks = [(tick, _y(tick, top)) for tick in _TICKS]
        panels.append({"title": title, "top": top, "groups": groups, "ticks": ticks, "right": right + 8})
        widest = max(widest, right)
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = templates.get_template("plot.svg.j2").render(
        panels=panels,
        left=_LEFT,
        width=round(widest + 24),
        height=_TOP + len(panels) * (_HEIGHT + _BETWEEN) - 14,
    )
    write_atomically(CPU / "speedups.svg", drawn + "\n")


def _groups(baseline: str, top: float) -> tuple[list[_Group], float]:
    """Draw the tables side by side in the panel that begins at `top`; return where the last one ends."""
    groups, x = [], _LEFT + 6.0
    for colour, (table, name) in enumerate(_TABLES.items()):
        rows = speedups(CPU / f"{table}.csv", baseline)
        marks = []
        for n, (task, low, median, high) in enumerate(rows):
            title = f"{task}: {median:.2f} [{low:.2f}, {high:.2f}]"
            marks.append(_Mark(title, round(x + _STEP * n, 1), _y(low, top), _y(median, top), _y(high, top)))
        mean = math.exp(sum(math.log(median) for _, _, median, _ in rows) / len(rows))
        groups.append(_Group(f"{name} ({len(rows)})", colour, round(x, 1), mean, marks))
        x += max(_STEP * len(rows), _NARROWEST) + _GAP
    return groups, x - _GAP


def speedups(table: Path, baseline: str) -> list[tuple[str, float, float, float]]:
    """Task, lower bound, median and upper bound of each task that measures something, slowest first."""
    with table.open() as file:
        rows = [row for row in csv.DictReader(file) if row["measures_nothing"] == "false"]
    keys = [f"speedup_{baseline}_{key}" for key in ("low", "median", "high")]
    found = []
    for row in rows:
        low, median, high = (float(row[key]) for key in keys)
        found.append((row["task"], low, median, high))
    return sorted(found, key=lambda each: each[2])


def _y(speedup: float, top: float) -> float:
    """Return the height of a speedup in the panel that begins at `top`; the axis is logarithmic."""
    share = math.log(min(max(speedup, _LOW), _HIGH) / _LOW) / math.log(_HIGH / _LOW)
    return round(top + _HEIGHT * (1 - share), 1)
