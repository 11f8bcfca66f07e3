"""All that a run asks language models with: who is asked, what may be spent, and where answers are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agent.llm.budget import Allowance, Budget
from agent.llm.coder import LlmCoder
from agent.llm.judge import LlmJudge
from agent.llm.model import Endpoint, Sampling
from agent.llm.prices import SHIPPED, Prices
from agent.llm.prompting import Situation
from agent.llm.runtime import Runtime
from agent.llm.stored import StoredModel
from kernelbench.evaluator import Evaluator
from kernelbench.records import Language, Record, Task
from results.database import RunDatabase

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
    """Raises what `Terms.budget_for` does."""

    def __init__(self, roles: Roles, terms: Terms, database: RunDatabase) -> None:
        from agent.llm.client import OpenAIModel  # takes two seconds to import

        self.roles = roles
        self.budget = terms.budget_for(roles)
        self._client = OpenAIModel(terms.endpoint)
        self._stored = StoredModel(self._client, database, self.budget)
        self._runtime = Runtime()

    def coder(self, evaluator: Evaluator) -> LlmCoder:
        return LlmCoder(self._stored, self.roles.coder, self._runtime, self._situations(evaluator))

    def judge(self, evaluator: Evaluator) -> LlmJudge:
        return LlmJudge(self._stored, self.roles.judge, self._runtime, self._situations(evaluator))

    def _situations(self, evaluator: Evaluator) -> Callable[[Task], Situation]:
        def situation(task: Task) -> Situation:
            return Situation(task, evaluator.target, evaluator.work(task), self.roles.language)

        return situation

    def close(self) -> None:
        self._runtime.wait(self._client.close())
        self._runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
