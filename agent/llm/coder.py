"""The language-model coder."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kernelwright.agent.llm.model import (
    Message,
    ModelCall,
    ModelRefused,
    RecordedModel,
    ReplyUnusable,
    Sampling,
)
from kernelwright.agent.llm.prompting import NAMES, PromptSubject, coder_messages, repair_message
from kernelwright.agent.llm.reply.replies import candidate_source
from kernelwright.agent.llm.runtime import Runtime
from kernelwright.agent.llm.situation import Situation, Situations
from kernelwright.agent.protocols import Attempt, NoCandidate
from kernelwright.agent.search import best_of, rounds_of
from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.languages import LANGUAGES
from kernelwright.kernelbench.records import Advice, Candidate, Language, Task

_TURNS = 2  # of which the later ones say why a reply cannot be used
_SHOWN = 20_000  # characters of such a reply that the model is shown again
_IDEA = re.compile(r"^[\s*_#>-]*idea[\s*_]*:[\s*_]*(\S.*)$", re.IGNORECASE | re.MULTILINE)
_LONGEST_IDEA = 200  # characters


@dataclass(frozen=True)
class LlmCoder:
    """Coder that asks for one file a round: a first one, or one made from the attempt advised on."""

    model: RecordedModel
    sampling: Sampling
    runtime: Runtime
    situation: Situations
    language: Language

    @property
    def author(self) -> str:
        return f"llm:{self.sampling.model}"

    def propose(
        self,
        task: Task,
        history: Sequence[Attempt],
        advice: Advice | None,
        sample: int = 0,
        afresh: bool = False,
    ) -> Candidate:
        """Propose a candidate.

        Raises NoCandidate if the model's replies contain none, a ModelError if there are no replies.
        """
        situation = self.situation(task, len(history), self.language)
        asked = asked_for(situation, self.language, history, advice, afresh)
        call = ModelCall(
            role="coder", task=task.id, messages=asked.messages, sampling=self.sampling, sample=sample
        )
        return self.runtime.wait(self._answered(asked, call, history))

    def repair(self, task: Task, history: Sequence[Attempt], failed: Attempt) -> Candidate:
        """Go on with the conversation that a failed candidate is from: the model is told how it failed.

        Raises what `propose` does.
        """
        return self.runtime.wait(self._repaired(history, failed))

    def fallback(self, task: Task, history: Sequence[Attempt], best: Attempt) -> None:
        return None

    async def _repaired(self, history: Sequence[Attempt], failed: Attempt) -> Candidate:
        parent = failed.candidate
        answered = self.model.answered(parent.request)
        assert answered is not None, "an answer is recorded before its candidate"
        call, reply = answered
        asked = PromptSpec(
            messages=(
                *call.messages,
                Message(role="assistant", content=reply.text),
                Message(role="user", content=repair_message(failed)),
            ),
            language=parent.language,
            parent=parent,
            advice=failed.advice,
            origin="repair",
        )
        # With the limit of a first call: what was recorded may have been asked with twice as much.
        call = call.model_copy(update={"messages": asked.messages, "sampling": self.sampling})
        return await self._answered(asked, call, (*history, failed))

    async def _answered(self, asked: "PromptSpec", call: ModelCall, history: Sequence[Attempt]) -> Candidate:
        source = fault = request = ""
        for _ in range(_TURNS):
            request = call.sha256
            try:
                completion = await self.model.complete(call)
            except ModelRefused as error:
                fault = f"the model's endpoint refused the request: {error}"
                break
            reply, cut = completion.text, completion.finish == "length"
            try:
                source = candidate_source(reply, asked.parent_source)
                fault = objection(source, asked.language, history)
            except ReplyUnusable as error:
                source, fault = reply, str(error)
            if not fault:
                return asked.candidate(source, self.author, idea_of(reply), request)
            if cut:
                fault += f"; it was cut off after {completion.usage.completion_tokens} tokens: be brief"
            turns = (
                Message(role="assistant", content=reply[:_SHOWN] or "(nothing)"),
                Message(role="user", content=f"That cannot be used: {fault}. Give the whole file again."),
            )
            call = call.model_copy(update={"messages": (*call.messages, *turns)})
        candidate = asked.candidate(source[:_SHOWN], self.author, request=request)
        raise NoCandidate(candidate.model_copy(update={"usable": False}), fault)


@dataclass(frozen=True)
class PromptSpec:
    """A request for a file: the prompt, and the file it is to be made from, if any."""

    messages: tuple[Message, ...]
    language: Language
    parent: Candidate | None
    advice: Advice | None
    origin: Literal["round", "repair"] = "round"

    @property
    def parent_source(self) -> str | None:
        return self.parent.source if self.parent is not None else None

    def candidate(self, source: str, author: str, idea: str = "", request: str = "") -> Candidate:
        """Return the candidate with this source.

        `idea`: what is new in it, in the model's words; `request`: sha256 of the call that it answers.
        """
        advised = self.advice is not None and (self.advice.method or self.advice.plan)
        return Candidate(
            source=source,
            language=self.language,
            author=author,
            idea=idea,
            parents=(self.parent.sha256,) if self.parent is not None else (),
            advice=f"{self.advice.method}: {self.advice.plan}" if self.advice and advised else "",
            origin=self.origin,
            request=request,
        )


def idea_of(reply: str) -> str:
    """Return the line of a reply that says what is new in its file; "" if there is none."""
    found = _IDEA.search(reply)
    return "" if found is None else found[1].strip(" *_`")[:_LONGEST_IDEA]


def asked_for(
    situation: Situation,
    language: Language,
    history: Sequence[Attempt],
    advice: Advice | None,
    afresh: bool = False,
) -> PromptSpec:
    """Return the request for the next file, after this history; `afresh`: made from none of its files."""
    shown = None if afresh else start_of(history, advice)
    failed = _failed_since(history, shown)
    is_best = shown is not None and shown.attempt is best_of(history)
    messages = coder_messages(situation, language, shown, failed, advice, is_best, history)
    return PromptSpec(messages, language, shown.attempt.candidate if shown is not None else None, advice)


def start_of(history: Sequence[Attempt], advice: Advice | None) -> PromptSubject | None:
    """Return the attempt to continue from: the one that the advice is on, else the best, else the last.

    None where there is no file yet.
    """
    files = [attempt for attempt in history if attempt.candidate.usable]
    if not files:
        return None
    if advice is not None and advice.about:
        for number, attempt in enumerate(history):  # the first such: a repetition was not evaluated
            if attempt.candidate.sha256 == advice.about:
                return PromptSubject(attempt, number)
    attempt = best_of(files) or files[-1]
    return PromptSubject(attempt, next(i for i, other in enumerate(history) if other is attempt))


def _failed_since(history: Sequence[Attempt], shown: PromptSubject | None) -> PromptSubject | None:
    """Return the result of the last round with a file, if it was made from the one shown and failed."""
    rounds = [each for each in rounds_of(history).rounds if each.usable]
    if not rounds or shown is None:
        return None
    last = rounds[-1].last
    made_from_it = shown.attempt.candidate.sha256 in rounds[-1].attempts[0].candidate.parents
    subject = PromptSubject(last, next(i for i, other in enumerate(history) if other is last))
    return subject if made_from_it and not subject.correct else None


def objection(source: str, language: Language, history: Sequence[Attempt]) -> str:
    """Return the reason a file is not worth an evaluation; "" if it is."""
    found = language_of(source)
    if found != language:
        what = "no kernels of its own" if found == "torch" else f"{LANGUAGES[found].title} kernels"
        return f"the file has {what}, but {NAMES[language]} was requested"
    for number, attempt in enumerate(history):
        if attempt.candidate.source == source:
            return f"it repeats the file of round {number} ({attempt.evaluation.verdict})"
    return ""
