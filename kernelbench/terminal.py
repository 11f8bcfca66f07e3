"""An evaluation on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from kernelwright.kernelbench.records import BuiltKernel, Evaluation, Interval, SizeResult, Verdict
from kernelwright.kernelbench.speed_of_light import score_in_words, score_of


def show(evaluation: Evaluation) -> None:
    """Print an evaluation."""
    out = Console(highlight=False)
    colour = "green" if evaluation.right else "red"
    out.print(f"[{colour}]{evaluation.verdict}[/]  ", end="")
    out.print(evaluation.reason, markup=False, soft_wrap=True)
    timing, speedup = evaluation.timing, evaluation.speedup
    rows: list[tuple[str, Interval | None, str, float]] = []
    if timing is not None:
        rows += [("candidate", timing.candidate_us, "ms", 1e-3), ("eager", timing.eager_us, "ms", 1e-3)]
        rows += [("torch.compile", timing.compile_us, "ms", 1e-3)]
        rows += [("max-autotune", timing.max_autotune_us, "ms", 1e-3)]
        rows += [("CUDA graphs", timing.cuda_graphs_us, "ms", 1e-3)]
        rows += [("traffic alone", timing.traffic_us, "ms", 1e-3)]
    if speedup is not None:
        rows += [("vs eager", speedup.eager, "x", 1.0), ("vs torch.compile", speedup.compile, "x", 1.0)]
        rows += [("vs max-autotune", speedup.max_autotune, "x", 1.0)]
        rows += [("vs CUDA graphs", speedup.cuda_graphs, "x", 1.0)]
        rows += [("vs the fastest", speedup.fastest, "x", 1.0)]
    for name, found, unit, scale in rows:
        if found is not None:
            low, high = found.low * scale, found.high * scale
            out.print(
                f"  {name:17}{found.median * scale:9.3f} {unit:3} [{low:.3f}, {high:.3f}]", markup=False
            )
    if timing is not None and evaluation.verdict is Verdict.correct:
        floor = f" (floor {timing.floor_us / 1e3:.3f} ms)" if timing.floor_us is not None else ""
        said = score_in_words(evaluation) or "not known: a ceiling of this machine was not measured"
        out.print(f"  SOL score      {said}{floor}", markup=False, soft_wrap=True)
    if evaluation.sizes:
        out.print(_sizes_table(evaluation.sizes))
        last = evaluation.sizes[-1]
        if last.size.hidden and not evaluation.right:
            out.print(f"  at {last.size}: {last.reason}", markup=False, soft_wrap=True)
    for name, why in timing.failed_baselines.items() if timing is not None else ():
        out.print(f"  {name} not available: {why}", markup=False)
    for name, twin in timing.same_code.items() if timing is not None else ():
        out.print(f"  {name} is the same code as {twin}", markup=False)
    if timing is not None and evaluation.target.ceilings.busy:
        out.print("  the ceilings were measured on a busy machine and may be too low", markup=False)
    if (numbers := evaluation.correctness) is not None and numbers.error is not None:
        own = (
            f"; the reference's own {numbers.reference_error:.2g}"
            if numbers.reference_error is not None
            else ""
        )
        where = f", family {numbers.worst_input}" if numbers.worst_input else ""
        said = f"{numbers.inputs_tried} inputs, error at most {numbers.error:.2g} of the budget{where}{own}"
        out.print(f"  numerics       {said}", markup=False, soft_wrap=True)
        if numbers.weights != "name":
            out.print(f"  weights        matched by {numbers.weights}, not by name", markup=False)
    if evaluation.launched:
        out.print(f"  ran            {', '.join(evaluation.launched)}", markup=False, soft_wrap=True)
    if evaluation.own_kernel_share is not None:
        out.print(f"  own kernels    {100 * evaluation.own_kernel_share:6.0f}% of the time")
    elif evaluation.own_kernel_share_unknown:
        unknown = evaluation.own_kernel_share_unknown
        out.print(f"  own kernels    share unknown: {unknown}", markup=False, soft_wrap=True)
    if evaluation.needs_default_dtype:
        advice = "specify the dtype of each tensor it creates"
        out.print(f"  default dtype  must be float32: {advice}", markup=False, soft_wrap=True)
    problems: dict[str, list[str]] = {}  # chips that have the same
    for build in evaluation.builds:
        for kernel in build.kernels:
            out.print(f"  {build.chip:7} {_built(kernel)}", markup=False, soft_wrap=True)
        if build.predicted_us is not None:
            said = f"predicted, not measured: {build.predicted_us:.4g} us a call on {build.card}"
            out.print(f"  {build.chip:7} {said}", markup=False, soft_wrap=True)
        if build.problem:
            state = "does not build" if build.ok is False else "unknown"
            problems.setdefault(f"{state}: {build.problem}", []).append(build.chip)
    for problem, chips in problems.items():
        out.print(f"  {', '.join(chips)} {problem}", markup=False, soft_wrap=True)


def _built(kernel: BuiltKernel) -> str:
    spilled = f"{kernel.spills} spills" if kernel.spills else "no spills"
    return (
        f"{kernel.name}: {kernel.threads} threads, {kernel.registers} registers, {spilled}, "
        f"{kernel.shared_bytes} B shared; occupancy {kernel.occupancy:.0%}, limited by {kernel.limited_by}"
        + (f"; predicted {kernel.predicted_us:.4g} us, by {kernel.bound}" if kernel.predicted_us else "")
    )


def _sizes_table(results: Sequence[SizeResult]) -> Table:
    """Return the results at each size, as a table of at most 80 columns."""
    table = Table(box=None, header_style="bold", padding=(0, 0, 0, 2))
    table.add_column("size", overflow="fold", max_width=22)
    for column in ("weight", "candidate", "eager", "SOL", "vs eager"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in results:
        size, timing, speedup = each.size, each.timing, each.speedup
        eager, score = speedup.eager if speedup is not None else None, score_of(each)
        result = f"{eager.median:.3f} x [{eager.low:.3f}, {eager.high:.3f}]" if eager is not None else ""
        table.add_row(
            f"{size} (hidden)" if size.hidden else str(size),
            f"{size.weight:g}",
            _ms(timing.candidate_us) if timing is not None else "",
            _ms(timing.eager_us) if timing is not None else "",
            f"{score:.2f}" if score is not None else "",
            result or each.verdict,
        )
    return table


def _ms(interval: Interval | None) -> str:
    return f"{interval.median / 1e3:.3f} ms" if interval is not None else ""
