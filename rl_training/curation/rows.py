"""The rows of the data set: SFT samples, preference pairs, ranked lists, tasks."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kernelwright.agent.llm.coder import asked_for
from kernelwright.rl_training.curation.samples import Sample, TaskSamples
from kernelwright.rl_training.curation.selection import SelectedSample
from kernelwright.rl_training.environment.task_data import WinningKernel
from kernelwright.rl_training.other_trainers.rows import row

PAIRS = 4  # a task

Row = dict[str, Any]


def sft_row(chosen: SelectedSample) -> Row:
    """Return one prompt with one completion and its measurements."""
    sample, data = chosen.sample, chosen.task.data
    speedup = sample.speedup
    assert speedup is not None
    return {
        "prompt": _prompt(sample),
        "completion": _completion(sample),
        "reasoning": sample.written.reasoning,
        "concise": chosen.concise,
        **_of_task(chosen.task),
        "language": sample.candidate.language,
        "author": sample.candidate.author,
        "candidate": sample.candidate.sha256,
        "speedup_low": speedup.low,
        "speedup_median": speedup.median,
        "speedup_high": speedup.high,
        "own_kernel_share": sample.outcome.own_kernel_share,
        "chip": data.target.fingerprint.chip,
        "run": sample.run,
    }


def preference_rows(task: TaskSamples) -> Iterator[Row]:
    """Yield at most PAIRS pairs of the best sample and a surely worse one: slower by intervals, or wrong."""
    ranked = _ranked(task)
    best = ranked[0]
    if best.speedup is None:
        return
    worse = [s for s in ranked[1:] if s.speedup is None or s.speedup.high < best.speedup.low]
    for rejected in _spread(worse, PAIRS):
        yield {
            "prompt": _first_prompt(task),
            "chosen": _completion(best),
            "rejected": _completion(rejected),
            "chosen_speedup_low": best.low,
            "rejected_speedup_low": rejected.low,
            "rejected_verdict": str(rejected.outcome.verdict),
            **_of_task(task),
        }


def ranked_row(task: TaskSamples) -> Row | None:
    """Return all samples of a task, the best first (for RRHF); None if there is nothing to rank."""
    ranked = _ranked(task)
    if len(ranked) < 2 or ranked[0].speedup is None:
        return None
    return {
        "prompt": _first_prompt(task),
        "completions": [sample.written.reply for sample in ranked],
        "scores": [sample.low for sample in ranked],
        "verdicts": [str(sample.outcome.verdict) for sample in ranked],
        **_of_task(task),
    }


def task_row(task: TaskSamples) -> Row:
    """Return the row from which an environment is made: `data` is a `TaskData` as JSON.

    `prompt`, `answer` and `info` (JSON) are for any trainer: see `other_trainers.rows`.
    """
    best = max(task.correct, key=lambda sample: sample.low, default=None)
    winner = None
    if best is not None and best.speedup is not None:
        winner = WinningKernel(candidate=best.candidate, speedup=best.speedup)
    data = task.data.model_copy(update={"winner": winner})
    asked = row(data)
    return {
        "prompt": asked["prompt"],
        "answer": asked["answer"],
        "info": json.dumps(asked["info"]),
        **_of_task(task),
        "source": data.task.source,
        "best_speedup_low": best.low if best is not None else None,
        "data": data.model_dump_json(),
    }


def _of_task(task: TaskSamples) -> Row:
    return {
        "task": task.data.task.id,
        "task_sha256": task.data.task.sha256,
        "level": task.data.task.level,
        "family": task.data.family,
        "difficulty": task.difficulty,
    }


def _prompt(sample: Sample) -> list[Row]:
    return [message.model_dump() for message in sample.written.messages]


def _first_prompt(task: TaskSamples) -> list[Row]:
    """Return the first prompt of a task, used for all its replies whatever they answered."""
    data = task.data
    return [m.model_dump() for m in asked_for(data.situation, data.language, (), None).messages]


def _completion(sample: Sample) -> list[Row]:
    return [{"role": "assistant", "content": sample.written.reply}]


def _ranked(task: TaskSamples) -> list[Sample]:
    return sorted(task.samples, key=lambda sample: -sample.low)


def _spread(samples: Sequence[Sample], most: int) -> list[Sample]:
    """Return samples spread evenly over a list, its first and last included."""
    if len(samples) <= most:
        return list(samples)
    return [samples[round(i * (len(samples) - 1) / (most - 1))] for i in range(most)]
