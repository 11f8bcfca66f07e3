"""Prompts of the models: the templates of prompts/, filled in.

A `PromptSubject` is one attempt with its round. Code, outcome, metrics and advice in a prompt all come from
it, so that they cannot be of different candidates.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from kernelwright.agent.llm.model import Message
from kernelwright.agent.llm.situation import Situation, operators_table, tried_table
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search import needs_a_gpu
from kernelwright.kernelbench.chips.cost_model import STATED_ERROR
from kernelwright.kernelbench.evaluator.workloads import HIDDEN
from kernelwright.kernelbench.jit import flags
from kernelwright.kernelbench.records import (
    Advice,
    Build,
    Evaluation,
    Interval,
    Language,
    SizeResult,
    Task,
    Verdict,
)
from kernelwright.kernelbench.speed_of_light import score_in_words, score_of
from kernelwright.profiling.records import Metric
from kernelwright.profiling.roofline import in_words
from kernelwright.profiling.selection import Selection, judged_by
from kernelwright.profiling.tables import described

FOLDER = Path(__file__).parent / "prompts"
NAMES = {"cpp": "C++", "triton": "Triton", "cuda": "CUDA"}
_MOST_FINDINGS = 5  # of a profile
_MOST_ERROR = 3000  # characters of a failure
_CONTEXT = 3  # lines after one that names an error

# General names of methods, so that effects can be compared across tasks.
TECHNIQUES = (
    "fuse operations",
    "fewer passes over memory",
    "vectorize",
    "parallelize",
    "balance the load",
    "tile for a cache or shared memory",
    "keep in registers",
    "coalesce or align accesses",
    "streaming stores",
    "prefetch",
    "unroll or pipeline",
    "simplify the arithmetic",
    "cheaper functions within the error budget",
    "matrix units",
    "library call instead of own kernel",
    "own kernel instead of library call",
    "fewer launches or synchronizations",
    "launch configuration",
    "other",
)

Mode = Literal["correction", "optimization"]
_FLAGS = " ".join(flags.DEFAULT)


@dataclass(frozen=True)
class PromptSubject:
    """An attempt and the number of its round."""

    attempt: Attempt
    number: int

    @property
    def correct(self) -> bool:
        """True if its outputs are right, though there may be no GPU to time it on."""
        return self.attempt.evaluation.verdict is Verdict.correct or needs_a_gpu(self.attempt)


def coder_messages(
    situation: Situation,
    language: Language,
    shown: PromptSubject | None,
    failed: PromptSubject | None,
    advice: Advice | None,
    is_best: bool = False,
    history: Sequence[Attempt] = (),
) -> tuple[Message, ...]:
    """Return the coder's prompt.

    `shown` is the attempt to start from, the best so far or another; `failed` a later attempt made from it
    that failed. `advice` is on `shown`. The system message is the same for all tasks of a language, so that
    endpoints cache it.
    """
    assert advice is None or shown is None or advice.about in ("", shown.attempt.candidate.sha256)
    system = _template("coder_system.md").render(
        language=language, names=NAMES, flags=_FLAGS, examples=examples(language)
    )
    user = _template("coder.md").render(
        **_of_task(situation, language, history),
        shown=shown and shown.attempt,
        shown_round=shown and shown.number,
        shown_is_best=is_best,
        shown_correct=shown is not None and shown.correct,
        untimed=shown is not None and needs_a_gpu(shown.attempt),
        failed=failed and failed.attempt,
        failed_round=failed and failed.number,
        advice=advice,
        outcome=outcome,
    )
    return Message(role="system", content=system), Message(role="user", content=user)


def judge_messages(
    situation: Situation,
    shown: PromptSubject,
    metrics: Sequence[Metric],
    record: Sequence[str],
    besides: Sequence[Advice] = (),
    history: Sequence[Attempt] = (),
) -> tuple[Message, ...]:
    """Return the judge's prompt.

    `record`: predicted and measured gains, a line each. `besides`: advice that others follow.
    """
    mode: Mode = "optimization" if shown.correct else "correction"
    language = shown.attempt.candidate.language
    names = {"mode": mode, "language": NAMES.get(language, "PyTorch"), "techniques": TECHNIQUES}
    guide = _template(f"guides/{language}.md").render(flags=_FLAGS) if language in NAMES else ""
    user = _template("judge.md").render(
        **names,
        **_of_task(situation, language, history),
        shown=shown.attempt,
        shown_round=shown.number,
        metrics=described(metrics),
        record=record,
        besides=besides,
        outcome=outcome,
    )
    system = _template("judge_system.md").render(**names, guide=guide)
    return Message(role="system", content=system), Message(role="user", content=user)


def agent_messages(
    situation: Situation,
    language: Language,
    history: Sequence[Attempt],
    best: PromptSubject | None,
    budget: str,
    compacted: bool = False,
) -> tuple[Message, ...]:
    """Return the messages that a conversation with tools begins with, or goes on from once `compacted`.

    `budget`: what is left, in words.
    """
    system = _template("agent_system.md").render(language=language, names=NAMES, flags=_FLAGS)
    user = _template("agent.md").render(
        **_of_task(situation, language, history),
        best=best and best.attempt,
        best_number=best and best.number,
        budget=budget,
        compacted=compacted,
        outcome=outcome,
    )
    return Message(role="system", content=system), Message(role="user", content=user)


def notes(topic: Literal["rules", "interface", "guide"], language: Language) -> str:
    """Return the rules that files are judged by, their interface, or the guide of a language."""
    name = f"guides/{language}.md" if topic == "guide" else f"{topic}.md"
    return _template(name).render(flags=_FLAGS)


def sizes_note(task: Task) -> str:
    """Return what is told of the sizes of a task; empty if it has one."""
    return _template("sizes.md").render(task=task).strip()


def task_note(task: Task, history: Sequence[Attempt]) -> str:
    """Return a task's text, its sizes and the operators that eager runs."""
    parts = (f"```python\n{task.source.strip()}\n```", sizes_note(task), operators_table(history))
    return "\n\n".join(part.strip() for part in parts if part.strip())


