"""The language-model coder."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.llm.model import ChatModel, Message, ModelCall, ModelRefused, ReplyUnusable, Sampling
from kernelwright.agent.llm.prompting import NAMES, PromptSubject, coder_messages
from kernelwright.agent.llm.replies import candidate_source
from kernelwright.agent.llm.runtime import Runtime
from kernelwright.agent.llm.situation import Situation, Situations
from kernelwright.agent.protocols import Attempt, NoCandidate
from kernelwright.agent.search import best_of
from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.records import Advice, Candidate, Language, Task

_TURNS = 2  # of which the later ones say why a reply cannot be used
_SHOWN = 20_000  # characters of such a reply that the model is shown again
_IDEA = re.compile(r"^[\s*_#>-]*idea[\s*_]*:[\s*_]*(\S.*)$", re.IGNORECASE | re.MULTILINE)
_LONGEST_IDEA = 200  # characters


@dataclass(frozen=True)
class LlmCoder:
    """Coder that asks for one file a round: a first one, or one made from the attempt advised on."""

    model: ChatModel
    sampling: Sampling
    runtime: Runtime
    situation: Situations
    language: Language

    @property
    def author(self) -> str:
        return f"llm:{self.sampling.model}"

    def propose(
        self, task: Task, history: Sequence[Attempt], advice: Advice | None, sample: int = 0
    ) -> Candidate:
        """Propose a candidate.

        Raises NoCandidate if the model's replies contain none, a ModelError if there are no replies.
        """
        return self.runtime.wait(
            self._propose(self.situation(task, len(history), self.language), history, advice, sample)
        )

    def fallback(self, task: Task, history: Sequence[Attempt], best: Attempt) -> None:
        return None

    async def _propose(
        self, situation: Situation, history: Sequence[Attempt], advice: Advice | None, sample: int
    ) -> Candidate:
        asked = asked_for(situation, self.language, history, advice)
        call = ModelCall(
            role="coder",
            task=situation.task.id,
            messages=asked.messages,
            sampling=self.sampling,
            sample=sample,
        )
        source, fault = "", ""
        for _ in range(_TURNS):
            try:
                completion = await self.model.complete(call)
            except ModelRefused as error:
                fault = f"the model's endpoint refused the request: {error}"
                break
            reply, cut = completion.text, completion.finish == "length"
            try:
                source = candidate_source(reply, asked.parent_source)
                fault = objection(source, self.language, history)
            except ReplyUnusable as error:
                source, fault = reply, str(error)
            if not fault:
                return asked.candidate(source, self.author, idea_of(reply))
            if cut:
                fault += f"; it was cut off after {completion.usage.completion_tokens} tokens: be brief"
            turns = (
                Message(role="assistant", content=reply[:_SHOWN] or "(nothing)"),
                Message(role="user", content=f"That cannot be used: {fault}. Give the whole file again."),
            )
            call = call.model_copy(update={"messages": (*call.messages, *turns)})
        raise NoCandidate(asked.candidate(source[:_SHOWN], self.author), fault)


@dataclass(frozen=True)
class PromptSpec:
    """A request for a file: the prompt, and the file it is to be made from, if any."""

    messages: tuple[Message, ...]
    language: Language
    parent: Candidate | None
    advice: Advice | None

    @property
    def parent_source(self) -> str | None:
        return self.parent.source if self.parent is not None else None

    def candidate(self, source: str, author: str, idea: str = "") -> Candidate:
        """Return the candidate with this source; `idea`: what is new in it, in the model's words."""
        return Candidate(
            source=source,
            language=self.language,
            author=author,
            idea=idea,
            parents=(self.parent.sha256,) if self.parent is not None else (),
            advice="" if self.advice is None else f"{self.advice.method}: {self.advice.plan}",
        )


def idea_of(reply: str) -> str:
    """Return the line of a reply that says what is new in its file; "" if there is none."""
    found = _IDEA.search(reply)
    return "" if found is None else found[1].strip(" *_`")[:_LONGEST_IDEA]


def asked_for(
    situation: Situation, language: Language, history: Sequence[Attempt], advice: Advice | None
) -> PromptSpec:
    """Return the request for the next file, after this history."""
    shown = start_of(history, advice)
    failed = _failed_since(history, shown)
    is_best = shown is not None and shown.attempt is best_of(history)
    messages = coder_messages(situation, language, shown, failed, advice, is_best, history)
    return PromptSpec(messages, language, shown.attempt.candidate if shown is not None else None, advice)


def start_of(history: Sequence[Attempt], advice: Advice | None) -> PromptSubject | None:
    """Return the attempt to continue from: the one that the advice is on, else the best, else the last."""
    if not history:
        return None
    if advice is not None and advice.about:
        for number, attempt in enumerate(history):  # the first such: a repetition was not evaluated
            if attempt.candidate.sha256 == advice.about:
                return PromptSubject(attempt, number)
    attempt = best_of(history) or history[-1]
    return PromptSubject(attempt, next(i for i, other in enumerate(history) if other is attempt))


def _failed_since(history: Sequence[Attempt], shown: PromptSubject | None) -> PromptSubject | None:
    """Return the last attempt if it was made from the one shown and failed."""
    if not history or shown is None:
        return None
    last = PromptSubject(history[-1], len(history) - 1)
    made_from_it = shown.attempt.candidate.sha256 in last.attempt.candidate.parents
    return last if made_from_it and not last.correct else None


def objection(source: str, language: Language, history: Sequence[Attempt]) -> str:
    """Return the reason a file is not worth an evaluation; "" if it is."""
    found = language_of(source)
    if found != language:
        what = "no kernels of its own" if found == "torch" else f"{NAMES[found]} kernels"
        return f"the file has {what}, but {NAMES[language]} was requested"
    for number, attempt in enumerate(history):
        if attempt.candidate.source == source:
            return f"it repeats the file of round {number} ({attempt.evaluation.verdict})"
    return ""
