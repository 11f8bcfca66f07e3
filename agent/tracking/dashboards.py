"""Dashboards of numbers over time, trackio's and Weights & Biases', which have the same functions."""

import contextlib
import importlib
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from kernelwright.kernelbench.records import Verdict
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall, RecordedAttempt, RecordedRun, TaskState

PROJECT = "kernelwright"


@dataclass(frozen=True)
class History:
    """Records that a run had when it went on."""

    run: RecordedRun
    calls: tuple[LlmCall, ...]
    attempts: tuple[RecordedAttempt, ...]
    done: int  # tasks

    @classmethod
    def of(cls, database: RunDatabase) -> Self:
        entries = database.tasks()
        attempts = (attempt for entry in entries for attempt in database.attempts(entry.task.id))
        done = sum(entry.state is TaskState.done for entry in entries)
        return cls(database.run, tuple(database.llm_calls()), tuple(attempts), done)


class Dashboard:
    """Tracker that logs dollars, tokens, counts, and the best speedup of each task so far."""

    def __init__(self, kind: Literal["trackio", "wandb"], history: "History", folder: Path) -> None:
        """Begin, or go on with, a run.

        trackio keeps its database in $TRACKIO_DIR, by default FOLDER/trackio, and needs no network.
        """
        run = history.run
        options: dict[str, Any] = {"config": run.settings, "resume": "allow"}
        if kind == "trackio":
            os.environ.setdefault("TRACKIO_DIR", str((folder / "trackio").resolve()))
            options |= {"project": PROJECT, "name": f"{folder.resolve().name}-{run.id[:8]}"}
            options |= {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        else:
            quiet = {"silent": True, "console": "off", "x_disable_stats": True}
            options |= {"project": os.environ.get("WANDB_PROJECT", PROJECT), "id": run.id, "settings": quiet}
            options |= {"name": os.environ.get("WANDB_NAME", folder.resolve().name), "dir": str(folder)}
        # trackio greets; standard output is for results.
        self._quiet = partial(contextlib.redirect_stdout, sys.stderr) if kind == "trackio" else nullcontext
        module = importlib.import_module(kind)
        online = kind == "wandb" and os.environ.get("WANDB_MODE", "online") == "online"
        if online and not module.login(prompt=False):  # `init` would ask for a key, in the midst of a status
            raise RuntimeError("it has no API key: set WANDB_API_KEY, or run `wandb login`")
        with self._quiet():
            self._run = module.init(**options)
        self._totals: Counter[str] = Counter()
        self._best: dict[str, float] = {}
        for call in history.calls:
            self._count(call)
        for attempt in history.attempts:
            self._judge(attempt)
        self._totals["tasks_done"] = history.done

    def call(self, call: LlmCall, at: float) -> None:
        self._count(call)
        self._log()

    def attempt(self, attempt: RecordedAttempt, at: float) -> None:
        self._judge(attempt)
        best = self._best.get(attempt.task)
        self._log({f"speedup/{attempt.task}": best} if best is not None else {})

    def done(self, task: str, reason: str, at: float) -> None:
        self._totals["tasks_done"] += 1
        self._log()

    def close(self) -> None:
        with self._quiet():
            self._run.finish()

    def _count(self, call: LlmCall) -> None:
        self._totals["calls"] += 1
        self._totals["tokens"] += call.prompt_tokens + call.completion_tokens
        self._totals["usd"] += call.usd or 0.0  # type: ignore[assignment]

    def _judge(self, attempt: RecordedAttempt) -> None:
        self._totals["attempts"] += not attempt.confirms
        speedup = attempt.evaluation.speedup
        self._totals["correct"] += attempt.evaluation.verdict is Verdict.correct and not attempt.confirms
        if speedup is not None and speedup.eager is not None:
            self._best[attempt.task] = max(speedup.eager.median, self._best.get(attempt.task, 0.0))

    def _log(self, more: Mapping[str, float] = MappingProxyType({})) -> None:
        best = [value for value in self._best.values() if value > 0]
        mean = {"speedup": math.exp(math.fsum(map(math.log, best)) / len(best))} if best else {}
        faster = {"tasks_faster": sum(value > 1 for value in best)}
        self._run.log({**self._totals, **faster, **mean, **more})
