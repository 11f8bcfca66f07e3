"""`kernelwright profile`: where a candidate's time goes. The front door registers it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kernelbench.candidates import candidate_from_file
from kernelbench.cli import Json, KernelbenchDir, Overrides, TargetName, check_target, one_task
from kernelbench.evaluator import Evaluator
from kernelbench.machine import cache_folder
from kernelbench.records import TRAFFIC, Evaluation, Precision, Verdict
from profiling.catalogue import CATALOGUE
from profiling.ladder import profile as take
from profiling.records import Metric, Profile

_WORDS = {
    "memory": "memory: moving its data takes longest, even at the best",
    "compute": "arithmetic: its products take longest, even at the best",
    "overhead": "overhead: it is over before starting work stops to matter",
    "unknown": "not known",
}


def profile(
    task: Annotated[str, typer.Argument(help="A task: path, builtin:level1/softmax, kernelbench:2/40.")],
    candidate: Annotated[Path, typer.Argument(help="A Python file that defines ModelNew.")],
    target: TargetName = "cpu",
    overrides: Overrides = None,
    precision: Annotated[
        Precision, typer.Option(help="What floating inputs and weights are cast to.")
    ] = Precision.fp32,
    kernelbench_dir: KernelbenchDir = None,
    as_json: Json = False,
) -> int:
    """Evaluate one candidate and say where its time goes: the roofline, and what its loops consist of."""
    device = check_target(target)
    chosen = one_task(task, overrides, precision, kernelbench_dir)
    proposed = candidate_from_file(candidate)
    with Evaluator(cache=cache_folder(), device=device) as evaluator:
        evaluation = evaluator.evaluate(chosen, proposed, ("eager", TRAFFIC))
        found = take(evaluator, chosen, proposed, evaluation)
    if as_json:
        parts = {"evaluation": evaluation.model_dump(mode="json"), "profile": found.model_dump(mode="json")}
        print(json.dumps({"schema": 1, **parts}))
    else:
        show(Console(highlight=False), evaluation, found)
    return 0 if evaluation.verdict is Verdict.correct else 1


def show(out: Console, evaluation: Evaluation, found: Profile) -> None:
    out.print(f"{evaluation.verdict}: {evaluation.reason}", markup=False)
    timing, speedup = evaluation.timing, evaluation.speedup
    if timing is not None:
        ahead = f", {speedup.eager.median:.2f} times eager's speed" if speedup and speedup.eager else ""
        share = evaluation.own_kernel_share
        own = f"; {share:.0%} of it in kernels of its own" if share is not None else ""
        out.print(f"{timing.candidate_us.median / 1e3:.3f} ms{ahead}{own}", markup=False)
    if found.speed_of_light is not None:
        out.print(f"{found.speed_of_light:.0%} of the speed of light; bound by {_WORDS[found.bottleneck]}")
    whole = [m for m in found.metrics if not m.kernel]
    if whole:
        table = _table("the whole call", "value", "meaning")
        for m in whole:
            table.add_row(m.name, _value(m), CATALOGUE[m.name].meaning)
        out.print(table)
    if found.kernels:
        names = list(dict.fromkeys(m.name for m in found.metrics if m.kernel))
        table = _table("in the loops of", *found.kernels)
        for name in names:
            table.add_row(CATALOGUE[name].meaning, *(_of(found, name, kernel) for kernel in found.kernels))
        out.print(table)
    for rung in found.rungs:
        out.print(f"{rung.name}: {'' if rung.on else 'off, '}{rung.why}", markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column == "meaning" else "right")
    return table


def _of(found: Profile, name: str, kernel: str) -> str:
    return next((_value(m) for m in found.metrics if (m.name, m.kernel) == (name, kernel)), "-")


def _value(m: Metric) -> str:
    """A number as a person reads it."""
    if m.unit == "1":
        return f"{m.value:.0%}"
    if m.unit in ("instructions", "loops", "bit"):
        return f"{m.value:.0f}"
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if m.value >= size:
            return f"{m.value / size:.3g} {prefix}{m.unit}"
    return f"{m.value:.3g} {m.unit}"