def repair_message(failed: Attempt) -> str:
    """Return what a model is told whose file has failed, in the conversation that it is from."""
    return _template("repair.md").render(outcome=outcome(failed))


def _of_task(situation: Situation, language: Language, history: Sequence[Attempt]) -> dict[str, object]:
    """Return what both roles are told of a task."""
    return {
        "task": situation.task,
        "hardware": situation.hardware(language),
        "goal": situation.goal(language, history),
        "operators": operators_table(history),
        "lessons": situation.lessons,
        "tried": tried_table(history),
    }


@dataclass(frozen=True)
class Example:
    """A file that a model is shown; `title`: the first line of its docstring."""

    title: str
    source: str


@cache
def examples(language: Language) -> tuple[Example, ...]:
    found = []
    for file in sorted((FOLDER / "examples" / language).glob("*.py")):
        source = file.read_text()
        title = (ast.get_docstring(ast.parse(source)) or file.stem).partition("\n")[0]
        found.append(Example(title, source))
    return tuple(found)


def outcome(attempt: Attempt) -> str:
    """Describe the outcome of a candidate, as far as it helps to write the next one."""
    evaluation = attempt.evaluation
    if needs_a_gpu(attempt):
        return "\n".join(
            ["Result: correct on every input; not timed, for lack of a GPU.", *_built(evaluation.builds)]
        )
    if evaluation.verdict is not Verdict.correct:
        failure = f"Result: {evaluation.verdict}.\n```\n{essence(evaluation.reason)}\n```"
        right_at = [str(each.size) for each in evaluation.sizes[:-1] if not each.size.hidden]
        return f"{failure}\nIt is right at {'; '.join(right_at)}." if right_at else failure
    timing, speedup = evaluation.timing, evaluation.speedup
    if timing is None or speedup is None or speedup.eager is None:
        return f"Result: correct, {evaluation.reason}."
    several = evaluation.sizes
    lines = [
        f"Result: correct{' at all sizes' if several else ''}, {_of(timing.candidate_us)} us a call, "
        f"{_of(speedup.eager)} times as fast as eager (with 95% intervals)."
    ]
    lines += [line for result in several if (line := _at_size(result))]
    if said := _score(evaluation):
        lines.append(f"Speed-of-light score (0.5 is eager, 1 the roofline): {said}.")
    if attempt.profile is not None and (light := in_words(attempt.profile)):
        that = f"At {several[0].size} it" if several else "That"
        lines.append(f"{that} is {light}; bound by {attempt.profile.bottleneck}.")
    if attempt.profile is not None:
        lines += [f"- {finding.says} {finding.fix}" for finding in attempt.profile.findings[:_MOST_FINDINGS]]
    return "\n".join(lines)


