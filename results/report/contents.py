"""Contents of a report of a run in any format (results/report/formats.py, results/report/page.py).

Each task's best kernel with the intervals of its speedups, KernelBench's aggregates per level and overall,
the tasks that measure nothing apart, and the environment with the command that reproduces the run.
"""

from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.records import LEAST_OWN, Environment, Interval, SizeResult
from kernelwright.kernelbench.speed_of_light import below_floor, score_of
from kernelwright.results import formatting
from kernelwright.results.deliverable import faster_baselines
from kernelwright.results.lessons import calibration, lessons
from kernelwright.results.report.spending import spending_tables
from kernelwright.results.report.tables import ReportTable
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall, RecordedAttempt, RecordedRun, TaskRun
from kernelwright.results.summary import Aggregate, Summary, TaskSummary, best_attempt, summary_of

COLUMNS = (
    "task",
    "verdict",
    "vs eager",
    "vs compile",
    "vs fastest",
    "own",
    "SOL",
    "time",
    "rounds",
    "stop reason",
)
SIZE_COLUMNS = ("size", "weight", "verdict", "time", "eager", "vs eager", "vs compile", "SOL")
AGGREGATE_COLUMNS = ("", "correct", "fast_1", "fast_2", "vs eager", "vs compile", "vs fastest", "SOL")
AGGREGATE_NOTE = (
    "fast_p: share of all tasks whose best kernel is correct and faster than p times eager by its whole "
    f"interval, with at least {LEAST_OWN:.0%} of its time in kernels of its own. Where a baseline is faster, "
    "the reference is submitted, and counts as 1. Speedups: geometric mean · mean · median over the n "
    "correct tasks. own: share of the time in kernels of its own. SOL: mean speed-of-light score, 0.5 for "
    "eager's time and 1 for the floor by the measured ceilings; >1: a time below that floor, so that a "
    "ceiling is wrong or less was computed."
)


_PREDICTIONS = (
    "Predicted and measured gains",
    "Gains are time before / after. Predictions are about correct kernels; a kernel made from one may fail.",
)
_MISSING = (
    "Baselines that were not available",
    "The fastest is that of the others. Without traffic, rooflines use the bandwidth measured once.",
)
_SLOWER = (
    "Tasks on which a baseline is faster than the best kernel",
    "By the whole interval of their ratio, or 3% in the median. best/ has the baseline, except CUDA graphs.",
)
_SIZES = "The task's time and speedup are of all calls, by weight. The coder was not shown hidden sizes."
_WHY = 160  # characters of a reason
_CHANGES = (
    "Measured gains of techniques",
    "Techniques advised on a correct kernel. Faster: by 2% or more.",
)


