"""An answer is paid for once: kept before anybody sees it, given again after a crash, replayed without a model."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelwright.agent.llm.budget import Budget
from kernelwright.agent.llm.endpoint.prices import Price, Prices
from kernelwright.agent.llm.model import (
    Completion,
    Message,
    ModelAbsent,
    ModelCall,
    ModelError,
    ModelRefused,
    Sampling,
    Usage,
)
from kernelwright.agent.llm.stored import ReplayedModel, StoredModel
from kernelwright.agent.spending.budget import BudgetSpent, ShareSpent, SpendingLimits
from kernelwright.results.store.database import RunDatabase
from tests.helpers.anywhere import TARGET

PRICES = Prices({"m": Price(prompt=1.0, completion=10.0)})


class Scripted:
    """Says what it is given, one after the other, and counts how often it is asked."""

    def __init__(self, *answers: str | ModelError) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def complete(self, call: ModelCall) -> Completion:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        await asyncio.sleep(0.001)
        if isinstance(answer, ModelError):
            raise answer
        usage = Usage(prompt_tokens=1000, completion_tokens=100)
        return Completion(text=answer, finish="stop", usage=usage, seconds=0.5)


def call(text: str = "write", model: str = "m", sample: int = 0) -> ModelCall:
    messages = (Message(role="user", content=text),)
    sampling = Sampling(model=model, max_tokens=100)
    return ModelCall(role="coder", task="t", messages=messages, sampling=sampling, sample=sample)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RunDatabase]:
    with RunDatabase.create(tmp_path / "run.db", settings={}, target=TARGET) as made:
        yield made


def budget(usd: float | None = None) -> Budget:
    return Budget(PRICES, SpendingLimits(usd=usd), SpendingLimits())


def ask(stored: StoredModel | ReplayedModel, *calls: ModelCall) -> list[str]:
    async def all_of_them() -> list[str]:
        return [completion.text for completion in await asyncio.gather(*map(stored.complete, calls))]

    return asyncio.run(all_of_them())


def test_calls_that_are_alike_are_one(database: RunDatabase) -> None:
    model = Scripted("first", "second")
    stored = StoredModel(model, database, budget())
    assert ask(stored, call(), call(), call()) == ["first"] * 3
    assert ask(stored, call()) == ["first"]
    assert model.asked == 1
    assert ask(stored, call(sample=1)) == ["second"]


def test_every_call_is_recorded_with_what_it_cost(database: RunDatabase) -> None:
    ask(StoredModel(Scripted("text"), database, budget()), call())
    [kept] = database.llm_calls()
    assert kept.usd == pytest.approx((1000 * 1 + 100 * 10) / 1e6)
    assert (kept.task, kept.role, kept.model, kept.prompt_tokens) == ("t", "coder", "m", 1000)
    assert kept.request["messages"][0]["content"] == "write"  # type: ignore[call-overload,index]
    assert kept.response["text"] == "text"  # type: ignore[call-overload,index]


def test_the_cost_of_an_unknown_model_is_unknown(database: RunDatabase) -> None:
    ask(StoredModel(Scripted("text"), database, budget()), call(model="other"))
    assert database.llm_calls()[0].usd is None


def test_after_a_crash_the_answer_is_there(database: RunDatabase, tmp_path: Path) -> None:
    ask(StoredModel(Scripted("paid"), database, budget()), call())
    with RunDatabase.open(tmp_path / "run.db") as again:
        model = Scripted("never")
        assert ask(StoredModel(model, again, budget()), call()) == ["paid"]
        assert model.asked == 0


def test_what_was_spent_before_a_crash_counts(database: RunDatabase) -> None:
    ask(StoredModel(Scripted("paid"), database, budget()), call())
    stored = StoredModel(Scripted("more"), database, budget(usd=0.002))
    assert ask(stored, call()) == ["paid"]  # costs nothing any more
    with pytest.raises(BudgetSpent, match=r"\$0.002"):
        ask(stored, call("something else"))


def test_a_call_that_failed_is_recorded_and_asked_again(database: RunDatabase) -> None:
    wasted = Usage(prompt_tokens=1000, completion_tokens=50, estimated=True)
    model = Scripted(ModelAbsent("the stream broke off", wasted), "ok")
    stored = StoredModel(model, database, budget())
    with pytest.raises(ModelAbsent):
        ask(stored, call())
    assert ask(stored, call()) == ["ok"]
    failed, answered = database.llm_calls()
    assert failed.response == {"error": "ModelAbsent", "message": "the stream broke off"}
    assert failed.usd == pytest.approx(0.0015) and answered.usd == pytest.approx(0.002)


def test_a_run_is_replayed_with_its_failures(database: RunDatabase) -> None:
    model = Scripted("one", ModelRefused("too long"), "two")
    stored = StoredModel(model, database, budget())
    ask(stored, call("a"))
    with pytest.raises(ModelRefused):
        ask(stored, call("b"))
    ask(stored, call("b"))
    with pytest.raises(ModelAbsent):
        ask(StoredModel(Scripted(ModelAbsent("busy")), database, budget()), call("d"))
    replayed = ReplayedModel(database.llm_calls())
    assert ask(replayed, call("a"), call("a")) == ["one", "one"]
    assert ask(replayed, call("b")) == ["two"]  # what came in the end
    with pytest.raises(ModelAbsent, match="busy"):
        ask(replayed, call("d"))
    with pytest.raises(BudgetSpent, match="no further"):
        ask(replayed, call("c"))
    # It was resumed, and ended for another reason: nothing is to wait for the call.
    [task] = {record.task for record in database.llm_calls()} - {None}
    with pytest.raises(BudgetSpent, match="no further"):
        ask(ReplayedModel(database.llm_calls(), done={str(task)}), call("d"))


class Limited:
    """Needs so many tokens for its answer, and is cut where it may have fewer."""

    def __init__(self, tokens: int, then: ModelError | None = None) -> None:
        self.tokens, self.then = tokens, then
        self.limits: list[int] = []

    async def complete(self, call: ModelCall) -> Completion:
        limit = call.sampling.max_tokens
        self.limits.append(limit)
        if self.then is not None and len(self.limits) > 1:
            raise self.then
        used = min(self.tokens, limit)
        finish = "stop" if self.tokens <= limit else "length"
        usage = Usage(prompt_tokens=0, completion_tokens=used)
        return Completion(text="x" * used, finish=finish, usage=usage, seconds=0.5, limit=limit)


def test_an_answer_that_is_cut_is_asked_for_once_more_with_twice_the_length(database: RunDatabase) -> None:
    model = Limited(150)
    stored = StoredModel(model, database, budget())
    assert ask(stored, call("a")) == ["x" * 150] and model.limits == [100, 200]
    assert ask(stored, call("b")) == ["x" * 150] and model.limits == [100, 200, 200], "which it then has"
    assert [record.completion_tokens for record in database.llm_calls()] == [100, 150, 150]
    assert ask(ReplayedModel(database.llm_calls()), call("a")) == ["x" * 150]
    assert ask(StoredModel(Scripted("other"), database, budget()), call("a")) == ["x" * 150]
    resumed = Limited(150)
    assert ask(StoredModel(resumed, database, budget()), call("c")) == ["x" * 150]
    assert resumed.limits == [200]


def test_an_answer_that_is_longer_still_stays_cut(database: RunDatabase) -> None:
    model = Limited(1000)
    stored = StoredModel(model, database, budget())
    assert ask(stored, call("a")) == ["x" * 200] and ask(stored, call("b")) == ["x" * 200]
    assert model.limits == [100, 200] * 2


def test_a_cut_answer_is_kept_where_no_longer_one_comes(database: RunDatabase) -> None:
    refused = StoredModel(Limited(1000, ModelRefused("too long")), database, budget())
    assert ask(refused, call("a")) == ["x" * 100]
    replayed = ReplayedModel(database.llm_calls())
    assert ask(replayed, call("a")) == ["x" * 100]
    for source in (refused, replayed):  # what a repair goes on from, though the last call failed
        answered = source.answered(call("a").sha256)
        assert answered is not None and answered[1].text == "x" * 100
    model = Limited(1000)
    poor = StoredModel(model, database, budget(usd=0.0015))  # $0.001 a hundred tokens, of which one is spent
    assert ask(poor, call("b")) == ["x" * 100] and model.limits == [100]


def test_a_cut_answer_whose_task_has_spent_its_share_is_asked_for_with_the_next_step(
    database: RunDatabase, tmp_path: Path
) -> None:
    """$0.001 a hundred tokens, and a share of $0.001: the longer call is not made in the first step."""
    model = Limited(150)
    spending = budget(usd=0.01)
    stored = StoredModel(model, database, spending)
    with spending.share("t", waiting=10), pytest.raises(ShareSpent):
        ask(stored, call())
    assert model.limits == [100] and spending.spent_on("t").usd == pytest.approx(0.001)
    with RunDatabase.open(tmp_path / "run.db") as again:  # as after a kill
        resumed = Limited(150)
        with pytest.raises(ModelAbsent):
            ask(StoredModel(Scripted(ModelAbsent("busy")), again, budget()), call())
        assert ask(StoredModel(resumed, again, budget()), call()) == ["x" * 150] and resumed.limits == [200]
    assert ask(stored, call()) == ["x" * 150] and model.limits == [100, 200], "none is paid for twice"
    assert ask(stored, call()) == ["x" * 150] and model.limits == [100, 200]


CHANGES: dict[str, Callable[[ModelCall], ModelCall]] = {
    "text": lambda c: call("write!"),
    "sample": lambda c: call(sample=1),
    "model": lambda c: call(model="m2"),
    "schema": lambda c: c.model_copy(update={"reply_schema": {"type": "object"}}),
    "temperature": lambda c: c.model_copy(
        update={"sampling": c.sampling.model_copy(update={"temperature": 0.5})}
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_calls_that_differ_are_not_one(name: str) -> None:
    assert CHANGES[name](call()).sha256 != call().sha256
    assert call().model_copy(update={"task": "u"}).sha256 == call().sha256
