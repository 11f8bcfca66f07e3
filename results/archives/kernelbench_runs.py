"""Run folders of KernelBench (github.com/ScalingIntelligence/KernelBench, runs/NAME), read and written.

    level_1_problem_23_sample_0_kernel.py    what a model wrote
    eval_results.json                        {"23": [{"sample_id": 0, "compiled": true, "correctness": true,
                                               "metadata": {"hardware": "…"}, "runtime": 0.61, …}], …}

Times are in milliseconds. Until October 2025 a problem had one result, not a list of them. Upstream's folders
have the time of the reference elsewhere; `ref_runtime` of its evaluator, which is written here, is read where
it is there.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, JsonValue, ValidationError

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.records import Evaluation, Interval, Verdict
from kernelwright.kernelbench.speed_of_light import score_of
from kernelwright.kernelbench.text_files import text_of
from kernelwright.results.archives.records import PublishedClaim, PublishedKernel
from kernelwright.results.report.contents import RunReport
from kernelwright.results.store.folder import write_atomically
from kernelwright.results.store.records import RecordedAttempt
from kernelwright.results.summary import best_attempt

RESULTS = "eval_results.json"
AUDIT = "audit"  # the key of a run's settings that an audit has, whose rounds are samples
_NAME = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
_NUMBERED = re.compile(r".*:(\d+)/(\d+)")  # ids of tasks that are problems of KernelBench
_NO_TIME = -1.0  # upstream's, of what was not timed
_NO_MEMORY = "out of memory"  # as CUDA says; such a result is of their GPU, not of the kernel


class _EvalResult(BaseModel):
    sample_id: int = 0
    compiled: bool = True
    correctness: bool
    metadata: dict[str, Any] = Field(default_factory=dict)
    runtime: float = _NO_TIME
    ref_runtime: float = _NO_TIME

    @property
    def claim(self) -> PublishedClaim:
        times = self.runtime, self.ref_runtime
        timed = self.correctness and all(0 < time < math.inf for time in times)
        device, hardware = (str(self.metadata.get(name, "")) for name in ("device", "hardware"))
        correct = self.compiled and self.correctness
        return PublishedClaim(
            correct=None if not correct and _NO_MEMORY in str(self.metadata) else correct,
            eager=self.ref_runtime / self.runtime if timed else None,
            device="cpu" if device == "cpu" else "cuda",
            hardware=hardware,
        )


def read(path: Path) -> tuple[list[PublishedKernel], list[str]]:
    """Return the kernels of a run folder with their claims, and a line for whatever is left out.

    A folder without kernels may hold folders of levels, as `write` makes them. Raises UsageError.
    """
    kernels: dict[tuple[int, int, int], PublishedKernel] = {}
    left_out: list[str] = []
    folders = [path] if _files(path) else sorted(each for each in path.iterdir() if each.is_dir())
    for folder in folders:
        if not (files := _files(folder)):
            continue
        claims, problems = _claims(folder, sorted({level for level, _, _ in files}))
        left_out += problems
        for key, file in files.items():
            if key in kernels:
                raise UsageError(
                    f"{kernels[key].where} and {file} are the same sample of the same problem",
                    "give one run folder",
                )
            try:
                source = text_of(file)
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                left_out.append(f"{file.name} cannot be read: {why}")
                continue
            level, problem, sample = key
            kernels[key] = PublishedKernel(
                level=level,
                problem=problem,
                sample=sample,
                source=source,
                claim=claims.pop(key, PublishedClaim()),
                where=str(file),
            )
        if missing := len(claims.keys() - files.keys()):
            left_out.append(f"{folder / RESULTS}: {missing} results are of kernels that are not there")
    return list(kernels.values()), left_out


def _files(folder: Path) -> dict[tuple[int, int, int], Path]:
    """Return the kernels of a folder by level, problem and sample."""
    named = ((_NAME.fullmatch(file.name), file) for file in folder.iterdir())
    return {(int(m[1]), int(m[2]), int(m[3])): file for m, file in named if m and file.is_file()}


def _claims(folder: Path, levels: list[int]) -> tuple[dict[tuple[int, int, int], PublishedClaim], list[str]]:
    """Return the results of a folder's kernels, which are of one level, and a line for each left out."""
    file = folder / RESULTS
    if not file.exists():
        return {}, []
    try:
        found = json.loads(text_of(file))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", "check its permissions") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{file} is damaged: {' '.join(str(error).split())}", "correct it, or take it out of the folder"
        ) from None
    if not isinstance(found, dict):
        raise UsageError(f"{file} is not of KernelBench's form", "take it out of the folder")
    if len(levels) != 1:
        return {}, [f"{file}: its results are left out, for the folder has several levels"]
    claims: dict[tuple[int, int, int], PublishedClaim] = {}
    left_out: list[str] = []
    for problem, results in found.items():
        for result in results if isinstance(results, list) else [results]:
            try:
                parsed = _EvalResult.model_validate(result)
                claims[levels[0], int(problem), parsed.sample_id] = parsed.claim
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"])) or "it"
                left_out.append(f"{file}, problem {problem}: {where}: {first['msg']}")
            except ValueError:
                left_out.append(f"{file}: '{problem}' is no number of a problem")
    return claims, left_out


