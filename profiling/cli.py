"""`kernelwright doctor` and `profile`: the machine's capabilities, and where a candidate's time goes."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.chips.occupancy import CHIPS
from kernelwright.kernelbench.cli import (
    CastTo,
    Init,
    Inputs,
    Json,
    KernelbenchDir,
    Overrides,
    TargetName,
    check_target,
    log,
    one_task,
)
from kernelwright.kernelbench.doctor import examine
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.evaluator import LocalEvaluator, Measurement, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import TRAFFIC, Capability, Evaluation, Precision, Verdict
from kernelwright.kernelbench.speed_of_light import score_of
from kernelwright.profiling.ladder import CHEAP, RUNGS, findings
from kernelwright.profiling.ladder import profile as take
from kernelwright.profiling.page import show
from kernelwright.profiling.picture import RooflinePoint, check_picture, picture, save
from kernelwright.profiling.records import Profile
from kernelwright.profiling.rung import Subject
from kernelwright.profiling.survey import measuring
from kernelwright.profiling.survey.records import Survey
from kernelwright.profiling.survey.wording import in_words, not_measured

Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Measure bandwidth by working set, peaks by precision and overheads: half a minute.",
    ),
]
RooflineFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.svg", help="Draw the machine's roofline into this file; measure it first if needed."
    ),
]


def doctor(
    target: TargetName = "cpu",
    measure: Measure = False,
    roofline: RooflineFile = None,
    as_json: Json = False,
) -> None:
    """Show what this machine can build, run, time and profile, and how to get the rest."""
    device = check_target(target)
    if roofline is not None:
        check_picture(roofline)
    with Referee.start(cache=cache_folder(), device=device) as evaluator:
        survey, ceilings = _surveyed(evaluator, measure, roofline is not None)
        found = examine(evaluator, findings(), ceilings)
    if roofline is not None and survey is not None:
        save(roofline, picture(survey))
        log.print(f"drawn: {roofline}", markup=False)
    if as_json:
        measured = survey.model_dump(mode="json") if survey else None
        print(json.dumps({"schema": 1, **found.model_dump(), "survey": measured}))
        return
    Console().print(table(found.items))


def table(items: Iterable[Capability]) -> Table:
    """Return a table of capabilities, a row for each."""
    shown = Table(box=None, header_style="bold")
    for column in ("", "what", "state"):
        shown.add_column(column)
    for item in items:
        shown.add_row("[green]on[/]" if item.on else "[yellow]off[/]", item.name, Text(item.why))
    return shown


def _surveyed(
    evaluator: LocalEvaluator, again: bool, wanted: bool
) -> tuple[Survey | None, tuple[Capability, ...]]:
    """Return the target's survey and doctor's lines; measured if `again`, or if `wanted` and missing."""
    target, pool = evaluator.target, evaluator.sessions.pool
    survey, problem = None, ""
    if not again:
        try:
            survey = measuring.stored(pool.cache, target)
        except StorageError as error:
            problem = error.message
    if again or (wanted and survey is None):
        with Progress(*Progress.get_default_columns(), console=log, transient=True) as progress:
            bar = progress.add_task("measuring the machine", total=1.0)
            survey = measuring.measure(pool, target, lambda share: progress.update(bar, completed=share))
    return survey, tuple(in_words(survey) if survey else not_measured(problem))


def profile(
    task: Annotated[str, typer.Argument(help="A task: a path, builtin:level1/softmax or kernelbench:2/40.")],
    candidate: Annotated[Path, typer.Argument(help="A Python file that defines ModelNew.")],
    target: Annotated[
        str,
        typer.Option(
            help="Target: cpu, cuda:0 where there is a GPU, or a chip to only build for, such as sm_90."
        ),
    ] = "cpu",
    inputs: Inputs = None,
    init: Init = None,
    overrides: Overrides = None,
    precision: CastTo = Precision.task,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Also count cache misses of C++ kernels under valgrind, which may take minutes.",
        ),
    ] = False,
    roofline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="Draw the candidate in the machine's roofline; measure that first if needed.",
        ),
    ] = None,
    kernelbench_dir: KernelbenchDir = None,
    as_json: Json = False,
) -> int:
    """Evaluate one candidate and show where its time goes.

    Shows the roofline and the instructions in its loops; for GPU kernels also a trace and Nsight Compute's
    counters. For a named chip (sm_90) nothing is checked or timed: its kernels are built and their machine
    code is read.
    """
    chip = check_chip(target)
    if roofline is not None:
        check_picture(roofline)
        if chip:
            raise UsageError(
                "a roofline needs a timed candidate, and a chip's kernels are only built",
                "leave out --roofline",
            )
    device = "cpu" if chip else check_target(target)
    chosen = one_task(task, overrides, precision, kernelbench_dir, device, inputs, init).primary
    proposed = candidate_from_file(candidate)
    with Referee.start(cache=cache_folder(), device=device) as evaluator:
        if roofline is not None and not evaluator.work(chosen).flops:
            raise UsageError(
                f"{chosen.id} cannot be drawn in a roofline: it has no matrix products to count FLOPs of",
                "leave out --roofline",
            )
        if chip:
            why = f"built for {chip}, neither timed nor checked: `evaluate --target {chip}` checks it"
            evaluation = evaluator.untried(chosen, proposed, Verdict.unmeasured, why)
        else:
            evaluation = evaluator.evaluate(chosen, proposed, Measurement(("eager", TRAFFIC)))
        found = take(Subject(evaluator, chosen, proposed, evaluation, chip), RUNGS if simulate else CHEAP)
        timed = evaluation.timing is not None
        survey, _ = _surveyed(evaluator, again=False, wanted=timed and roofline is not None)
    if as_json:
        parts = {"evaluation": evaluation.model_dump(mode="json"), "profile": found.model_dump(mode="json")}
        score = {"speed_of_light_score": score_of(evaluation)}
        print(json.dumps({"schema": 1, "chip": chip or None, **parts, **score}))
    else:
        show(Console(highlight=False), evaluation, found)
    if roofline is not None:
        point = _point(candidate.name, evaluation, found)
        assert survey is not None
        save(roofline, picture(survey, [point]))
        log.print(f"drawn: {roofline}", markup=False)
    done = bool(found.kernels) if chip else evaluation.verdict is Verdict.correct
    return 0 if done else 1


def _point(label: str, evaluation: Evaluation, found: Profile) -> RooflinePoint:
    """Return a candidate's point in a roofline. Raises UsageError if it was not timed."""
    moved, flops, timing = found.value("minimal_bytes"), found.value("flops"), evaluation.timing
    if timing is None or not moved or not flops:
        raise UsageError(f"{label} cannot be drawn in a roofline: it was not timed", "leave out --roofline")
    return RooflinePoint(flops / moved, 1e6 * flops / timing.candidate_us.median, label)


def check_chip(target: str) -> str:
    """Return the chip named by a target, "sm_90" or "cuda:sm_90"; empty for a device. Raises UsageError."""
    named = re.fullmatch(r"(?:cuda:)?(sm_.*)", target)
    if named is None:
        return ""
    if named[1] not in CHIPS:
        raise UsageError(f"unknown chip '{named[1]}'", f"use one of {', '.join(CHIPS)}")
    return named[1]