def _score(evaluation: Evaluation) -> str:
    """Describe the score and what is left; with hidden sizes the score alone, which hints at no floor."""
    if not any(each.size.hidden for each in evaluation.sizes):
        return score_in_words(evaluation)
    score = score_of(evaluation)
    return "" if score is None else f"{score:.2f}"


def _at_size(result: SizeResult) -> str:
    """Describe a result at one size; of a hidden one neither its shape nor a time, which would hint at it."""
    if result.timing is None or result.speedup is None or result.speedup.eager is None:
        return ""
    speedup = f"{_of(result.speedup.eager)} times as fast as eager"
    if result.size.hidden:
        return f"- at {HIDDEN}: {speedup}"
    time, weight = _of(result.timing.candidate_us), f"{result.size.weight:g}"
    return f"- at {result.size} (weight {weight}): {time} us, {speedup}"


def _built(builds: Sequence[Build]) -> list[str]:
    """Describe kernels as they were built for chips, a line each."""
    kernels = [
        f"- {kernel.name} on {build.chip}: {kernel.threads} threads a block, {kernel.registers} registers a "
        f"thread, {kernel.spills} spills, occupancy {kernel.occupancy:.0%} (limited by {kernel.limited_by})"
        + (
            f", predicted {kernel.predicted_us:.4g} us, bound by {kernel.bound}"
            if kernel.predicted_us
            else ""
        )
        for build in builds
        for kernel in build.kernels
    ]
    calls = [
        f"- a call on {build.card} ({build.chip}): predicted {build.predicted_us:.4g} us, by a model that "
        f"may be off by a factor of {STATED_ERROR:g}; not measured"
        for build in builds
        if build.predicted_us is not None
    ]
    return kernels + calls


def essence(reason: str) -> str:
    """Shorten a failure to the essential: of a compiler's output the errors with their source lines."""
    lines = reason.splitlines()
    if len(reason) <= _MOST_ERROR:
        return reason
    kept: list[int] = []
    for number, line in enumerate(lines):
        if re.search(r"\b(error|Error)\b", line):
            kept += [i for i in range(number, min(number + 1 + _CONTEXT, len(lines))) if i not in kept]
    chosen = "\n".join(lines[i] for i in kept) if kept else reason
    if len(chosen) > _MOST_ERROR:
        half = _MOST_ERROR // 2
        chosen = f"{chosen[:half]}\n[…]\n{chosen[-half:]}"
    return chosen


def metrics_of(attempt: Attempt, selection: Selection | None) -> tuple[Metric, ...]:
    """Return the metrics a judge may base its advice on."""
    return judged_by(attempt.profile.metrics, selection) if attempt.profile is not None else ()


def _of(interval: Interval) -> str:
    return f"{interval.median:.4g} ({interval.low:.4g} to {interval.high:.4g})"


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the output is Markdown, not HTML
    )


def _template(name: str) -> Template:
    return _environment().get_template(f"{name}.j2")
