"""Prompts of the models: the templates of prompts/, filled in.

A `PromptSubject` is one attempt with its round. Code, outcome, metrics and advice in a prompt all come from
it, so that they cannot be of different candidates.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from kernelwright.agent.llm.model import Message
from kernelwright.agent.protocols import Attempt
from kernelwright.kernelbench.jit import flags
from kernelwright.kernelbench.records import (
    Advice,
    Interval,
    Language,
    Precision,
    ProductPrecision,
    Target,
    Task,
    Verdict,
    Work,
)
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


@dataclass(frozen=True)
class PromptSubject:
    """An attempt and the number of its round."""

    attempt: Attempt
    number: int

    @property
    def correct(self) -> bool:
        return self.attempt.evaluation.verdict is Verdict.correct


@dataclass(frozen=True)
class Situation:
    """Facts about a task, its machine and its work, for both roles."""

    task: Task
    target: Target
    work: Work
    lessons: tuple[str, ...] = ()  # measured effects of techniques on other tasks' kernels

    def facts(self) -> str:
        """Describe the measured ceilings of the machine and the least work of the task."""
        work, ceilings, mark = self.work, self.target.ceilings, self.target.fingerprint
        cache_mib = mark.last_level_cache_bytes >> 20
        products = (
            f" and do {work.flops / 1e9:.3g} GFLOP in products{_least_us(work.products_s(ceilings))}"
            if work.flops
            else ""
        )
        rates = (
            ("memory is copied at", ceilings.copy_bytes_s, "B/s"),
            ("data in the cache at", ceilings.cached_copy_bytes_s, "B/s"),
            *(self._peak(precision) for precision in work.products or (self.task.product_precision,)),
        )
        measured = ", ".join(f"{what} {_scaled(rate)}{unit}" for what, rate, unit in rates if rate)
        with_threads = f", {mark.threads} threads" if self.target.device == "cpu" else ""
        with_compiler = f", {mark.compiler}" if self.target.device == "cpu" else ""
        return (
            f"{mark.chip}{with_threads}, a last-level cache of {cache_mib} MiB{with_compiler}, "
            f"torch {mark.torch}. Measured: {measured or 'nothing'}.\n"
            f"A call must read and write {work.moved_bytes / 1e6:.3g} MB at least"
            f"{_least_us(work.copy_s(ceilings))}{products}."
        )

    def _peak(self, precision: ProductPrecision | None) -> tuple[str, float | None, str]:
        """Return what is said of the ceiling of products, and its rate."""
        way = self.target.ceilings.fastest(precision)
        otherwise = f", computed in {way}," if way != precision else ""
        what = f"a large {precision or 'untyped'} product{otherwise} runs at"
        return what, self.target.ceilings.flops_s(precision), "FLOP/s"


def _scaled(rate: float) -> str:
    """Format a rate in units of 10^9 or 10^12: `20 G`, `989 T`."""
    return f"{rate / 1e12:.4g} T" if rate >= 1e13 else f"{rate / 1e9:.4g} G"


def _least_us(seconds: float | None) -> str:
    """Format a least time, in brackets; empty if it is unknown."""
    return f" ({1e6 * seconds:.4g} us)" if seconds is not None else ""


# Of a task where so many attempts are known, in this language.
Situations = Callable[[Task, int, Language], Situation]


def coder_messages(
    situation: Situation,
    language: Language,
    shown: PromptSubject | None,
    failed: PromptSubject | None,
    advice: Advice | None,
    is_best: bool = False,
) -> tuple[Message, ...]:
    """Return the coder's prompt.

    `shown` is the attempt to start from, the best so far or another; `failed` a later attempt made from it
    that failed. `advice` is on `shown`.
    """
    assert advice is None or shown is None or advice.about in ("", shown.attempt.candidate.sha256)
    mark = situation.target.fingerprint
    guide = _template(f"guide_{language}.md").render(
        threads=mark.threads, cache_mib=mark.last_level_cache_bytes >> 20, flags=" ".join(flags.DEFAULT)
    )
    system = _template("coder_system.md").render(
        language=language,
        names=NAMES,
        precision=_in_words(situation.task.effective_precision),
        guide=guide,
        example=(FOLDER / "examples" / f"{language}.py").read_text(),
    )
    user = _template("coder.md").render(
        task=situation.task,
        facts=situation.facts(),
        lessons=situation.lessons,
        shown=shown and shown.attempt,
        shown_round=shown and shown.number,
        shown_is_best=is_best,
        shown_correct=shown is not None and shown.correct,
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
) -> tuple[Message, ...]:
    """Return the judge's prompt.

    `record`: predicted and measured gains, a line each. `besides`: advice that others follow.
    """
    mode: Mode = "optimization" if shown.correct else "correction"
    language = shown.attempt.candidate.language
    names = {"mode": mode, "language": NAMES.get(language, "PyTorch"), "techniques": TECHNIQUES}
    user = _template("judge.md").render(
        **names,
        task=situation.task,
        facts=situation.facts(),
        lessons=situation.lessons,
        shown=shown.attempt,
        shown_round=shown.number,
        metrics=described(metrics),
        record=record,
        besides=besides,
        outcome=outcome,
    )
    system = _template("judge_system.md").render(**names)
    return Message(role="system", content=system), Message(role="user", content=user)


def outcome(attempt: Attempt) -> str:
    """Describe the outcome of a candidate, as far as it helps to write the next one."""
    evaluation = attempt.evaluation
    if evaluation.verdict is not Verdict.correct:
        return f"Result: {evaluation.verdict}.\n```\n{essence(evaluation.reason)}\n```"
    timing, speedup = evaluation.timing, evaluation.speedup
    if timing is None or speedup is None or speedup.eager is None:
        return f"Result: correct, {evaluation.reason}."
    lines = [
        f"Result: correct, {_of(timing.candidate_us)} us a call, {_of(speedup.eager)} times as fast as eager."
    ]
    if attempt.profile is not None and (light := in_words(attempt.profile)):
        lines.append(f"That is {light}; bound by {attempt.profile.bottleneck}.")
    if attempt.profile is not None:
        lines += [f"- {finding.says} {finding.fix}" for finding in attempt.profile.findings[:_MOST_FINDINGS]]
    return "\n".join(lines)


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


def _in_words(precision: Precision) -> str:
    return "each its own" if precision is Precision.task else str(precision)


def _of(interval: Interval) -> str:
    return f"{interval.median:.4g} [{interval.low:.4g}, {interval.high:.4g}]"


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
