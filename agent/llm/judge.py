"""The language-model judge: finds the fault of a failed candidate, the bottleneck of a correct one.

After CudaForge (arXiv:2511.01884): one critical issue, or one bottleneck with one method, at a time. The
judge's claims about metrics are checked against the profile before anybody acts on them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, PositiveFloat

from kernelwright.agent.llm.coder import start_of
from kernelwright.agent.llm.model import ChatModel, ModelCall, ModelRefused, ReplyUnusable, Sampling
from kernelwright.agent.llm.prompting import (
    TECHNIQUES,
    PromptSubject,
    judge_messages,
    metrics_of,
)
from kernelwright.agent.llm.reply.structured import ask
from kernelwright.agent.llm.runtime import Runtime
from kernelwright.agent.llm.situation import Situation, Situations
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search import rounds_of
from kernelwright.kernelbench.records import Advice, Record, Task
from kernelwright.profiling.records import Metric
from kernelwright.profiling.selection import Selection
from kernelwright.results.lessons.calibration import corrects, measured_gain

_CORRECTIONS = 2  # in a row, then the best file is gone on from
_CLOSE = 0.02  # a claimed value may be off by: it is shown rounded
_LARGEST_GAIN = 100.0


# A name of its own making is not worth another turn.
Technique = Annotated[
    Literal[TECHNIQUES],  # type: ignore[valid-type]  # a tuple is what it takes
    BeforeValidator(lambda name: name if name in TECHNIQUES or not isinstance(name, str) else "other"),
]


class Claim(Record):
    metric: str
    value: float


class Optimization(Record):
    """One bottleneck, one method, one plan."""

    bottleneck: str
    technique: Technique
    method: str
    plan: str
    evidence: tuple[Claim, ...]
    predicted_gain: PositiveFloat


class Correction(Record):
    critical_issue: str
    why: str
    minimal_fix: str


@dataclass(frozen=True)
class LlmJudge:
    model: ChatModel
    sampling: Sampling
    runtime: Runtime
    situation: Situations
    selection: Selection | None = None  # of metrics

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice:
        """Advise on the attempt to continue from; unusable answers of the model give advice that says so.

        Raises ModelAbsent or BudgetSpent.
        """
        return self._on(task, history, _subject(history), ())

    def advise_on(
        self, task: Task, history: Sequence[Attempt], attempt: Attempt, besides: Sequence[Advice]
    ) -> Advice:
        """Advise on an attempt of the history, with something other than the advice in `besides`."""
        subject = PromptSubject(attempt, next(i for i, other in enumerate(history) if other is attempt))
        return self._on(task, history, subject, besides)

    def _on(
        self, task: Task, history: Sequence[Attempt], shown: PromptSubject, besides: Sequence[Advice]
    ) -> Advice:
        situation = self.situation(task, len(history), shown.attempt.candidate.language)
        return self.runtime.wait(self._advise(situation, history, shown, besides))

    async def _advise(
        self,
        situation: Situation,
        history: Sequence[Attempt],
        shown: PromptSubject,
        besides: Sequence[Advice],
    ) -> Advice:
        metrics = metrics_of(shown.attempt, self.selection) if shown.correct else ()
        call = ModelCall(
            role="judge",
            task=situation.task.id,
            messages=judge_messages(situation, shown, metrics, predictions(history), besides, history),
            sampling=self.sampling,
            sample=len(rounds_of(history)),
        )
        about = shown.attempt.candidate.sha256
        try:
            if not shown.correct:
                found = await ask(self.model, call, Correction)
                return Advice(
                    bottleneck=found.critical_issue,
                    method=found.why,
                    plan=found.minimal_fix,
                    technique=_technique_of(shown.attempt),
                    predicted_gain=1.0,
                    about=about,
                )
            plan = await ask(self.model, call, Optimization, lambda reply: _objection(reply, metrics))
        except (ReplyUnusable, ModelRefused) as error:
            return Advice(
                bottleneck="unknown",
                method=f"the judge gave no usable answer ({error})",
                plan="change what you think costs most",
                predicted_gain=1.0,
                about=about,
            )
        return Advice(
            bottleneck=plan.bottleneck,
            method=plan.method,
            plan=plan.plan,
            technique=plan.technique,
            evidence={claim.metric: claim.value for claim in plan.evidence},
            predicted_gain=plan.predicted_gain,
            about=about,
        )


class SilentJudge:
    """Says which attempt to go on from, as a model would be asked about, and nothing more."""

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice:
        return self.advise_on(task, history, _subject(history).attempt, ())

    def advise_on(
        self, task: Task, history: Sequence[Attempt], attempt: Attempt, besides: Sequence[Advice]
    ) -> Advice:
        return Advice(
            bottleneck="",
            method="",
            plan="",
            technique="" if PromptSubject(attempt, 0).correct else _technique_of(attempt),
            predicted_gain=1.0,
            about=attempt.candidate.sha256,
        )


def _technique_of(attempt: Attempt) -> str:
    """Return the technique that an attempt tries, which whoever corrects it goes on with."""
    return attempt.advice.technique if attempt.advice is not None else ""


def _subject(history: Sequence[Attempt]) -> PromptSubject:
    """Return the attempt to advise on: the last one while it is worth fixing, else the best."""
    best, files = start_of(history, None), rounds_of(history).usable
    assert best is not None, "nothing was written yet"
    if not files:  # but a seed
        return best
    number = next(i for i, other in enumerate(history) if other is files[-1])
    last = PromptSubject(files[-1], number)
    repeated = any(a.candidate.sha256 == last.attempt.candidate.sha256 for a in history[:number])
    if last.correct or repeated:
        return best
    failures = 0
    for attempt in reversed(files):
        if PromptSubject(attempt, 0).correct:
            break
        failures += 1
    return best if best.correct and failures > _CORRECTIONS else last


def _objection(reply: Optimization, metrics: Sequence[Metric]) -> str | None:
    """Return the first false claim of a reply; None if there is none."""
    known: dict[str, list[float]] = {}  # of each kernel, or of the whole call
    for metric in metrics:
        known.setdefault(metric.name, []).append(metric.value)
    for claim in reply.evidence:
        if claim.metric not in known:
            names = ", ".join(known) or "none"
            return f"unknown metric '{claim.metric}'; available: {names}"
        values = known[claim.metric]
        if not any(math.isclose(claim.value, value, rel_tol=_CLOSE) for value in values):
            listed = " or ".join(f"{value:.6g}" for value in values)
            return f"{claim.metric} is {listed}, not {claim.value:.6g}"
    if not reply.predicted_gain <= _LARGEST_GAIN:
        return f"invalid predicted gain {reply.predicted_gain:g}; it must be time before / time after"
    return None


def predictions(history: Sequence[Attempt]) -> list[str]:
    """Return the predicted and measured gains on correct files, a line each.

    The result of an idea is the first correct file of those that it was corrected to.
    """
    correct = {a.candidate.sha256 for a in history if PromptSubject(a, 0).correct}
    lines = []
    for number, attempt in enumerate(history):
        advice = attempt.advice
        if advice is None or advice.about not in correct or advice.predicted_gain == 1.0:
            continue
        if corrects(attempt, history):
            continue
        predicted = f"round {number}, {advice.method}: predicted {advice.predicted_gain:.2f}"
        came = measured_gain(attempt, history)
        if came is not None:
            lines.append(f"{predicted}, measured {came:.2f}")
        else:
            lines.append(f"{predicted}, the file failed ({attempt.evaluation.verdict})")
    return lines
