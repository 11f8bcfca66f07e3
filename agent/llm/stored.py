"""Calls that are paid for once: every answer is stored in the run database, and reused from there.

A missing answer is requested, within the budget, and stored before anybody sees it. One that is cut at the
length of a reply is requested once more with twice that length, which the model then has for good; where the
share of its task is spent, with the task's next step. Calls that failed are stored too, and repeated when a
run is resumed. `ReplayedModel` asks nobody: it returns the answers of a run, and the failures that ended
something.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

from pydantic import JsonValue

from kernelwright.agent.llm import model as models
from kernelwright.agent.llm.budget import Budget
from kernelwright.agent.llm.conversation import ROLE
from kernelwright.agent.llm.model import (
    ChatModel,
    Completion,
    ModelAbsent,
    ModelCall,
    ModelError,
    ModelRefused,
    Usage,
)
from kernelwright.agent.spending.budget import BudgetSpent, ShareSpent
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall


class StoredModel:
    """A ChatModel with stored answers. Equal calls made at the same time are one."""

    def __init__(self, model: ChatModel, database: RunDatabase, budget: Budget) -> None:
        """Count the calls in `database` as already spent."""
        self._model, self._database, self._budget = model, database, budget
        self._answers: dict[str, Completion] = {}
        self._under_way: dict[str, asyncio.Task[Completion]] = {}
        self._longer: set[str] = set()  # models whose replies have twice the length
        self._cut: dict[str, Completion] = {}  # paid for; the longer answer is yet to be requested
        for call in database.llm_calls():
            budget.count(call.task, call.usd, call.prompt_tokens + call.completion_tokens)
            answer, sent = _answer(call), ModelCall.model_validate(call.request)
            is_longer = sent.sha256 != call.request_sha256
            if isinstance(answer, Completion):
                self._answers[call.request_sha256] = answer
                if is_longer and answer.finish != "length":
                    self._longer.add(sent.sampling.model)
                if not is_longer and _is_cut(answer, sent):
                    self._cut[call.request_sha256] = answer
            if is_longer and isinstance(answer, Completion | ModelRefused):
                self._cut.pop(call.request_sha256, None)

    async def complete(self, call: ModelCall) -> Completion:
        """Return the completion. Raises a ModelError, and StorageError if the answer cannot be stored."""
        known = self._answers.get(call.sha256)
        if known is not None and call.sha256 not in self._cut:
            return known
        asked = self._under_way.get(call.sha256)
        if asked is None:
            asked = asyncio.create_task(self._ask(call))
            self._under_way[call.sha256] = asked
            asked.add_done_callback(lambda _: self._under_way.pop(call.sha256))
        return await asyncio.shield(asked)  # whoever gives up waiting has paid for it all the same

    def answered(self, sha256: str) -> tuple[ModelCall, Completion] | None:
        """Return the recorded call with this hash and its answer; None if there is none."""
        return _answered(self._database.llm_calls_with(sha256))

    async def _ask(self, call: ModelCall) -> Completion:
        model = call.sampling.model
        longer = call.model_copy(
            update={"sampling": call.sampling.model_copy(update={"max_tokens": 2 * call.sampling.max_tokens})}
        )
        completion = self._cut.get(call.sha256)
        if completion is None:
            completion = await self._sent(call, longer if model in self._longer else call)
        if _is_cut(completion, call):
            self._cut[call.sha256] = completion
            try:
                completion = await self._sent(call, longer)
                if completion.finish != "length":
                    self._longer.add(model)
            except ShareSpent:
                raise  # the task's next step, which has no share, requests the longer one
            except (BudgetSpent, ModelRefused):
                pass  # the answer stays cut: nothing longer can be paid for, or is allowed
            del self._cut[call.sha256]
        self._answers[call.sha256] = completion
        return completion

    async def _sent(self, call: ModelCall, sent: ModelCall) -> Completion:
        """Return the completion of the call that is sent in the place of another, and keep it."""
        async with self._budget.reserved(sent):
            try:
                completion = await self._model.complete(sent)
            except ModelError as error:
                failure: JsonValue = {"error": type(error).__name__, "message": str(error)}
                self._keep(call, sent, failure, error.usage, error.seconds)
                raise
            except asyncio.CancelledError:  # the endpoint goes on, and charges nobody knows what
                usage = Usage(prompt_tokens=call.prompt_tokens, completion_tokens=0, estimated=True)
                ended: JsonValue = {"error": "ModelAbsent", "message": "the run was ended during the call"}
                self._keep(call, sent, ended, usage, 0.0, priced=False)
                raise
            self.keep(call, sent, completion)
        return completion

    def keep(self, call: ModelCall, sent: ModelCall, completion: Completion) -> None:
        """Store an answer and count its cost."""
        told = completion.model_dump(mode="json")
        self._keep(call, sent, told, completion.usage, completion.seconds)

    def _keep(
        self,
        call: ModelCall,
        sent: ModelCall,
        response: JsonValue,
        usage: Usage,
        seconds: float,
        priced: bool = True,
    ) -> None:
        price = self._budget.prices.of(call.sampling.model) if priced else None
        tokens = usage.prompt_tokens + usage.completion_tokens
        # What failed before it cost anything has no unknown price.
        usd = price.usd(usage) if price is not None else None if tokens else 0.0
        self._budget.count(call.task, usd, tokens)
        record = LlmCall(
            task=call.task,
            role=call.role,
            model=call.sampling.model,
            request_sha256=call.sha256,
            request=sent.model_dump(mode="json"),
            response=response,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            usd=usd,
            seconds=seconds,
        )
        self._database.record_llm_call(record)  # in the loop: nothing that was paid for waits, or is lost


class ReplayedModel:
    """A ChatModel that has only the answers of a run."""

    def __init__(self, calls: Iterable[LlmCall], done: Collection[str] = ()) -> None:
        """`done`: tasks that the run has ended, whichever of their calls failed before it was resumed."""
        self._done = done
        self._calls: dict[str, list[LlmCall]] = {}
        self._answers: dict[str, Completion | ModelError] = {}
        # What tools answer holds dollars and minutes, so an answer in a conversation is known by its place.
        self._turns: dict[tuple[str | None, int], Completion | ModelError] = {}
        for call in calls:
            self._calls.setdefault(call.request_sha256, []).append(call)
            answer = _answer(call)
            # Of several the last; a longer one that failed leaves the one that was cut.
            if isinstance(answer, Completion) or not isinstance(
                self._answers.get(call.request_sha256), Completion
            ):
                self._answers[call.request_sha256] = answer
            if call.role == ROLE:
                self._turns[call.task, _place(call)] = self._answers[call.request_sha256]

    async def complete(self, call: ModelCall) -> Completion:
        """Return the recorded completion.

        Raises the run's ModelError, and BudgetSpent if the run never made such a call.
        """
        if call.role == ROLE:
            answer = self._turns.get((call.task, call.sample))
        else:
            answer = self._answers.get(call.sha256)
        left = isinstance(answer, ModelAbsent) and call.task in self._done
        if answer is None or left:
            raise BudgetSpent("the replayed run has no further calls")
        if isinstance(answer, ModelError):
            raise answer
        return answer

    def answered(self, sha256: str) -> tuple[ModelCall, Completion] | None:
        """Return the recorded call with this hash and its answer; None if there is none."""
        return _answered(self._calls.get(sha256, []))


def interrupted(calls: Iterable[LlmCall], rounds: Mapping[str, int]) -> set[str]:
    """Return the tasks that have an answer for a round beyond those recorded, `rounds` by task."""
    asked = (call for call in calls if call.role != ROLE)  # whose samples are places in a conversation
    of_tasks = [(call.task, _sample(call)) for call in asked if call.task is not None]
    return {task for task, sample in of_tasks if task in rounds and sample >= rounds[task]}


def _sample(call: LlmCall) -> int:
    """Return the sample that an answer is; -1 for a call that failed."""
    return -1 if isinstance(_answer(call), ModelError) else _place(call)


def _place(call: LlmCall) -> int:
    if not isinstance(call.request, dict):
        return -1
    sample = call.request.get("sample")
    return sample if isinstance(sample, int) else -1


def _is_cut(answer: Completion, call: ModelCall) -> bool:
    """Return True if an answer was cut at the length that its call asks for."""
    return answer.finish == "length" and answer.limit == call.sampling.max_tokens


def _answered(recorded: Sequence[LlmCall]) -> tuple[ModelCall, Completion] | None:
    """Return the last call that was answered: a longer one that failed leaves the one that was cut."""
    for call in reversed(recorded):
        if isinstance(answer := _answer(call), Completion):
            return ModelCall.model_validate(call.request), answer
    return None


def _answer(call: LlmCall) -> Completion | ModelError:
    response = call.response
    if isinstance(response, dict) and "error" in response:
        kind = getattr(models, str(response["error"]))
        assert issubclass(kind, ModelError)
        return kind(str(response["message"]))
    return Completion.model_validate(response)
