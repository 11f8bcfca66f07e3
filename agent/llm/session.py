"""All that a run asks language models with: who is asked, what may be spent, and where answers are kept."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from agent.llm.budget import Allowance, Budget
from agent.llm.coder import LlmCoder
from agent.llm.judge import LlmJudge
from agent.llm.model import ChatModel, Endpoint, Sampling
from agent.llm.prices import SHIPPED, Prices
from agent.llm.prompting import Situation
from agent.llm.runtime import Runtime
from agent.llm.stored import ReplayedModel, StoredModel
from kernelbench.evaluator import Evaluator
from kernelbench.records import Language, Record, Target, Task
from results.database import RunDatabase

if TYPE_CHECKING:
    from agent.llm.client import OpenAIModel

LANGUAGES: tuple[Language, ...] = ("cpp", "triton")  # that a model may be asked for


class Roles(Record):
    """Who writes and who advises, and in which language the kernels are."""

    coder: Sampling
    judge: Sampling
    language: Language


@dataclass(frozen=True)
class Terms:
    """How models may be used; not part of what a run is, so it may be another one when a run goes on."""

    endpoint: Endpoint = Endpoint()  # noqa: RUF009 - frozen
    prices: Path = SHIPPED
    run: Allowance = Allowance()  # noqa: RUF009
    task: Allowance = Allowance()  # noqa: RUF009

    def budget_for(self, roles: Roles) -> Budget:
        """A new one. Raises UsageError and MissingPrerequisite where these models cannot be used so."""
        self.endpoint.require()
        budget = Budget(Prices.read(self.prices), self.run, self.task)
        for sampling in (roles.coder, roles.judge):
            budget.require_price(sampling.model)
        return budget


class ModelSession:
    """Coders and judges that ask one model, in one event loop."""

    def __init__(
        self, roles: Roles, target: Target, model: ChatModel, budget: Budget, client: "OpenAIModel | None"
    ) -> None:
        """Use `asking` or `replaying`. `target`: the run's, for prompts must not change while it goes on."""
        self.roles, self.target, self.budget = roles, target, budget
        self._model, self._client = model, client
        self._runtime = Runtime()

    @classmethod
    def asking(cls, roles: Roles, terms: Terms, database: RunDatabase) -> Self:
        """Answers are kept in `database`. Raises what `Terms.budget_for` does."""
        from agent.llm.client import OpenAIModel  # takes two seconds to import

        budget, client = terms.budget_for(roles), OpenAIModel(terms.endpoint)
        return cls(roles, database.run.target, StoredModel(client, database, budget), budget, client)

    @classmethod
    def replaying(cls, roles: Roles, recorded: RunDatabase) -> Self:
        """Nobody is asked, and nothing paid: the answers are those that a run has had."""
        budget = Budget(Prices({}), Allowance(), Allowance())
        return cls(roles, recorded.run.target, ReplayedModel(recorded.llm_calls()), budget, None)

    def coder(self, evaluator: Evaluator) -> LlmCoder:
        return LlmCoder(self._model, self.roles.coder, self._runtime, self._situations(evaluator))

    def judge(self, evaluator: Evaluator) -> LlmJudge:
        return LlmJudge(self._model, self.roles.judge, self._runtime, self._situations(evaluator))

    def _situations(self, evaluator: Evaluator) -> Callable[[Task], Situation]:
        known: dict[str, Situation] = {}
        lock = threading.Lock()  # candidates may be written side by side

        def situation(task: Task) -> Situation:
            with lock:
                if task.id not in known:
                    work = evaluator.work(task)
                    known[task.id] = Situation(task, self.target, work, self.roles.language)
                return known[task.id]

        return situation

    def abort(self) -> None:
        """End the calls under way: whoever waits for one is told at once."""
        self._runtime.abort()

    def close(self) -> None:
        self._runtime.close(self._client.close if self._client is not None else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
