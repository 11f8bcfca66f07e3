"""Report of an optimized model, in Markdown."""

from collections.abc import Sequence
from pathlib import Path

from kernelwright.agent.whole_model.records import ModelResult, StepComparison, StepTimes
from kernelwright.results.formatting import with_bounds


def markdown(found: ModelResult, folder: Path) -> str:
    """Return the report of a result, whose package is in `folder`."""
    kind = "a step of training" if found.trains else "a forward call"
    parts = [f"# {found.model}: {kind}"]
    if found.comparison is None:
        parts.append("No kernel makes the whole step faster, so there is no package.")
    else:
        parts += [_whole(found.comparison), _use(found, folder)]
    rows = [
        (
            each.part,
            str(each.replaced or ""),
            with_bounds(each.alone.speedup) if each.alone is not None else "",
            "kept" if each.kept else each.reason,
        )
        for each in found.parts
    ]
    parts.append("Each kernel alone in the model:")
    parts.append(_table(("part", "layers", "step, eager", ""), rows))
    return "\n\n".join(parts) + "\n"


def _whole(found: StepComparison) -> str:
    rows = [_times("eager", found.eager)]
    if found.compiled is not None:
        rows.append(_times("torch.compile", found.compiled))
    mib = [f"{each / 2**20:.1f} MiB" for each in (found.stock_peak_bytes, found.drop_in_peak_bytes)]
    ratio = found.stock_peak_bytes / max(1, found.drop_in_peak_bytes)
    rows.append(("peak memory of a step", *mib, f"{ratio:.2f}"))
    worst = max(found.deviations, key=lambda each: each.drop_in_error / max(each.stock_error, 1e-12))
    return (
        _table(("", "stock", "with kernels", "ratio"), rows)
        + f"\n\nFarthest from float64, beside the model as it is: {worst.name}, by {worst.drop_in_error:.2g} "
        f"of its largest number, the model itself by {worst.stock_error:.2g}."
    )


def _times(name: str, found: StepTimes) -> tuple[str, ...]:
    times = [f"{each * 1e3:.4g} ms" for each in (found.stock_s, found.drop_in_s)]
    return name, *times, with_bounds(found.speedup)


def _use(found: ModelResult, folder: Path) -> str:
    return (
        f"The kernels that are kept: `pip install --no-build-isolation {folder}/package`, then its "
        "`apply(model)`."
    )


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
