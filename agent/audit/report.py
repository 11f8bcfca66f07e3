"""Report of an audit: a table for the terminal, and audit.md."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernelwright.agent.audit.grades import DIFFERENT, ClaimOutcome, KernelGrade, counts
from kernelwright.results.archives.records import Archive
from kernelwright.results.formatting import NOTHING, one_line, share, with_bounds
from kernelwright.results.report.formats import WIDE, markdown_table
from kernelwright.results.store.records import RecordedRun

COLUMNS = ("kernel", "verdict", "vs eager", "vs compile", "own", "SOL", "against the claim", "reason")
_NUMBERS = ("own", "SOL")
_ONLY_WIDE = ("vs compile", "reason")
_LONGEST = {True: 300, False: 60}  # characters of a reason, in Markdown and on a terminal
_MOST_ROWS = 100  # on a terminal; of longer audits it has those that differ from their claims
_STYLES = {
    ClaimOutcome.refuted: "red",
    ClaimOutcome.slower: "red",
    ClaimOutcome.faster: "green",
    ClaimOutcome.vindicated: "green",
    ClaimOutcome.unchecked: "dim",
}
NOTE = (
    "Speedups with 95% intervals. own: share of the time in kernels of its own. SOL: speed-of-light score, "
    "0.5 for eager's time and 1 for the roofline of measured ceilings. What was not timed has neither."
)


def headline(grades: Sequence[KernelGrade]) -> str:
    """Return how many kernels have each verdict: "12 kernels: 7 right in emulation, 3 wrong output"."""
    found = [grade.verdict for grade in grades]
    verdicts = sorted(set(found), key=lambda verdict: (-found.count(verdict), verdict))
    said = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in verdicts)
    return f"{len(found)} kernel{'s' if len(found) != 1 else ''}: {said}"


def claims(grades: Sequence[KernelGrade]) -> str:
    """Return how many claims have each outcome, in a sentence; empty if nothing was claimed."""
    found = {outcome: n for outcome, n in counts(grades).items() if outcome is not ClaimOutcome.unclaimed}
    said = "; ".join(f"{number} {outcome}" for outcome, number in found.items())
    return f"Of {sum(found.values())} claims: {said}" if found else ""


def table(grades: Sequence[KernelGrade], width: int) -> Group:
    """Return the report for a terminal of `width` characters."""
    shown = list(grades)
    if len(shown) > _MOST_ROWS:
        shown = [grade for grade in shown if grade.outcome in DIFFERENT]
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1) if width < WIDE else (0, 1))
    columns = _used(shown)
    if width < WIDE and "vs eager" in columns:  # else there is room
        columns = [name for name in columns if name not in _ONLY_WIDE]
    for name in columns:
        numeric = name in _NUMBERS
        drawn.add_column(name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for grade in shown:
        cells = cells_of(grade, _LONGEST[False])
        texts = {name: Text(cells[name]) for name in columns}
        right = grade.evaluation is not None and grade.evaluation.right
        texts["verdict"].style = "green" if right else "red"
        if "against the claim" in texts:
            texts["against the claim"].style = _STYLES.get(grade.outcome, "")
        drawn.add_row(*texts.values())
    parts: list[RenderableType] = [Text(headline(grades), "bold")]
    if said := claims(grades):
        parts.append(Text(said))
    if shown:
        parts.append(drawn)
    if len(shown) < len(grades):
        parts.append(Text("Kernels that differ from their claims; audit.md has all.", "dim"))
    return Group(*parts)


def markdown(grades: Sequence[KernelGrade], archive: Archive, run: RecordedRun) -> str:
    """Return the text of audit.md."""
    machine = run.target.fingerprint
    chips = f", built for {', '.join(run.target.chips)}" if run.target.chips else ""
    times = "of this CPU, to which no claim of a GPU is compared" if run.target.device == "cpu" else ""
    if chips:
        times = "not timed, for no GPU is here"
    columns = _used(grades)
    rows = [[cells_of(grade, _LONGEST[True])[name] for name in columns] for grade in grades]
    conditions = [
        ("archive", archive.path),
        ("claims are of", ", ".join(archive.hardware) or "a device that is not named"),
        ("graded on", f"{run.target.device}: {machine.chip}{chips}"),
        *([("times", times)] if times else []),
        ("torch", machine.torch),
        ("kernelwright", run.kernelwright),
        ("started", run.started),
    ]
    lines = ["# Audit", "", f"{headline(grades)}.", ""]
    if said := claims(grades):
        lines += [f"{said}.", ""]
    lines += [*markdown_table(columns, rows), "", NOTE, ""]
    if archive.left_out:
        lines += ["## Left out", "", *(f"- {one_line(line, 300)}" for line in archive.left_out), ""]
    lines += ["## Conditions", "", *markdown_table(("", ""), conditions), ""]
    return "\n".join([*lines, "Reproduce with:", "", f"    {run.command}"]) + "\n"


def cells_of(grade: KernelGrade, longest: int) -> dict[str, str]:
    """Return the cells of a kernel's row by column."""
    score = grade.score
    own = grade.evaluation.own_kernel_share if grade.evaluation is not None else None
    return {
        "kernel": grade.kernel.name,
        "verdict": grade.verdict,
        "vs eager": with_bounds(grade.speedup("eager")),
        "vs compile": with_bounds(grade.speedup("compile")),
        "own": share(own),
        "SOL": NOTHING if score is None else f"{score:.2f}",
        "against the claim": grade.against_claim,
        "reason": one_line(grade.reason, longest),
    }


def _used(grades: Sequence[KernelGrade]) -> list[str]:
    """Return the columns that say something of any kernel."""
    rows = [cells_of(grade, _LONGEST[False]) for grade in grades]
    return [name for name in COLUMNS if any(row[name] not in ("", NOTHING) for row in rows)]
