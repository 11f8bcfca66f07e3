"""Console output of `kernelwright profile`."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelwright.kernelbench.evaluator.processes.answers import plain
from kernelwright.kernelbench.records import Evaluation
from kernelwright.profiling.catalogue import CATALOGUE
from kernelwright.profiling.records import Metric, Profile, Provenance
from kernelwright.profiling.roofline import in_words

_WORDS = {
    "memory": "memory: moving its data is the larger part of the floor",
    "compute": "arithmetic: its matrix products are the larger part of the floor",
    "overhead": "overhead: a call is so short that launch costs matter",
    "unknown": "unknown",
}
_TITLES: dict[Provenance, str] = {
    "perf": "where the time goes",
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
_REMARKS: dict[Provenance, tuple[str, str]] = {  # what they are of, what is said
    "static": ("not vectorized in", "the compiler's reason"),
    "emulated": ("wasteful accesses in", "cost of a warp's request"),
}
_OF_WORDS = ("meaning", "code", *(words for _, words in _REMARKS.values()))
_LONGEST_REASON = 2000
_MOST_NUMBERS, _MOST_FINDINGS = 5, 5
_MOST_COLUMNS = 5  # kernels side by side
_COUNTED = (
    "instructions", "loops", "bit", "launches", "conflicts", "blocks", "threads", "registers", "calls",
    "accesses", "misses", "faults", "switches", "loads", "branches", "cycles", "kernels", "warps", "sectors",
)  # fmt: skip


def show(out: Console, evaluation: Evaluation, found: Profile) -> None:
    out.print(f"{evaluation.verdict}: {plain(evaluation.reason, _LONGEST_REASON)}", markup=False)
    timing, speedup = evaluation.timing, evaluation.speedup
    if timing is not None:
        ahead = f", {speedup.eager.median:.2f} times eager's speed" if speedup and speedup.eager else ""
        share = evaluation.own_kernel_share
        own = f"; {share:.0%} of it in kernels of its own" if share is not None else ""
        out.print(f"{timing.candidate_us.median / 1e3:.3f} ms{ahead}{own}", markup=False)
    if light := in_words(found):
        out.print(f"{light}; bound by {_WORDS[found.bottleneck]}", soft_wrap=True)
    _show_findings(out, found)
    whole = [m for m in found.metrics if not m.kernel]
    if whole:
        table = _table("the whole call", "value", "meaning")
        for m in whole:
            table.add_row(m.name, _value(m), CATALOGUE[m.name].meaning)
        out.print(table)
    shares = {m.kernel: m.value for m in found.metrics if m.name == "time_share"}
    for provenance, title in _TITLES.items():
        of_kernels = [m for m in found.metrics if m.kernel and m.provenance == provenance]
        _show_kernels(out, title, of_kernels, shares)
    for provenance, (title, said) in _REMARKS.items():
        if remarks := [remark for remark in found.remarks if remark.provenance == provenance]:
            table = _table(title, "line", "code", said)
            for remark in remarks:
                table.add_row(remark.kernel, str(remark.line), Text(remark.code), Text(remark.text))
            out.print(table)
    for rung in found.rungs:
        out.print(f"{rung.name}: {'' if rung.on else 'off, '}{rung.why}", markup=False)


def _show_findings(out: Console, found: Profile) -> None:
    """Print the findings, what to do about each, and the numbers they rest on."""
    for number, finding in enumerate(found.findings[:_MOST_FINDINGS], 1):
        gain = f" (at most {finding.most_gain:.2f} times as fast)" if finding.most_gain else ""
        out.print(f"{number}. {finding.says}{gain}", markup=False)
        out.print(f"   {finding.fix}", markup=False)
    names = dict.fromkeys((name, f.kernel) for f in found.findings for name in f.cites)
    cited = {(m.name, m.kernel): m for m in found.metrics}
    matter = [cited.get(key) or cited.get((key[0], "")) for key in names]
    shown = [m for m in matter if m is not None][:_MOST_NUMBERS]
    if shown:
        table = _table("what matters", "value", "better", "meaning")
        for m in shown:
            of = f" of {m.kernel}" if m.kernel else ""
            known = CATALOGUE[m.name]
            table.add_row(f"{m.name}{of}", _value(m), known.better.replace("neither", ""), known.meaning)
        out.print(table)


def _show_kernels(out: Console, title: str, metrics: Sequence[Metric], shares: Mapping[str, float]) -> None:
    """Print a table with a column per kernel, those with the largest `shares` of the time first."""
    if not metrics:
        return
    kernels = sorted(dict.fromkeys(m.kernel for m in metrics), key=lambda kernel: -shares.get(kernel, 0.0))
    values = {(m.name, m.kernel): _value(m) for m in metrics}
    table = _table(title, *kernels[:_MOST_COLUMNS], "meaning")
    for name in dict.fromkeys(m.name for m in metrics):
        row = (values.get((name, kernel), "-") for kernel in kernels[:_MOST_COLUMNS])
        table.add_row(name, *row, CATALOGUE[name].meaning)
        if name == "occupancy":
            limits = (_limit(metrics, kernel) for kernel in kernels[:_MOST_COLUMNS])
            table.add_row("", *limits, "limited by")
    out.print(table)
    if left := kernels[_MOST_COLUMNS:]:
        out.print(f"and {', '.join(left)}: see --json", markup=False)


def _limit(metrics: Sequence[Metric], kernel: str) -> str:
    warps = {_LIMITS[m.name]: m.value for m in metrics if m.kernel == kernel and m.name in _LIMITS}
    return " and ".join(word for word, value in warps.items() if value == min(warps.values()))


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in _OF_WORDS else "right")
    return table


def _value(m: Metric) -> str:
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
