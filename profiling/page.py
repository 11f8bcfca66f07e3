"""Console output of `kernelwright profile`."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelwright.kernelbench.evaluator.processes.answers import plain
from kernelwright.kernelbench.records import Evaluation
from kernelwright.kernelbench.speed_of_light import score_of
from kernelwright.profiling.records import Profile, Provenance
from kernelwright.profiling.roofline import in_words
from kernelwright.profiling.tables import MetricTable, finding_lines, tables

_WORDS = {
    "memory": "memory: moving its data is the larger part of the floor",
    "compute": "arithmetic: its matrix products are the larger part of the floor",
    "overhead": "overhead: a call is so short that launch costs matter",
    "unknown": "unknown",
}
_REMARKS: dict[Provenance, tuple[str, str]] = {  # what they are of, what is said
    "static": ("not vectorized in", "the compiler's reason"),
    "emulated": ("wasteful accesses in", "cost of a warp's request"),
}
_OF_WORDS = ("better", "meaning", "code", *(words for _, words in _REMARKS.values()))
_LONGEST_REASON = 2000
_MOST_FINDINGS = 5
_MOST_KERNELS, _KERNEL_WIDTH, _OTHERS_WIDTH = 5, 20, 60  # side by side, as far as the terminal is wide


def show(out: Console, evaluation: Evaluation, found: Profile) -> None:
    out.print(f"{evaluation.verdict}: {plain(evaluation.reason, _LONGEST_REASON)}", markup=False)
    timing, speedup = evaluation.timing, evaluation.speedup
    if timing is not None:
        ahead = f", {speedup.eager.median:.2f} times eager's speed" if speedup and speedup.eager else ""
        share = evaluation.own_kernel_share
        unknown = evaluation.own_kernel_share_unknown
        own = f"; {share:.0%} of it in kernels of its own" if share is not None else ""
        own += f"; the share of its own kernels is unknown: {unknown}" if unknown else ""
        out.print(f"{timing.candidate_us.median / 1e3:.3f} ms{ahead}{own}", markup=False)
    if light := in_words(found):
        score = score_of(evaluation)
        said = f"; speed-of-light score {score:.2f}" if score is not None else ""
        out.print(f"{light}{said}; bound by {_WORDS[found.bottleneck]}", soft_wrap=True)
    for number, finding in enumerate(found.findings[:_MOST_FINDINGS], 1):
        says, fix = finding_lines(finding)
        out.print(f"{number}. {says}", markup=False)
        out.print(f"   {fix}", markup=False)
    for each in tables(found):
        _show_table(out, each)
    for provenance, (title, said) in _REMARKS.items():
        if remarks := [remark for remark in found.remarks if remark.provenance == provenance]:
            table = _table(title, "line", "code", said)
            for remark in remarks:
                table.add_row(remark.kernel, str(remark.line), Text(remark.code), Text(remark.text))
            out.print(table)
    for rung in found.rungs:
        took = f" ({rung.seconds:.1f} s)" if rung.seconds else ""
        out.print(f"{rung.name}: {'' if rung.on else 'off, '}{rung.why}{took}", markup=False)


def _show_table(out: Console, each: MetricTable) -> None:
    """Print a table with a column for each kernel, as far as there is room for them."""
    most = max(1, min(_MOST_KERNELS, (out.width - _OTHERS_WIDTH) // _KERNEL_WIDTH))
    table = _table(each.title, *each.columns[:most], "better", "meaning")
    for row in each.rows:
        matters = row.reading if not each.kernels else ""
        meaning = "; ".join(filter(None, (row.meaning, matters)))
        table.add_row(row.name, *row.values[:most], row.better, meaning)
    out.print(table)
    if left := each.kernels[most:]:
        out.print(f"and {', '.join(left)}: see --json", markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold")
    for number, column in enumerate(columns):
        of_words = number == 0 or column in _OF_WORDS
        table.add_column(column, justify="left" if of_words else "right", overflow="fold")
    return table