@dataclass(frozen=True)
class RunReport:
    """Contents of a report, read once."""

    run: RecordedRun
    summary: Summary
    tasks: tuple[TaskRun, ...]
    attempts: dict[str, list[RecordedAttempt]]  # by task id
    calls: tuple[LlmCall, ...] = ()
    where: str = "RUN"  # as commands name it

    @classmethod
    def read(cls, database: RunDatabase) -> "RunReport":
        """Read the report. Raises StorageError if the database cannot be read."""
        tasks = tuple(database.tasks())
        attempts = {task.task.id: database.attempts(task.task.id) for task in tasks}
        calls, url = tuple(database.llm_calls()), database.url
        path = url.database if url.get_backend_name() == "sqlite" else None
        named = str(Path(path).parent) if path is not None else "RUN"
        # From what was read, not from the database again: the run may be going on.
        summary = summary_of(tasks, attempts, calls)
        return cls(
            run=database.run, summary=summary, tasks=tasks, attempts=attempts, calls=calls, where=named
        )

    @property
    def environment(self) -> Environment | None:
        """Environment of the run, or else of its first evaluation."""
        evaluations = (attempt.evaluation for rows in self.attempts.values() for attempt in rows)
        return self.run.environment or next((found.environment for found in evaluations), None)

    def conditions(self) -> list[tuple[str, str]]:
        """Return the environment as (name, value) lines."""
        target, environment = self.run.target, self.environment
        machine = target.fingerprint
        used = {attempt.evaluation.target.device for rows in self.attempts.values() for attempt in rows}
        lines = [
            ("device", f"{', '.join(sorted(used | {target.device}))}: {machine.chip}"),
            ("threads", str(machine.threads)),
            ("memory", f"{machine.memory_bytes / 2**30:.1f} GiB"),
            ("last-level cache", f"{machine.last_level_cache_bytes / 2**20:.1f} MiB"),
            (
                "measured ceilings",
                formatting.ceilings(target.ceilings),
            ),
            ("system", machine.system),
            ("python", machine.python),
            ("torch", machine.torch),
            ("compiler", machine.compiler),
        ]
        if environment is not None:
            on = [layer.name for layer in environment.sandbox if layer.on]
            off = [f"{layer.name} ({layer.why})" for layer in environment.sandbox if not layer.on]
            lines.append(("sandbox layers on", ", ".join(on) or "none"))
            lines.append(("sandbox layers off", ", ".join(off) or "none"))
            lines.append(("caches", environment.caches))
            if environment.arrivals_per_s is not None:
                pause_s = 1 / environment.arrivals_per_s
                lines.append(("calls", f"one at a time, after random pauses of {pause_s:.3g} s on average"))
        if set_constants := self._set_constants():
            lines.append(("constants", set_constants))
        lines.append(("kernelwright", self.run.kernelwright))
        lines.append(("started", self.run.started))
        others = sum(
            attempt.evaluation.target.fingerprint != machine
            for rows in self.attempts.values()
            for attempt in rows
        )
        if others:
            lines.append(("attention", f"{others} evaluations were made on another machine or toolchain"))
        return lines

    def _set_constants(self) -> str:
        """Say in how many tasks constants are set, by the sizes for a GPU or on the command line."""
        changed = [entry.task for entry in self.tasks if entry.task.overrides]
        if not changed:
            return ""
        first, more = changed[0], ", …" if len(changed) > 1 else ""
        values = " ".join(f"{name}={value}" for name, value in first.overrides.items())
        return f"set in {len(changed)} of {len(self.tasks)} tasks: {first.id} {values}{more}"

    def tables(self) -> list[ReportTable]:
        """Return the further tables: baselines, where money and time went, calibration, lessons."""
        found = [
            ReportTable(f"{each.task} by size", _SIZES, SIZE_COLUMNS, rows)
            for each in self.summary.everything
            if (rows := [size_cells(result) for result in each.sizes])
        ]
        missing: list[tuple[str, ...]] = [
            (entry.task.id, name, formatting.one_line(why, _WHY))
            for entry in self.tasks
            if (best := best_attempt(self.attempts[entry.task.id])) and best.evaluation.timing is not None
            for name, why in best.evaluation.timing.failed_baselines.items()
        ]
        if missing:
            found.append(ReportTable(*_MISSING, ("task", "baseline", "why"), missing))
        bests = (best_attempt(self.attempts[entry.task.id]) for entry in self.tasks)
        slower = [row for best in bests if best is not None and (row := _slower(best))]
        if slower:
            found.append(
                ReportTable(
                    *_SLOWER, ("task", "baseline", "its time", "speedup of the best kernel over it"), slower
                )
            )
        found += spending_tables(self.attempts, self.calls)
        predictions = calibration.calibration(self.attempts.values())
        if predictions is not None:
            found.append(ReportTable(*_PREDICTIONS, calibration.COLUMNS, predictions.rows()))
        effects = [
            effect
            for entry in self.tasks
            for effect in lessons.effects_in(entry.task, self.attempts[entry.task.id])
        ]
        if effects:
            rows = [lesson.cells() for lesson in lessons.lessons_from(effects)]
            found.append(ReportTable(*_CHANGES, lessons.COLUMNS, rows))
        return found

    def reproduction(self) -> str:
        """Return the command line of the run, or its settings if none was recorded."""
        return self.run.command or "the command was not recorded; settings: " + self.settings()

    def settings(self) -> str:
        """Return the settings that have a value, without the sections they may be in."""
        values: dict[str, object] = {}
        for name, value in self.run.settings.items():
            values |= value if isinstance(value, dict) else {name: value}
        return (
            ", ".join(f"{name}={value}" for name, value in values.items() if value not in (None, []))
            or "none"
        )


