"""Tables of a profile's metrics, each with its better direction, bound and meaning, and its numbers in words.

The terminal and the report show these tables, prompts the lines of `described`; both say what the catalogue
says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelwright.profiling.catalogue import CATALOGUE
from kernelwright.profiling.records import Finding, Metric, Profile, Provenance

_TITLES: dict[Provenance, str] = {
    "perf": "where the time goes",
    "predicted": "predicted, not measured",
    "static": "as it was built",
    "cupti": "on the GPU, in a call",
    "ncu": "counted on the GPU",
    "simulated": "simulated, not measured",
    "emulated": "emulated, not measured",
}
_LIMITS = {
    "warps_by_registers": "registers",
    "warps_by_shared_memory": "shared memory",
    "warps_by_threads": "threads, blocks",
}
_MOST_NUMBERS = 5
_COUNTED = (
    "instructions", "loops", "bit", "launches", "conflicts", "blocks", "threads", "registers", "calls",
    "accesses", "misses", "faults", "switches", "loads", "branches", "cycles", "kernels", "warps", "sectors",
)  # fmt: skip


@dataclass(frozen=True)
class MetricRow:
    name: str
    values: tuple[str, ...]  # one for each kernel of its table; one for the whole call
    better: str  # "higher", "lower" or empty
    meaning: str
    reading: str  # what a high or a low value tells, if it is told


@dataclass(frozen=True)
class MetricTable:
    """`kernels`: those with the largest share of the time first; empty for a table of the whole call."""

    title: str
    kernels: tuple[str, ...]
    rows: tuple[MetricRow, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.kernels or ("value",)


def tables(found: Profile) -> Iterator[MetricTable]:
    """Yield a table of what matters, one of the whole call, and one for each origin of kernels' metrics."""
    if (matters := _cited(found)) is not None:
        yield matters
    whole = [m for m in found.metrics if not m.kernel]
    if whole:
        yield MetricTable("the whole call", (), tuple(_row(m.name, [value(m)]) for m in whole))
    shares = {m.kernel: m.value for m in found.metrics if m.name in ("time_share", "traced_share")}
    for provenance, title in _TITLES.items():
        of_kernels = [m for m in found.metrics if m.kernel and m.provenance == provenance]
        if of_kernels:
            yield _of_kernels(title, of_kernels, shares)


def _cited(found: Profile) -> MetricTable | None:
    """Return the numbers that the findings rest on; None without any."""
    keys = dict.fromkeys((name, finding.kernel) for finding in found.findings for name in finding.cites)
    known = {(m.name, m.kernel): m for m in found.metrics}
    matter = [m for key in keys if (m := known.get(key) or known.get((key[0], ""))) is not None]
    rows = [
        MetricRow(f"{m.name} of {m.kernel}" if m.kernel else m.name, (value(m),), *_said(m.name))
        for m in matter[:_MOST_NUMBERS]
    ]
    return MetricTable("what matters", (), tuple(rows)) if rows else None


def _of_kernels(title: str, metrics: Sequence[Metric], shares: Mapping[str, float]) -> MetricTable:
    kernels = sorted(dict.fromkeys(m.kernel for m in metrics), key=lambda kernel: -shares.get(kernel, 0.0))
    values = {(m.name, m.kernel): value(m) for m in metrics}
    rows = []
    for name in dict.fromkeys(m.name for m in metrics):
        rows.append(_row(name, [values.get((name, kernel), "-") for kernel in kernels]))
        if name == "occupancy":
            limits = tuple(_limit(metrics, kernel) for kernel in kernels)
            rows.append(MetricRow("limited by", limits, "", "what limits the occupancy", ""))
    return MetricTable(title, tuple(kernels), tuple(rows))


def _limit(metrics: Sequence[Metric], kernel: str) -> str:
    warps = {_LIMITS[m.name]: m.value for m in metrics if m.kernel == kernel and m.name in _LIMITS}
    return " and ".join(word for word, number in warps.items() if number == min(warps.values())) or "-"


def _row(name: str, values: Sequence[str]) -> MetricRow:
    return MetricRow(name, tuple(values), *_said(name))


def _said(name: str) -> tuple[str, str, str]:
    """Return a metric's better direction, meaning and reading; nothing of one that no longer exists."""
    known = CATALOGUE.get(name)
    if known is None:
        return "", "", ""
    bound = f"; {known.limit}" if known.bound is not None else ""
    return known.direction.removesuffix(" is better"), f"{known.meaning}{bound}", known.reading


def finding_lines(finding: Finding) -> tuple[str, str]:
    """Return what a finding says, with the most that it could gain, and what to do about it."""
    gain = f" (at most {finding.most_gain:.2f} times as fast)" if finding.most_gain else ""
    return f"{finding.says}{gain}", finding.fix


def described(metrics: Sequence[Metric]) -> list[str]:
    """Return a line for each metric: its value for every kernel, origin, better direction and meaning.

    "dram_throughput of softmax = 0.41 (ncu; higher is better, at most 1): DRAM throughput: share of …"
    """
    by_name: dict[str, list[Metric]] = {}
    for each in metrics:
        by_name.setdefault(each.name, []).append(each)
    return [_line(name, group) for name, group in by_name.items()]


def _line(name: str, group: Sequence[Metric]) -> str:
    known, first = CATALOGUE.get(name), group[0]
    unit = f" {first.unit}" if first.unit not in ("", "1") else ""
    numbers = [f"{f'of {m.kernel} ' if m.kernel else ''}= {m.value:.6g}{unit}" for m in group]
    values = f"{name} {', '.join(numbers)}"
    if known is None:
        return f"{values} ({first.provenance})"
    judged = ", ".join(filter(None, (known.direction, known.limit)))
    words = "; ".join(filter(None, (known.meaning, known.reading)))
    return f"{values} ({'; '.join(filter(None, (first.provenance, judged)))}): {words}"


def value(m: Metric) -> str:
    """Format a value with its unit for people."""
    if m.unit == "1":
        return f"{m.value:.0%}"
    unit = "" if m.unit in _COUNTED else m.unit
    if unit == "us" and m.value >= 1e3:
        return f"{m.value / 1e3:.3g} ms"
    if m.unit in _COUNTED and m.value < 1e5:
        return f"{m.value:.0f}" if m.value >= 10 or m.value == int(m.value) else f"{m.value:.2g}"
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if m.value >= size:
            return f"{m.value / size:.3g} {prefix}{unit}".strip()
    return f"{m.value:.3g} {unit}".strip()
