"""How far a number can be trusted: references against themselves, correct kernels that are rejected."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from kernelwright.agent.bench.publishing import AA_TASKS, itself, log, publish
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator import (
    EAGER,
    EFFORTS,
    SEARCH,
    Effort,
    Measurement,
    Referee,
)
from kernelwright.kernelbench.evaluator.correctness.oracle_client import Shortcut
from kernelwright.kernelbench.machine import cache_folder, physical_threads
from kernelwright.kernelbench.records import Interval, Task, Verdict
from kernelwright.kernelbench.redteam.catalogue import catalogue


def aa(repeats: Annotated[int, typer.Option(help="Evaluations a task.")] = 10) -> None:
    """The reference against itself: how often the interval covers 1.0, and how far from it the speedup is.

    Beside it a timer as many harnesses have it: both models in one process, three calls to warm up, the mean
    of ten.
    """
    tasks = sources.resolve(AA_TASKS)
    rows, ours, covered, naive = [], [], [], []
    with Referee.start(cache=cache_folder()) as evaluator:
        for task in tasks:
            found, plain = [], []
            for _ in range(repeats):
                evaluation = evaluator.evaluate(task, itself(task), EAGER)
                assert evaluation.speedup is not None and evaluation.speedup.eager is not None, (
                    evaluation.reason
                )
                found.append(evaluation.speedup.eager)
                plain.append(_naive_ratio(task))
                last = found[-1]
                shown = f"{last.median:.4f} [{last.low:.4f}, {last.high:.4f}]"
                log(f"{task.id}: {shown}, mean of 10 {plain[-1]:.4f}")
            covered += [interval.low <= 1.0 <= interval.high for interval in found]
            ours += [abs(interval.median - 1) for interval in found]
            naive += [abs(ratio - 1) for ratio in plain]
            rows.append((task.id, *_spread([abs(i.median - 1) for i in found]),
                         f"{sum(i.low <= 1 <= i.high for i in found)}/{repeats}",
                         *_spread([abs(r - 1) for r in plain])))  # fmt: skip
        rows.append(("all", *_spread(ours), f"{sum(covered)}/{len(covered)}", *_spread(naive)))
        header = (
            "task",
            "median error",
            "largest",
            "interval covers 1",
            "mean of 10: median error",
            "largest",
        )
        publish(
            "aa",
            "The reference against itself: speedup - 1 without its sign",
            header,
            rows,
            evaluator.target.fingerprint,
        )


def efforts(repeats: Annotated[int, typer.Option(help="Evaluations a task.")] = 3) -> None:
    """What more timing gains: references against themselves with each effort, in turns.

    "search" is the one of candidates in a search, where what is to be beaten is as fast as they are.
    """
    compared = {"search": SEARCH, **EFFORTS}
    found: dict[str, list[tuple[Interval, float]]] = {name: [] for name in compared}
    with Referee.start(cache=cache_folder()) as evaluator:
        for task in sources.resolve(AA_TASKS):
            for _ in range(repeats):
                for name, effort in compared.items():
                    to_beat = 1.0 if effort is SEARCH else None
                    evaluation = evaluator.evaluate(
                        task, itself(task), Measurement(("eager",), effort, to_beat)
                    )
                    assert evaluation.speedup and evaluation.speedup.eager, evaluation.reason
                    found[name].append((evaluation.speedup.eager, evaluation.stages.total_s))
                    log(f"{task.id}: {name}: {found[name][-1]}")
        rows = []
        for name, evaluations in found.items():
            intervals = [interval for interval, _ in evaluations]
            widths = [(interval.high - interval.low) / 2 / interval.median for interval in intervals]
            wanted = compared[name].half_width
            rows.append((name, f"{statistics.median(seconds for _, seconds in evaluations):.1f} s",
                         f"±{100 * statistics.median(widths):.2f}%",
                         f"{sum(w <= wanted for w in widths)}/{len(widths)} below {100 * wanted:g}%",
                         *_spread([abs(interval.median - 1) for interval in intervals]),
                         f"{sum(i.low <= 1 <= i.high for i in intervals)}/{len(intervals)}"))  # fmt: skip
        header = ("effort", "evaluation", "interval", "narrow enough", "median error", "largest", "covers 1")
        title = "The reference against itself with more and less timing"
        publish("efforts", title, header, rows, evaluator.target.fingerprint)


def _spread(values: Sequence[float]) -> tuple[str, str]:
    return f"{100 * statistics.median(values):.2f}%", f"{100 * max(values):.2f}%"


def _naive_ratio(task: Task) -> float:
    """In a process of its own, once what the evaluation before left has gone."""
    time.sleep(0.5)
    command = [sys.executable, "-m", "kernelwright.agent.bench", "naive"]
    done = subprocess.run(command, input=task.source, capture_output=True, text=True, check=True)
    return float(done.stdout)


def naive() -> None:
    """Time the reference on stdin twice in one process, as harnesses do (mean of ten); prints the ratio."""
    import torch

    torch.set_grad_enabled(False)
    torch.set_num_threads(physical_threads())
    module: dict[str, Any] = {}
    exec(sys.stdin.read(), module)
    models = [module["Model"](*module["get_init_inputs"]()) for _ in range(2)]
    inputs = module["get_inputs"]()
    first, second = (_mean_of_ten(partial(model, *inputs)) for model in models)
    print(first / second)


def _mean_of_ten(call: Callable[[], object]) -> float:
    for _ in range(3):
        call()
    start = time.perf_counter()
    for _ in range(10):
        call()
    return (time.perf_counter() - start) / 10


def rejections(
    names: Annotated[list[str] | None, typer.Argument(help="Tasks; the whole suite by default.")] = None,
) -> None:
    """Correct kernels that are rejected: the reference itself and what the builtin coder writes, by task.

    The honest candidates of the red team are among them too. One round of timing each: outputs of timed
    calls are held against the reference's as ever.
    """
    from kernelwright.agent.builtin.coder import BuiltinCoder  # imports torch

    away, errors = [], []
    once = Effort(rounds=1, processes=1, most_processes=1, half_width=1.0)
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
            evaluation = evaluator.evaluate(task, candidate, Measurement(("eager",), once))
            error = evaluation.correctness.error if evaluation.correctness else None
            said = (
                f"{evaluation.verdict} {evaluation.reason if error is None else f'{error:.2f} of the budget'}"
            )
            log(f"[{number}/{len(pairs)}] {task.id} {candidate.author}: {said}")
            if evaluation.verdict is not Verdict.correct:
                away.append((task.id, candidate.author, str(evaluation.verdict), evaluation.reason))
            elif error is not None:
                errors.append(error)
        rows = [("evaluated", f"{len(pairs)}", "", ""), ("rejected", f"{len(away)}", "", "")]
        cuts = statistics.quantiles(errors, n=100)
        rows += [("error, in budgets", f"median {cuts[49]:.3f}", f"99% {cuts[98]:.3f}", f"{max(errors):.3f}")]
        header = ("correct kernels", "", "", "largest")
        publish("rejections", "Correct kernels rejected", header, rows + away, evaluator.target.fingerprint)


def shortcuts(
    names: Annotated[list[str] | None, typer.Argument(help="Tasks; the whole suite by default.")] = None,
) -> None:
    """Ways to compute less that would go unnoticed: operators of each task's reference read less than all.

    Beside it what torch.allclose takes on one draw of the task's own inputs, with the tolerances of
    KernelBench's checker in its first version, 1e-2, and now, 1e-4.
    """
    found: list[tuple[str, Shortcut]] = []
    failed = []
    with Referee.start(cache=cache_folder()) as evaluator:
        tasks = sources.resolve(names) if names else sources.resolve([], suite="builtin")
        for number, task in enumerate(tasks, 1):
            try:
                result = evaluator.sessions.open(task).oracle.mutations(evaluator.sessions.protocol.families)
            except TaskError as error:
                failed.append((task.id, error.message))
                log(f"[{number}/{len(tasks)}] {task.id}: {error.message}")
                continue
            found += [(task.id, shortcut) for shortcut in result.tried if shortcut.changes]
            log(f"[{number}/{len(tasks)}] {task.id}: {len(result.unnoticed)} of {len(result.tried)}")
        kinds = dict.fromkeys(shortcut.reads for _, shortcut in found)
        rows = [(kind, *_unnoticed([s for _, s in found if s.reads == kind])) for kind in kinds]
        rows.append(("all", *_unnoticed([s for _, s in found])))
        rows += [(f"{task}: {s}", "", "", "", "", "") for task, s in found if s.noticed_by is None]
        rows += [(f"{task}: {why}", "", "", "", "", "") for task, why in failed]
        header = (
            "an operator reads of an operand",
            "tried",
            "allclose 1e-2",
            "allclose 1e-4",
            "our budgets, own inputs",
            "our budgets, all families",
        )
        title = "Ways to compute less that go unnoticed"
        publish("shortcuts", title, header, rows, evaluator.target.fingerprint)


def _unnoticed(shortcuts: Sequence[Shortcut]) -> tuple[str, ...]:
    """How many were tried, and how many of them each checker lets pass."""
    return (
        str(len(shortcuts)),
        *(str(sum(s.close[tolerance] for s in shortcuts)) for tolerance in (1e-2, 1e-4)),
        str(sum(s.noticed_by != "task" for s in shortcuts)),
        str(sum(s.noticed_by is None for s in shortcuts)),
    )
