"""Simulation of what a budget buys on KernelBench's 250 problems, by the order of tasks.

    KERNELBENCH_DIR=... python -m benchmarks spending

Scheduler, budget, store, prompts and search are the real ones. Models and GPU are stand-ins
(`benchmarks/agent/stand_ins.py`): lengths and prices of answers are real ones, whether a round succeeds and
what it gains is assumed. Time is simulated, with 16 tasks at a time and one evaluation. Machine: any, with a
checkout of KernelBench. Time: 4 minutes (estimate). Writes static/spending.md.
"""

import heapq
import itertools
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.agent.stand_ins import EVALUATION_S, PRICE, TARGET, Nature, StandInModel, StandInPool
from benchmarks.publishing import STATIC, log, table
from kernelwright.agent.llm.budget import Budget
from kernelwright.agent.llm.endpoint.prices import Prices
from kernelwright.agent.llm.session import ModelSession
from kernelwright.agent.llm.stored import StoredModel
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.run import Run, TurnOutcome
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.options import build
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.sources.checkout import VARIABLE
from kernelwright.results.lessons.calibration import over_eager
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import write_atomically
from kernelwright.results.store.records import TaskState

_MODEL = "simulated"
_LEVELS = (1, 2, 3)
_MEMORY = Path("/dev/shm")  # where nothing waits for a disk
_HEADER = (
    "order", "spent", "tasks begun, by level", "skipped", "faster than eager, by level", "all",
    "by 1.2 and more", "geomean of all tasks", "calls", "hours",
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """A way to spend the budget."""

    name: str
    breadth_first: bool
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Spending:
    """Result of one simulated run. Tasks are counted by level."""

    usd: float
    begun: Mapping[int, int]
    skipped: int
    won: Mapping[int, int]
    won_by_a_fifth: int
    geomean: float
    calls: int
    hours: float


def run(
    kernelbench_dir: Annotated[Path, typer.Option(envvar=VARIABLE, help="A KernelBench checkout.")],
    usd: Annotated[float, typer.Option(help="Budget of the run.")] = 75.0,
    rounds: Annotated[int, typer.Option(help="Candidates for each task, at most.")] = 10,
    seeds: Annotated[int, typer.Option(help="Runs of each order.")] = 4,
) -> None:
    names = [f"kernelbench:{level}" for level in _LEVELS]
    tasks = [
        task for name in names for task in sources.resolve([], suite=name, kernelbench_dir=kernelbench_dir)
    ]
    share = round(usd / len(tasks), 2)
    ways = (
        Way("each task to its end, in order", False, {"all_tasks": True}),
        Way(
            f"the same, `--max-usd-per-task {share:.2f}`",
            False,
            {"all_tasks": True, "max_usd_per_task": share},
        ),
        Way("a first round for all, then by expected gain (the default)", True, {}),
    )
    rows = []
    for way in ways:
        options = {"max_usd": usd, "rounds": rounds, **way.options}
        found = [simulated(tasks, way.breadth_first, options, seed) for seed in range(seeds)]
        rows.append((way.name, *_cells(found)))
        log(" | ".join(rows[-1]))
    write_atomically(STATIC / "spending.md", _page(rows, len(tasks), usd, rounds, seeds))


def simulated(tasks: Sequence[Task], breadth_first: bool, options: Mapping[str, Any], seed: int) -> Spending:
    """Simulate a run."""
    natures = {task.id: Nature.of(task, seed) for task in tasks}
    pool, model = StandInPool(natures, seed), StandInModel(seed)
    config = build(
        RunConfig,
        {
            "coder": "llm", "model": _MODEL, "language": ("cuda",), "reply_tokens": 32768,
            "seed": "none", "parts": "none", **options,
        },
    )  # fmt: skip
    evaluation = config.evaluation.model_copy(update={"device": TARGET.device})
    config = config.model_copy(update={"evaluation": evaluation})
    roles = config.model.roles()
    assert roles is not None
    with (
        tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder,
        RunDatabase.create(Path(folder) / "run.db", settings={}, target=TARGET, tasks=tasks) as database,
    ):
        budget = Budget(Prices({_MODEL: PRICE}), config.budget.run, config.budget.task)
        asked = StoredModel(model, database, budget)
        with ModelSession(roles, TARGET, asked, budget, None) as models:
            played = Run(config, database, pool, models)  # type: ignore[arg-type]
            played.scheduler.breadth_first = breadth_first
            seconds = _play(played, pool, model)
        return _spending(database, budget.spent_on(None).usd, seconds)


def _play(run: Run, pool: StandInPool, model: StandInModel) -> float:
    """Take all turns as workers would whose evaluations wait for one device; the seconds that it takes."""
    now = device_free_at = 0.0
    under_way: list[tuple[float, int, Any, bool]] = []
    numbers = itertools.count()
    while True:
        while len(under_way) < run.workers and any(not each.taken for each in run.scheduler.tasks):
            turn = run.scheduler.take()
            assert turn is not None
            name = turn.open.task.id
            asked_s, evaluated = model.seconds.get(name, 0.0), pool.evaluated.get(name, 0)
            done = run.play(turn) is not TurnOutcome.goes_on
            at = now + model.seconds.get(name, 0.0) - asked_s
            if (new := pool.evaluated.get(name, 0) - evaluated) > 0:
                at = device_free_at = max(at, device_free_at) + new * EVALUATION_S
            heapq.heappush(under_way, (at, next(numbers), turn, done))
        if not under_way:
            return now
        now, _, turn, done = heapq.heappop(under_way)
        run.scheduler.put_back(turn, done=done)


def _spending(database: RunDatabase, usd: float, seconds: float) -> Spending:
    begun, won = Counter[int](), Counter[int]()
    skipped, speedups = 0, list[float]()
    for entry in database.tasks():
        attempts, level = database.attempts(entry.task.id), entry.task.level
        begun[level] += bool(attempts)
        skipped += entry.state is TaskState.done and not attempts
        speedups.append(max([1.0, *(over_eager(each.evaluation) or 0.0 for each in attempts)]))
        won[level] += speedups[-1] > 1.0
    return Spending(
        usd=usd,
        begun=begun,
        skipped=skipped,
        won=won,
        won_by_a_fifth=sum(speedup > 1.2 for speedup in speedups),
        geomean=statistics.geometric_mean(speedups),
        calls=len(database.llm_calls()),
        hours=seconds / 3600,
    )


def _cells(found: Sequence[Spending]) -> tuple[str, ...]:
    """Return a row of means over the runs of one way."""

    def mean(values: Sequence[float]) -> float:
        return statistics.mean(values)

    def by_level(counts: Sequence[Mapping[int, int]]) -> str:
        return " / ".join(f"{mean([count[level] for count in counts]):.0f}" for level in _LEVELS)

    won = [sum(each.won.values()) for each in found]
    return (
        f"${mean([each.usd for each in found]):.2f}",
        by_level([each.begun for each in found]),
        f"{mean([each.skipped for each in found]):.0f}",
        by_level([each.won for each in found]),
        f"{mean(won):.0f} ({min(won)} to {max(won)})",
        f"{mean([each.won_by_a_fifth for each in found]):.0f}",
        f"{mean([each.geomean for each in found]):.3f}",
        f"{mean([each.calls for each in found]):.0f}",
        f"{mean([each.hours for each in found]):.1f}",
    )


def _page(rows: Sequence[Sequence[str]], tasks: int, usd: float, rounds: int, seeds: int) -> str:
    lines = [
        f"# Simulated: {tasks} problems of KernelBench, ${usd:g}, {rounds} rounds at most",
        "",
        "Made by `python -m benchmarks spending`. Nothing here was measured: no model was asked, and no GPU "
        f"timed. Means of {seeds} runs with different seeds, in brackets the least and the most.",
        "",
        *table(_HEADER, rows),
        "",
        "Scheduler, budget, store, prompts and search are the real ones. Assumed are, in "
        "[stand_ins.py](../../../benchmarks/agent/stand_ins.py):",
        "",
        f"- **Cost**: ${PRICE.prompt:g} a million tokens of prompts (${PRICE.cached_prompt:g} if cached) and "
        f"${PRICE.completion:g} of answers; files of 1200 tokens at the median and 2800 at the 90th "
        "percentile, after 8000 tokens of thought, advice after 3000, on average.",
        "- **Time**: 150 tokens a second, 16 tasks at a time, 8 seconds an evaluation, one at a time.",
        "- **Headroom**: eager reaches 55% to 100% of the roofline in level-1 tasks that a library does "
        "(products, convolutions), 25% to 95% in others, 10% to 60% in level 2, 15% to 60% in level 3. "
        "Kernels can reach 60% of the way (as a logarithm) on average.",
        "- **Rounds**: a file is correct with a probability that depends on the task, on average 0.75, 0.65 "
        "and 0.45 by level. A first correct kernel closes 40% of the way on average, and is slower than that "
        "by a factor of 1.5 on average, 2.7 where eager calls a library. A change of a correct kernel makes "
        "it faster half the time and closes 40% of the rest then.",
        "",
    ]
    return "\n".join(lines)
