"""The loop of the agent search: a conversation with a model that calls tools, until it submits a file.

Every file that is checked or measured is an attempt, recorded as it comes, and a file that was evaluated
before is answered from the record. So a run that is killed between an answer and its attempts goes on with
the same calls, and repeats none of what is recorded. The winner is confirmed as that of any search.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from kernelwright.agent.abandonable_pool import abandonable_pool
from kernelwright.agent.llm.coder import objection
from kernelwright.agent.llm.conversation import REFUSED, Conversation, Conversations
from kernelwright.agent.llm.endpoint.tool_calls import ToolCall
from kernelwright.agent.llm.model import ModelRefused, ReplyUnusable
from kernelwright.agent.llm.prompting import examples, notes, task_note
from kernelwright.agent.llm.remaining import Remaining
from kernelwright.agent.llm.reply.replies import candidate_source
from kernelwright.agent.llm.situation import tried_table
from kernelwright.agent.llm.toolbox import (
    CheckFile,
    CompileReference,
    GivenFile,
    InvalidCall,
    MeasureFile,
    ProfileFile,
    ReadNotes,
    SubmitFile,
    ToolArguments,
    read,
    source_of,
)
from kernelwright.agent.loop import SEARCHED, TaskLoop
from kernelwright.agent.numbered_files import known_number, profile_told, profiled_closely, told
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.search import Agent, Stop, best_of
from kernelwright.agent.search.agent import was_measured
from kernelwright.agent.spending.budget import BudgetSpent, ShareSpent
from kernelwright.agent.winners import speedup_of
from kernelwright.kernelbench.evaluator import CHECK
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict

_MOST_CALLS = 8  # of one answer
_MOST_WITHOUT_CALLS = 3  # answers in a row
_MOST_IN_VAIN = 8  # answers in a row, of which no call can be carried out
_MOST_TOLD = 30_000  # characters of one answer to a call
_CALL_A_TOOL = "That called no tool. Call one: measure a file, or submit to end the task."


@dataclass
class _Requested:
    """A call, as far as it has come: what it asks for, or why it cannot be done, and its evaluation."""

    arguments: ToolArguments | None = None
    refused: str = ""
    candidate: Candidate | None = None
    timed: bool = False
    evaluation: Future[Evaluation] | None = None


@dataclass(kw_only=True)
class ConversationLoop(TaskLoop):
    """Takes tasks on by what a model calls for; one step of a task goes until a file was timed."""

    talks: Conversations
    remaining: Remaining
    compiled: Callable[[Task], str]  # the builtin coder's kernels of a task, as text
    _conversations: dict[str, Conversation] = field(default_factory=dict)  # by task

    @property
    def rules(self) -> Agent:
        assert isinstance(self.search, Agent)
        return self.search

    def advance(self, task: Task, tried: list[Attempt], most: int | None = None) -> str | None:
        """Take turns until a file was timed; returns why the task ends, None if it may go on.

        Raises what `TaskLoop.advance` does, and UsageError if the endpoint has no tools.
        """
        timed = self._timed(tried)
        try:
            while True:
                if (reason := self._spent(task)) is not None:
                    if not tried:
                        raise BudgetSpent(reason)
                    return reason
                step = self.rules.step(task, tried)
                if isinstance(step, Stop):
                    return step.reason
                if (reason := self._turn(task, tried)) is not None:
                    return reason
                if self._timed(tried) > timed:
                    return None
        except ShareSpent:
            return None
        except ModelRefused as error:
            if best_of(tried) is None:
                raise
            return f"the endpoint refuses to go on with the conversation: {error}"
        except BudgetSpent as spent:
            if not tried:
                raise
            return str(spent)

    def rounds(self, tried: Sequence[Attempt]) -> int:
        return self._timed(tried)

    def finish(self, task: Task, tried: Sequence[Attempt], reason: str) -> str:
        self._conversations.pop(task.id, None)
        return super().finish(task, tried, reason)

    def _turn(self, task: Task, tried: list[Attempt]) -> str | None:
        """Have the model answer, and carry its calls out; returns why the task ends."""
        talk = self._conversations.get(task.id)
        if talk is None:
            talk = self._conversations[task.id] = self.talks.of(task, tried, self._left(task, tried, 0))
        if talk.answer is None:
            if talk.asked >= self.rules.turns:
                return f"{self.rules.turns} answers"
            self.talks.ask(talk, tried, self._left(task, tried, talk.asked), self.rules.context_tokens)
        assert talk.answer is not None
        calls, cut = talk.answer.tool_calls, talk.answer.finish == "length"
        answers, reason = self._carried_out(task, tried, calls) if calls else ([_CALL_A_TOOL], None)
        if cut:
            answers[-1] += "\nYour answer was cut off at the limit of tokens: be brief, and send edits."
        answers[-1] += f"\n\n{self._left(task, tried, talk.asked)}"
        talk.close_turn(answers)
        if talk.without_calls >= _MOST_WITHOUT_CALLS:
            never = "" if talk.has_called else "; if the model has no tools, use --search refine"
            return f"{_MOST_WITHOUT_CALLS} answers in a row called no tool{never}"
        if talk.in_vain >= _MOST_IN_VAIN and reason is None:
            return f"no call of {_MOST_IN_VAIN} answers in a row could be carried out"
        return reason

    def _left(self, task: Task, tried: Sequence[Attempt], answers: int) -> str:
        timed, rules = self._timed(tried), self.rules
        return self.remaining.line(task.id, timed, rules.rules.rounds, answers, rules.turns)

    def _timed(self, tried: Sequence[Attempt]) -> int:
        """Return the number of the model's own files that were timed."""
        own = (attempt for attempt in tried if attempt.candidate.author == self.talks.author)
        return sum(map(was_measured, own))

    def _carried_out(
        self, task: Task, tried: list[Attempt], calls: Sequence[ToolCall]
    ) -> tuple[list[str], str | None]:
        """Carry calls out, files side by side; returns an answer to each, and why the task ends."""
        answers, reason = list[str](), None
        with abandonable_pool(_MOST_CALLS, "tools") as executor:
            begun = self._begun(task, tuple(tried), calls, executor)
            for each in begun:
                try:
                    text, ended = self._answer(task, tried, each)
                except (InvalidCall, BudgetSpent) as error:
                    text, ended = f"{REFUSED}{error}.", None
                answers.append(text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}\n[cut]")
                reason = reason or ended
        return answers, reason

    def _begun(
        self, task: Task, tried: Sequence[Attempt], calls: Sequence[ToolCall], executor: ThreadPoolExecutor
    ) -> list[_Requested]:
        """Read all calls, and begin the evaluation of each file that is to be evaluated."""
        found: list[_Requested] = []
        under_way: set[tuple[str, bool]] = set()
        timed = self._timed(tried)
        for number, call in enumerate(calls):
            each = _Requested()
            found.append(each)
            try:
                if number >= _MOST_CALLS:
                    raise InvalidCall(f"{_MOST_CALLS} calls are carried out at a time")
                each.arguments = read(call)
                if not isinstance(each.arguments, GivenFile):
                    continue
                if isinstance(each.arguments, SubmitFile) and not each.arguments.is_given:
                    continue
                each.candidate = self._candidate(each.arguments, tried)
                each.timed = not isinstance(each.arguments, CheckFile)
                key = each.candidate.sha256, each.timed
                if not under_way.isdisjoint({key, (each.candidate.sha256, True)}):
                    continue
                if known_number(each.candidate, each.timed, tried) is not None:
                    continue
                if each.timed and timed >= self.rules.rules.rounds:
                    raise InvalidCall(
                        f"{self.rules.rules.rounds} files were timed, which is all for this task"
                    )
                self.evaluations.begin(task.id)
                timed += each.timed
                under_way.add(key)
                each.evaluation = executor.submit(self._evaluated, task, each.candidate, each.timed, tried)
            except (InvalidCall, BudgetSpent) as error:
                each.refused = str(error)
        return found

    def _candidate(self, given: GivenFile, tried: Sequence[Attempt]) -> Candidate:
        """Return the file of a call. Raises InvalidCall."""
        try:
            source = candidate_source(given.source(tuple(a.candidate.source for a in tried)))
        except ReplyUnusable as error:
            raise InvalidCall(str(error)) from None
        if given.base is not None and source == tried[given.base].candidate.source:
            return tried[given.base].candidate
        if fault := objection(source, self.talks.language, ()):
            raise InvalidCall(fault)
        return Candidate(
            source=source,
            language=self.talks.language,
            author=self.talks.author,
            idea=given.idea,
            parents=() if given.base is None else (tried[given.base].candidate.sha256,),
        )

    def _evaluated(
        self, task: Task, candidate: Candidate, timed: bool, tried: Sequence[Attempt]
    ) -> Evaluation:
        to_beat = speedup_of(best_of(tried), self.estimates(tried))
        known = any(attempt.evaluation.timing or attempt.evaluation.operators for attempt in tried)
        how = replace(SEARCHED if known else self.first, to_beat=to_beat) if timed else CHECK
        return self.evaluator.evaluate(task, candidate, how)

    def _answer(self, task: Task, tried: list[Attempt], each: _Requested) -> tuple[str, str | None]:
        """Return the answer to a call, and why the task ends if that is what it asks for.

        Raises InvalidCall, BudgetSpent.
        """
        if each.refused:
            raise InvalidCall(each.refused)
        number = self._recorded(task, tried, each) if each.candidate is not None else None
        match each.arguments:
            case SubmitFile():
                return self._submitted(tried, number)
            case MeasureFile() | CheckFile():
                assert number is not None
                return told(tried, number), None
            case ProfileFile():
                return self._profiled(task, tried, each.arguments.number), None
            case CompileReference():
                return self.compiled(task), None
            case ReadNotes():
                return self._notes(task, tried, each.arguments), None
        raise AssertionError(each.arguments)

    def _recorded(self, task: Task, tried: list[Attempt], each: _Requested) -> int:
        """Return the number of a call's file, whose evaluation is recorded unless it was."""
        assert each.candidate is not None
        known = known_number(each.candidate, each.timed, tried)
        if known is not None:
            return known
        if each.evaluation is None:
            raise InvalidCall("the same file was refused before")
        evaluation = each.evaluation.result()
        profile = self.evaluator.profile(task, each.candidate, evaluation)
        attempt = Attempt(each.candidate, evaluation, profile)
        self.recorder.attempt(task, len(tried), attempt, None, confirms=False)
        tried.append(attempt)
        return len(tried) - 1

    def _submitted(self, tried: Sequence[Attempt], number: int | None) -> tuple[str, str | None]:
        best = best_of(tried)
        if number is None:
            right = best is not None or any(
                attempt.evaluation.verdict is Verdict.unmeasured and was_measured(attempt)
                for attempt in tried
            )
            if not right:
                raise InvalidCall("no measured file is right yet: submit a file that is")
            return "Submitted.", "the model submitted its best file"
        attempt = tried[number]
        if attempt.evaluation.verdict not in (Verdict.correct, Verdict.unmeasured):
            return f"Not submitted. {told(tried, number)}", None
        return f"Submitted. {told(tried, number)}", f"the model submitted file {number}"

    def _profiled(self, task: Task, tried: list[Attempt], number: int) -> str:
        source_of(number, tuple(attempt.candidate.source for attempt in tried))
        attempt = tried[number]
        if attempt.evaluation.timing is None:
            raise InvalidCall(f"file {number} was not timed: measure it first")
        tried[number] = profiled_closely(task, number, attempt, self.evaluator, self.recorder)
        return profile_told(number, tried[number])

    def _notes(self, task: Task, tried: Sequence[Attempt], asked: ReadNotes) -> str:
        language = self.talks.language
        match asked.topic:
            case "rules" | "guide":
                return notes(asked.topic, language)
            case "examples":
                shown = (
                    f"# {each.title}\n```python\n{each.source.strip()}\n```" for each in examples(language)
                )
                return "\n\n".join(shown) or "There are none."
            case "task":
                return task_note(task, tried)
            case "tried":
                return tried_table(tried) or "Nothing was tried yet."
            case "lessons":
                lessons = self.talks.situation(task, len(tried), language).lessons
                return "\n".join(f"- {line}" for line in lessons) or "Nothing is known from other tasks."
            case "file":
                if asked.number is None:
                    raise InvalidCall("the topic `file` needs the number of one")
                source = source_of(asked.number, tuple(attempt.candidate.source for attempt in tried))
                return f"```python\n{source.strip()}\n```\n{told(tried, asked.number)}"
