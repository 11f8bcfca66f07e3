"""A run's access to language models: who is asked, what may be spent, and where answers are stored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from kernelwright.agent.llm.budget import Budget
from kernelwright.agent.llm.coder import LlmCoder
from kernelwright.agent.llm.conversation import Conversations, last_calls
from kernelwright.agent.llm.endpoint.prices import Prices
from kernelwright.agent.llm.judge import LlmJudge
from kernelwright.agent.llm.model import Endpoint, EndpointUnusable, RecordedModel, Sampling
from kernelwright.agent.llm.runtime import Runtime
from kernelwright.agent.llm.situation import Situation, Situations
from kernelwright.agent.llm.stored import ReplayedModel, StoredModel
from kernelwright.agent.protocols import ProfilingEvaluator
from kernelwright.agent.spending.budget import SpendingLimits
from kernelwright.agent.tuner.memory import LessonMemory
from kernelwright.kernelbench.evaluator import TimingLock
from kernelwright.kernelbench.records import Language, Record, Target, Task
from kernelwright.profiling.selection import Selection
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall, TaskState

if TYPE_CHECKING:
    from kernelwright.agent.llm.endpoint.client import OpenAIModel
    from kernelwright.agent.llm.endpoint.preflight import Preflight


def languages_for(device: str) -> tuple[Language, ...]:
    """Return the languages a model may write kernels in, the default first."""
    return ("cpp", "triton") if device == "cpu" else ("triton", "cuda")


class Roles(Record):
    """Models for the coder and the judge, and the languages of the kernels."""

    coder: Sampling
    judge: Sampling
    languages: tuple[Language, ...]  # one, or several that compete
    selection: Selection | None = None  # of metrics, that the judge is shown; None: the usual ones


@dataclass(frozen=True)
class Terms:
    """Terms of use of the models; not part of a run's identity, so they may change when it is resumed."""

    endpoint: Endpoint
    prices: Prices
    run: SpendingLimits
    task: SpendingLimits

    def budget_for(self, roles: Roles) -> Budget:
        """Return a new budget.

        Raises UsageError and MissingPrerequisite if these models cannot be used so.
        """
        self.endpoint.require()
        budget = Budget(self.prices, self.run, self.task)
        for sampling in (roles.coder, roles.judge):
            budget.require_price(sampling.model)
        return budget

    def preflight(
        self, roles: Roles, had: Sequence[LlmCall], say: Callable[[str], None]
    ) -> "Preflight | None":
        """Ask the models whether they can be used; None if the calls that a run has `had` left no budget.

        Raises MissingPrerequisite if one cannot, with the endpoint's words.
        """
        from kernelwright.agent.llm.endpoint.preflight import preflight, unusable

        budget = self.budget_for(roles)
        for call in had:
            budget.count(call.task, call.usd, call.prompt_tokens + call.completion_tokens)
        if budget.spent_by(None) is not None:
            return None
        try:
            return preflight(self.endpoint, (roles.coder, roles.judge), say)
        except EndpointUnusable as error:
            raise unusable(self.endpoint, error) from None


class ModelSession:
    """Coders and judges that ask one model, in one event loop."""

    def __init__(
        self,
        roles: Roles,
        target: Target,
        model: RecordedModel,
        budget: Budget,
        client: "OpenAIModel | None",
        timing_lock: TimingLock | None = None,
        begun: Mapping[str, LlmCall] = MappingProxyType({}),
    ) -> None:
        """Create a session; use `asking` or `replaying`.

        `target`: the run's, since prompts must not change while it is resumed. `begun`: the last call of each
        conversation so far.
        """
        self.roles, self.target, self.budget = roles, target, budget
        self._begun = begun
        self._model, self._client = model, client
        self._timing_lock = timing_lock or TimingLock()
        self._runtime = Runtime(self._timing_lock)

    @classmethod
    def asking(
        cls,
        roles: Roles,
        terms: Terms,
        database: RunDatabase,
        timing_lock: TimingLock | None = None,
        found: "Preflight | None" = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> Self:
        """Create a session that stores answers in `database` and pauses while candidates are timed.

        `found`: by a preflight, whose calls are stored and counted; `say` is told what endpoints refuse.
        Raises what `Terms.budget_for` does.
        """
        from kernelwright.agent.llm.endpoint.client import OpenAIModel  # takes two seconds to import

        budget = terms.budget_for(roles)
        budget.add_parts(entry.task for entry in database.tasks())
        known, answered = (found.requests, bool(found.calls)) if found is not None else (None, False)
        client = OpenAIModel(terms.endpoint, known, say, answered)
        stored = StoredModel(client, database, budget)
        for call, completion in found.calls if found is not None else ():
            stored.keep(call, call, completion)
        begun = last_calls(database.llm_calls())
        return cls(roles, database.run.target, stored, budget, client, timing_lock, begun)

    @classmethod
    def replaying(cls, roles: Roles, recorded: RunDatabase) -> Self:
        """Create a session that replays the answers of a run, without asking or paying for any."""
        budget = Budget(Prices({}), SpendingLimits(), SpendingLimits())
        done = {entry.task.id for entry in recorded.tasks() if entry.state is TaskState.done}
        return cls(roles, recorded.run.target, ReplayedModel(recorded.llm_calls(), done), budget, None)

    def coder(
        self, evaluator: ProfilingEvaluator, memory: LessonMemory | None, language: Language
    ) -> LlmCoder:
        situation = self._situations(evaluator, memory)
        return LlmCoder(self._model, self.roles.coder, self._runtime, situation, language)

    def conversations(
        self, evaluator: ProfilingEvaluator, memory: LessonMemory | None, language: Language
    ) -> Conversations:
        situation = self._situations(evaluator, memory)
        return Conversations(self._model, self.roles.coder, self._runtime, situation, language, self._begun)

    def judge(self, evaluator: ProfilingEvaluator, memory: LessonMemory | None) -> LlmJudge:
        situation = self._situations(evaluator, memory)
        return LlmJudge(self._model, self.roles.judge, self._runtime, situation, self.roles.selection)

    def _situations(self, evaluator: ProfilingEvaluator, memory: LessonMemory | None) -> Situations:
        def situation(task: Task, seen: int, language: Language) -> Situation:
            work = evaluator.work(task)
            with self._timing_lock.shared():
                told = memory.lines(task, seen, language) if memory is not None else ()
            return Situation(task, self.target, work, told)

        return situation

    def abort(self) -> None:
        """End the calls under way: whoever waits for one gets an error at once."""
        self._runtime.abort()

    def close(self) -> None:
        self._runtime.close(self._client.close if self._client is not None else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
