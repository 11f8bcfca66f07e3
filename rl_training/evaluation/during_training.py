"""Evaluation on held-out tasks while a policy is trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import TrainerCallback

from kernelwright.kernelbench.records import Record
from kernelwright.results.store.encoding import record_text
from kernelwright.results.store.lines import append
from kernelwright.rl_training.environment.grader import Pool
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.evaluation.evaluate import PolicyEvaluation
from kernelwright.rl_training.evaluation.sampling import SamplingSettings
from kernelwright.rl_training.evaluation.scores import PolicyScores, flat, scores

HELD_OUT = "held_out.jsonl"


class HeldOutScores(Record):
    """Scores on the held-out tasks after a step; of several lines for a step the last counts."""

    step: int
    scores: PolicyScores


class HeldOutEvaluation(TrainerCallback):
    """Callback that evaluates every so many steps, in the first process; the others wait for it.

    Scores go to `held_out.jsonl` and, as `held_out_…`, into what is logged for the step: so it stands before
    the callbacks that write that. The trainer's random numbers stay as they were.
    """

    def __init__(
        self,
        tasks: Sequence[TaskData],
        pool: Pool,
        tokenizer: Any,
        sampling: SamplingSettings,
        every: int,
        folder: Path,
    ) -> None:
        self._tasks, self._pool, self._tokenizer, self._sampling = tasks, pool, tokenizer, sampling
        self._every, self._path = every, folder / HELD_OUT
        self._found: dict[int, dict[str, float]] = {}
        self._console = Console(stderr=True, highlight=False)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        step = state.global_step
        if not state.is_world_process_zero or step % self._every:
            return
        samples = PolicyEvaluation(self._tasks, self._pool, self._sampling).of(
            "policy", model, self._tokenizer
        )
        found = scores(samples, tuple(sorted({1, self._sampling.samples})))
        append(self._path, record_text(HeldOutScores(step=step, scores=found)))
        self._found[step] = dict(flat(found, "held_out_"))
        told = [f"{name} {value:.3g}" for name, value in flat(found, "").items()]
        self._console.print(f"step {step}, held out: {', '.join(told)}", markup=False, soft_wrap=True)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if logs is not None:
            logs.update(self._found.pop(state.global_step, {}))
