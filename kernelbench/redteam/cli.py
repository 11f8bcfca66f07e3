"""The command `redteam`."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kernelwright.kernelbench.cli import Hot, Json, Server, TargetName, check_protocol, check_target
from kernelwright.kernelbench.errors import InfrastructureError, UsageError
from kernelwright.kernelbench.evaluator import EAGER, Effort, Limits, Protocol, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Evaluation
from kernelwright.kernelbench.redteam.catalogue import Exercise, named

# Verdicts are wanted, not digits.
EFFORT = Effort(rounds=6, processes=2, most_processes=3, half_width=0.1, timing_s=10)
PROTOCOL = Protocol(effort=EFFORT, block_s=0.02, verified_blocks=3)
LIMITS = Limits(load_s=30, call_s=5, memory_bytes=4 << 30)


def redteam(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of cheats or families to try. Default: all, and the honest candidates."),
    ] = None,
    target: TargetName = "cpu",
    hot: Hot = False,
    server: Server = None,
    as_json: Json = False,
) -> int:
    """Try to cheat this installation's evaluator, and check that it accepts honest oddities."""
    device = check_target(target)
    _, asked = check_protocol(None, 0.0, "quick", "hot" if hot else "cold", server, device)
    protocol = PROTOCOL.model_copy(update={"caches": asked.caches, "arrivals_per_s": asked.arrivals_per_s})
    all_named = named(names or ())
    exercises = [exercise for exercise in all_named if exercise.fits(device)]
    untried = [exercise.name for exercise in all_named if exercise not in exercises]
    why_untried = "they need a GPU" if device == "cpu" else "they are C++ for a CPU"
    if not exercises:
        other = "cuda:0" if device == "cpu" else "cpu"
        raise UsageError(f"nothing to try on {device}: {why_untried}", f"use --target {other}")
    log = Console(stderr=True, highlight=False)
    found: dict[Exercise, Evaluation] = {}
    failed: dict[Exercise, str] = {}  # no verdict, and why
    with Referee.start(cache=cache_folder(), protocol=protocol, limits=LIMITS, device=device) as evaluator:
        for exercise in sorted(exercises, key=lambda e: e.task.id):  # one session a reference
            try:
                found[exercise] = evaluator.evaluate(exercise.task, exercise.candidate, EAGER)
            except InfrastructureError as error:
                failed[exercise] = error.message
            held = "" if _withstood(exercise, found) else "NOT WITHSTOOD: "
            count = f"[{len(found) + len(failed)}/{len(exercises)}]"
            said = _outcome(found[exercise]) if exercise in found else failed[exercise]
            log.print(f"{count} {exercise.name}: {held}{said}", markup=False)
        off = [layer for layer in evaluator.sessions.pool.layers() if not layer.on]
    if as_json:
        records = [_record(e, found[e]) for e in exercises if e in found]
        unjudged = {exercise.name: why for exercise, why in failed.items()}
        print(json.dumps({"schema": 1, "exercises": records, "failed": unjudged, "untried": untried}))
    else:
        _show(exercises, found, failed)
        if untried:
            log.print(f"not tried, for {why_untried}: {', '.join(untried)}", markup=False)
        for layer in off:
            log.print(f"off on this machine: {layer.name}: {layer.why}", markup=False)
    return 0 if all(_withstood(e, found) for e in exercises) else 1


def _withstood(exercise: Exercise, found: Mapping[Exercise, Evaluation]) -> bool:
    return exercise in found and exercise.withstood(found[exercise])


def _outcome(evaluation: Evaluation) -> str:
    if evaluation.speedup is None or evaluation.speedup.eager is None:
        return str(evaluation.verdict)
    eager, share = evaluation.speedup.eager, evaluation.own_kernel_share
    own = "" if share is None else f", own kernels {100 * share:.0f}%"
    return f"{evaluation.verdict} at {eager.median:.2f} [{eager.low:.2f}, {eager.high:.2f}]{own}"


def _record(exercise: Exercise, evaluation: Evaluation) -> dict[str, object]:
    return {
        "name": exercise.name,
        "family": exercise.family,
        "withstood": exercise.withstood(evaluation),
        "verdict": evaluation.verdict,
        "reason": evaluation.reason,
        "speedup": evaluation.speedup.model_dump() if evaluation.speedup else None,
        "own_kernel_share": evaluation.own_kernel_share,
        "total_s": evaluation.stages.total_s,
    }


def _show(
    exercises: Sequence[Exercise], found: Mapping[Exercise, Evaluation], failed: Mapping[Exercise, str]
) -> None:
    table = Table(box=None, header_style="bold")
    for column in ("", "family", "candidate", "outcome", "why"):
        table.add_column(column, overflow="fold")
    for exercise in exercises:
        if exercise in failed:
            table.add_row("[red]no verdict[/]", exercise.family, exercise.name, "", failed[exercise])
            continue
        evaluation = found[exercise]
        good = "accepted" if exercise.honest else "stopped"
        bad = "rejected" if exercise.honest else "got through"
        mark = f"[green]{good}[/]" if exercise.withstood(evaluation) else f"[red]{bad}[/]"
        why = evaluation.reason if exercise.honest else exercise.stopped
        table.add_row(mark, exercise.family, exercise.name, _outcome(evaluation), why)
    out = Console()
    out.print(table)
    for what, group in (
        ("cheats stopped", [e for e in exercises if not e.honest]),
        ("honest candidates accepted", [e for e in exercises if e.honest]),
    ):
        if group:
            out.print(f"{sum(_withstood(e, found) for e in group)} of {len(group)} {what}", highlight=False)
