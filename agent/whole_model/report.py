"""Report of an optimized model, in Markdown."""

from collections.abc import Sequence
from pathlib import Path

from kernelwright.agent.whole_model.records import ModelResult, PartResult, StepComparison, StepTimes
from kernelwright.results.formatting import with_bounds


def markdown(result: ModelResult, folder: Path) -> str:
    """Return the report of a result, whose package is in `folder`."""
    kind = "a step of training" if result.trains else "a forward call"
    parts = [f"# {result.model}: {kind}"]
    if result.comparison is None:
        parts.append("No kernel computes its part faster, so there is no package.")
    else:
        parts += [_whole(result.comparison), *_compiled(result.compiled), *_use(result.comparison, folder)]
    rows = [
        (
            each.part,
            str(each.replaced or ""),
            with_bounds(each.times.speedup) if each.times is not None else "",
            f"kept{_memory(each)}" if each.kept else each.reason,
        )
        for each in result.parts
    ]
    kind = "A call and its backward pass" if result.trains else "A call"
    parts.append(f"{kind} of each part, by its kernel and as the model computes it:")
    parts.append(_table(("part", "replaced", "speedup, eager", ""), rows))
    return "\n\n".join(parts) + "\n"


def _memory(part: PartResult) -> str:
    if not part.drop_in_peak_bytes:
        return ""
    stock, own = (each / 2**20 for each in (part.stock_peak_bytes, part.drop_in_peak_bytes))
    return f"; peak memory of a step {own:.1f} MiB instead of {stock:.1f}"


def _whole(found: StepComparison) -> str:
    rows = _times("eager", found.eager)
    if found.compiled is not None:
        rows += _times("torch.compile", found.compiled)
    mib = [f"{each / 2**20:.1f} MiB" for each in (found.stock_peak_bytes, found.drop_in_peak_bytes)]
    ratio = found.stock_peak_bytes / max(1, found.drop_in_peak_bytes)
    rows.append(("peak memory of a step", *mib, f"{ratio:.2f}"))
    return _table(("", "stock", "with kernels", "ratio"), rows) + _exactness(found)


def _compiled(found: StepTimes | None) -> list[str]:
    if found is None or found.speedup.low > 1:
        return []
    said = f"With the kernels in it the compiled step is {with_bounds(found.speedup)} as fast"
    return [f"{said}, so they are left out of it."]


def _exactness(found: StepComparison) -> str:
    why = f"\n\nNot timed by torch.compile: {found.not_compiled}." if found.not_compiled else ""
    if found.not_exact:
        return f"\n\nNot held against float64: {found.not_exact}.{why}"
    if not found.deviations:
        return why
    outside = [each for each in found.deviations if not each.within]
    worst = max(
        outside or found.deviations, key=lambda each: each.drop_in_error / max(each.stock_error, 1e-12)
    )
    where = f" at {worst.size}" if worst.size else ""
    count = f"{len(outside)} of {len(found.deviations)}" if outside else f"All {len(found.deviations)}"
    kept = "**farther**" if outside else "no farther"
    return (
        f"\n\n{count} results are {kept} from float64 than four times the model as it is, and a rounding. "
        f"Farthest: {worst.name}{where}, by {worst.drop_in_error:.2g} of its largest number, the model "
        f"itself by {worst.stock_error:.2g}.{why}"
    )


def _times(name: str, found: StepTimes) -> list[tuple[str, ...]]:
    """Return the row of all sizes together, and those of each."""
    times = [f"{each * 1e3:.4g} ms" for each in (found.stock_s, found.drop_in_s)]
    first = f"{name}, mean of all sizes" if found.sizes else name
    rows = [(first, *times, with_bounds(found.speedup))]
    for size, each in found.sizes.items():
        rows += [(f"{name}, {size}", *row[1:]) for row in _times(name, each)]
    return rows


def _use(found: StepComparison, folder: Path) -> list[str]:
    unsure = ["The whole step is not certainly faster with them."] if found.eager.speedup.low <= 1 else []
    if not all(each.within for each in found.deviations):
        return [*unsure, f"Do not use `{folder}/package`: it changes what the model computes. See report.md."]
    install = f"`pip install --no-build-isolation {folder}/package`"
    return [*unsure, f"The kernels that are kept: {install}, then its `apply(model)`."]


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