@dataclass(frozen=True)
class JudgedSample:
    """An attempt at a problem of KernelBench, as a sample for it."""

    level: int
    problem: int
    sample: int
    attempt: RecordedAttempt

    @property
    def file(self) -> str:
        return f"level_{self.level}_problem_{self.problem}_sample_{self.sample}_kernel.py"

    @property
    def result(self) -> dict[str, JsonValue]:
        """Return its entry of eval_results.json."""
        evaluation = self.attempt.evaluation
        timing, speedup, target = evaluation.timing, evaluation.speedup, evaluation.target
        metadata: dict[str, JsonValue] = {
            "hardware": target.fingerprint.chip,
            "device": target.device,
            "verdict": str(evaluation.verdict),
            "reason": evaluation.reason,
            "own_kernel_share": evaluation.own_kernel_share,
            "speed_of_light_score": score_of(evaluation),
        }
        for name in ("eager", "compile"):
            interval: Interval | None = getattr(speedup, name, None)
            if interval is not None:
                metadata[f"speedup_{name}"] = [interval.low, interval.median, interval.high]
        timed = evaluation.verdict is Verdict.correct and timing is not None
        candidate = timing.candidate_us if timing is not None and timed else None
        eager = timing.eager_us if timing is not None and timed else None
        return {
            "sample_id": self.sample,
            "compiled": evaluation.verdict is not Verdict.build_error,
            "correctness": evaluation.right,
            "metadata": {name: value for name, value in metadata.items() if value is not None},
            "runtime": _ms(candidate),
            "runtime_stats": _stats(candidate, evaluation),
            "ref_runtime": _ms(eager),
            "ref_runtime_stats": _stats(eager, evaluation),
        }


def samples(report: RunReport) -> list[JudgedSample]:
    """Return the attempts at problems of KernelBench: all of an audit, of another run the best of each."""
    every = AUDIT in report.run.settings
    found: list[JudgedSample] = []
    for entry in report.tasks:
        numbers = _NUMBERED.fullmatch(entry.task.id)
        attempts = report.attempts[entry.task.id]
        if numbers is None or not attempts:
            continue
        level, problem = int(numbers[1]), int(numbers[2])
        if every:
            found += [JudgedSample(level, problem, attempt.round, attempt) for attempt in attempts]
        else:
            found.append(JudgedSample(level, problem, 0, best_attempt(attempts) or attempts[-1]))
    return found


def write(judged: Iterable[JudgedSample], where: Path) -> list[Path]:
    """Write a run folder for each level, `where`/level1 and so on, and return these. Raises StorageError.

    A result that no kernel is left of any more stays with none: write into a new folder.
    """
    levels: dict[int, list[JudgedSample]] = {}
    for sample in judged:
        levels.setdefault(sample.level, []).append(sample)
    folders = {level: where / f"level{level}" for level in sorted(levels)}
    try:
        for level, folder in folders.items():
            results: dict[str, list[dict[str, JsonValue]]] = {}
            for sample in sorted(levels[level], key=lambda each: (each.problem, each.sample)):
                write_atomically(folder / sample.file, sample.attempt.candidate.source)
                results.setdefault(str(sample.problem), []).append(sample.result)
            write_atomically(folder / RESULTS, json.dumps(results, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise StorageError(
            f"{where} cannot be written ({error.strerror or error})", "choose another folder"
        ) from error
    return list(folders.values())


def _ms(interval: Interval | None) -> float:
    return _NO_TIME if interval is None else interval.median / 1e3


def _stats(interval: Interval | None, evaluation: Evaluation) -> dict[str, JsonValue]:
    """Return the median and its 95% interval in ms, for upstream's statistics are of single calls."""
    if interval is None:
        return {}
    ms = {name: getattr(interval, name) / 1e3 for name in ("median", "low", "high")}
    return {**ms, "hardware": evaluation.target.fingerprint.chip, "device": evaluation.target.device}
