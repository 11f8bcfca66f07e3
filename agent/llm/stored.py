"""Calls that are paid for once: every answer is stored in the run database, and reused from there.

A missing answer is requested, within the budget, and stored before anybody sees it. Calls that failed are
stored too, and repeated when a run is resumed. `ReplayedModel` asks nobody: it returns the answers of a run,
and the failures that no answer followed.
"""

import asyncio
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from kernelwright.agent.budget import BudgetSpent
from kernelwright.agent.llm import model as models
from kernelwright.agent.llm.budget import Budget
from kernelwright.agent.llm.model import ChatModel, Completion, ModelCall, ModelError, Usage, estimated_tokens
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall


class StoredModel:
    """A ChatModel with stored answers. Equal calls made at the same time are one."""

    def __init__(self, model: ChatModel, database: RunDatabase, budget: Budget) -> None:
        """Count the calls in `database` as already spent."""
        self._model, self._database, self._budget = model, database, budget
        self._answers: dict[str, Completion] = {}
        self._under_way: dict[str, asyncio.Task[Completion]] = {}
        for call in database.llm_calls():
            budget.count(call.task, call.usd, call.prompt_tokens + call.completion_tokens)
            answer = _answer(call)
            if isinstance(answer, Completion):
                self._answers[call.request_sha256] = answer

    async def complete(self, call: ModelCall) -> Completion:
        """Return the completion. Raises a ModelError, and StorageError if the answer cannot be stored."""
        known = self._answers.get(call.sha256)
        if known is not None:
            return known
        asked = self._under_way.get(call.sha256)
        if asked is None:
            asked = asyncio.create_task(self._ask(call))
            self._under_way[call.sha256] = asked
            asked.add_done_callback(lambda _: self._under_way.pop(call.sha256))
        return await asyncio.shield(asked)  # whoever gives up waiting has paid for it all the same

    def answered(self, sha256: str) -> tuple[ModelCall, Completion] | None:
        """Return the recorded call with this hash and its answer; None if there is none."""
        return _answered(self._database.llm_call(sha256))

    async def _ask(self, call: ModelCall) -> Completion:
        async with self._budget.reserved(call):
            try:
                completion = await self._model.complete(call)
            except ModelError as error:
                failure: JsonValue = {"error": type(error).__name__, "message": str(error)}
                self._keep(call, failure, error.usage, error.seconds)
                raise
            except asyncio.CancelledError:  # the endpoint goes on, and charges nobody knows what
                prompt = sum(estimated_tokens(message.content) for message in call.messages)
                usage = Usage(prompt_tokens=prompt, completion_tokens=0, estimated=True)
                ended: JsonValue = {"error": "ModelAbsent", "message": "the run was ended during the call"}
                self._keep(call, ended, usage, 0.0, priced=False)
                raise
            told = completion.model_dump(mode="json")
            self._keep(call, told, completion.usage, completion.seconds)
        self._answers[call.sha256] = completion
        return completion

    def _keep(
        self, call: ModelCall, response: JsonValue, usage: Usage, seconds: float, priced: bool = True
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
            request=call.model_dump(mode="json"),
            response=response,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            usd=usd,
            seconds=seconds,
        )
        self._database.record_llm_call(record)  # in the loop: nothing that was paid for waits, or is lost


class ReplayedModel:
    """A ChatModel that has only the answers of a run."""

    def __init__(self, calls: Iterable[LlmCall]) -> None:
        self._calls = {call.request_sha256: call for call in calls}  # of several the last
        self._answers = {sha256: _answer(call) for sha256, call in self._calls.items()}

    async def complete(self, call: ModelCall) -> Completion:
        """Return the recorded completion.

        Raises the run's ModelError, and BudgetSpent if the run never made such a call.
        """
        answer = self._answers.get(call.sha256)
        if answer is None:
            raise BudgetSpent("the replayed run has no further calls")
        if isinstance(answer, ModelError):
            raise answer
        return answer

    def answered(self, sha256: str) -> tuple[ModelCall, Completion] | None:
        """Return the recorded call with this hash and its answer; None if there is none."""
        return _answered(self._calls.get(sha256))


def interrupted(calls: Iterable[LlmCall], rounds: Mapping[str, int]) -> set[str]:
    """Return the tasks that have an answer for a round beyond those recorded, `rounds` by task."""
    of_tasks = [(call.task, _sample(call)) for call in calls if call.task is not None]
    return {task for task, sample in of_tasks if task in rounds and sample >= rounds[task]}


def _sample(call: LlmCall) -> int:
    """Return the sample that an answer is; -1 for a call that failed."""
    if isinstance(_answer(call), ModelError) or not isinstance(call.request, dict):
        return -1
    sample = call.request.get("sample")
    return sample if isinstance(sample, int) else -1


def _answered(recorded: LlmCall | None) -> tuple[ModelCall, Completion] | None:
    answer = None if recorded is None else _answer(recorded)
    if recorded is None or not isinstance(answer, Completion):
        return None
    return ModelCall.model_validate(recorded.request), answer


def _answer(call: LlmCall) -> Completion | ModelError:
    response = call.response
    if isinstance(response, dict) and "error" in response:
        kind = getattr(models, str(response["error"]))
        assert issubclass(kind, ModelError)
        return kind(str(response["message"]))
    return Completion.model_validate(response)
