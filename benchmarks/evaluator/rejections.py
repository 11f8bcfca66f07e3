"""Correct kernels that the referee rejects.

    python -m benchmarks rejections [TASK...]

Each task's reference and the builtin coder's first kernel are evaluated with one round of timing, and so
are the honest candidates of the red team. Machine: CPU. Time: half an hour (estimate). Writes
cpu/rejections.md.
"""

import statistics
from typing import Annotated

import typer

from benchmarks.publishing import log, publish
from benchmarks.references import itself
from kernelwright.agent.builtin.coder import BuiltinCoder
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import Effort, Measurement, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Verdict
from kernelwright.kernelbench.redteam.catalogue import catalogue

_ONE_ROUND = Measurement(("eager",), Effort(rounds=1, processes=1, most_processes=1, half_width=1.0))


def run(
    names: Annotated[list[str] | None, typer.Argument(help="Tasks; the whole suite by default.")] = None,
) -> None:
    rejected, errors = [], []
    with Referee.start(cache=cache_folder()) as evaluator:
        coder = BuiltinCoder(lambda task: trace(evaluator.sessions.pool, task))
        pairs = [
            (task, candidate)
            for task in (sources.resolve(names) if names else sources.resolve([], suite="builtin"))
            for candidate in (itself(task), coder.propose(task, [], None))
        ]
        honest = catalogue(["honest"]) if not names else []
        pairs += [(e.task, e.candidate) for e in sorted(honest, key=lambda e: e.task.id)]
        for number, (task, candidate) in enumerate(pairs, 1):
            evaluation = evaluator.evaluate(task, candidate, _ONE_ROUND)
            error = evaluation.correctness.error if evaluation.correctness else None
            outcome = evaluation.reason if error is None else f"{error:.2f} of the budget"
            log(f"[{number}/{len(pairs)}] {task.id} {candidate.author}: {evaluation.verdict} {outcome}")
            if evaluation.verdict is not Verdict.correct:
                rejected.append((task.id, candidate.author, str(evaluation.verdict), evaluation.reason))
            elif error is not None:
                errors.append(error)
        machine = evaluator.target.fingerprint
    cuts = statistics.quantiles(errors, n=100)
    rows = [
        ("evaluated", f"{len(pairs)}", "", ""),
        ("rejected", f"{len(rejected)}", "", ""),
        ("error, in budgets", f"median {cuts[49]:.3f}", f"99% {cuts[98]:.3f}", f"{max(errors):.3f}"),
    ]
    header = ("correct kernels", "", "", "largest")
    publish("rejections", "Correct kernels rejected", header, rows + rejected, machine)