def _slower(best: RecordedAttempt) -> tuple[str, ...]:
    """Return the row of the baseline that an attempt is furthest behind; empty if there is none."""
    faster = next(iter(faster_baselines(best)), None)
    if faster is None:
        return ()
    time = formatting.time(faster.time_us.median)
    return best.evaluation.task, faster.baseline, time, formatting.with_bounds(faster.ratio)


def cells(task: TaskSummary) -> tuple[str, ...]:
    """Return one row of the task table, in the order of COLUMNS."""
    return (
        task.label,
        task.verdict or "not tried",
        *(" ".join(said).strip() for said in speedups(task)),
        formatting.share(task.own_kernel_share),
        formatting.score(task.counted_score, task.below_floor),
        formatting.time(task.candidate_us.median if task.candidate_us else None),
        str(task.rounds),
        task.stop_reason or "interrupted or still running",
    )


def size_cells(result: SizeResult) -> tuple[str, ...]:
    """Return one row of the table of a task's sizes, in the order of SIZE_COLUMNS."""
    timing, speedup = result.timing, result.speedup
    times = (timing.candidate_us, timing.eager_us) if timing is not None else (None, None)
    return (
        f"{result.size}{' (hidden)' if result.size.hidden else ''}",
        f"{result.size.weight:g}",
        str(result.verdict).replace("_", " "),
        *(formatting.time(each.median if each is not None else None) for each in times),
        formatting.with_bounds(speedup.eager if speedup is not None else None),
        formatting.with_bounds(speedup.compile if speedup is not None else None),
        formatting.score(score_of(result), below_floor(result)),
    )


def aggregates(summary: Summary) -> list[tuple[str, Aggregate]]:
    """Return the named aggregates of a report: each level, all tasks, and those that measure nothing."""
    rows: list[tuple[str, Aggregate]] = [(f"level {level.level}", level) for level in summary.levels]
    rows.append(("all tasks", summary))
    if summary.measures_nothing:
        rows.append(("measure nothing (apart)", summary.measures_nothing_aggregate))
    return rows


def aggregate_cells(name: str, aggregate: Aggregate) -> tuple[str, ...]:
    """Return one row of the aggregate table, in the order of AGGREGATE_COLUMNS."""
    counted = aggregate.counted
    return (
        name,
        f"{aggregate.correct}/{aggregate.total}",
        formatting.share(aggregate.fast_1),
        formatting.share(aggregate.fast_2),
        _means(aggregate.geomean.eager, aggregate.mean.eager, aggregate.median.eager, counted.eager),
        _means(aggregate.geomean.compile, aggregate.mean.compile, aggregate.median.compile, counted.compile),
        _means(aggregate.geomean.fastest, aggregate.mean.fastest, aggregate.median.fastest, counted.fastest),
        f"{formatting.score(aggregate.speed_of_light_score)}{f' (n={counted.score})' * bool(counted.score)}",
    )


def speedups(task: TaskSummary) -> list[tuple[str, str]]:
    """Return the cells of the speedup columns: the number, or none, and its bounds or the reason."""
    if task.submitted:
        reasons = f"(by {task.submitted})", "", ""
        return [
            ("reference", reason) if found is not None else (formatting.NOTHING, "")
            for found, reason in zip(intervals(task), reasons, strict=True)
        ]
    return [(formatting.headline(found), formatting.bounds(found)) for found in intervals(task)]


def kinds(task: TaskSummary) -> list[formatting.Kind]:
    """Classify the speedups; one is "even" if its kernels are not known to be the candidate's own."""
    found = [formatting.kind(interval) for interval in intervals(task)]
    return ["even" if task.outcome == "not_own" and kind == "faster" else kind for kind in found]


def intervals(task: TaskSummary) -> tuple[Interval | None, Interval | None, Interval | None]:
    """Return the speedups that count over eager, compile and the fastest of all baselines."""
    return task.counted("eager"), task.counted("compile"), task.counted("fastest")


def cost(summary: Summary) -> str:
    return (
        f"{formatting.money(summary.usd)} for {summary.llm_calls} model calls, "
        f"{formatting.duration(summary.seconds)} of work"
    )


def _means(geomean: float | None, mean: float | None, median: float | None, n: int) -> str:
    if geomean is None:
        return formatting.NOTHING
    return f"{formatting.ratio(geomean)} · {formatting.ratio(mean)} · {formatting.ratio(median)} (n={n})"
