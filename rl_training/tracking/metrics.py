"""Metrics logged by a trainer: in metrics.jsonl, and now and then on the screen."""

from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import TrainerCallback

from kernelwright.results.store.encoding import record_text
from kernelwright.results.store.lines import append
from kernelwright.results.store.training import METRICS, Point
from kernelwright.rl_training.tracking.run import now


class MetricsFile(TrainerCallback):
    """Callback that appends a line per log; readers take the last for a step (`counted_once`)."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        values = {name: float(v) for name, v in (logs or {}).items() if isinstance(v, int | float)}
        append(self.path, record_text(Point(step=state.global_step, time=now(), values=values)))


class ProgressPrinter(TrainerCallback):
    """Callback that prints some twenty lines over a training to stderr."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        step, most = state.global_step, state.max_steps
        if not state.is_world_process_zero or step % max(1, most // 20):
            return
        values = logs or {}
        shown = ("reward", "valid_fraction", "speedup", "loss")
        told = [f"{name} {values[name]:.4g}" for name in shown if name in values]
        if told:
            self.console.print(f"step {step} of {most}: {', '.join(told)}", markup=False, soft_wrap=True)
