"""A limit is never overshot by more than the call that reached it, however many are made at a time."""

import asyncio
import random

import pytest

from kernelwright.agent.llm.budget import Budget
from kernelwright.agent.llm.endpoint.prices import Price, Prices
from kernelwright.agent.llm.model import Message, ModelCall, Sampling
from kernelwright.agent.spending.budget import BudgetSpent, ShareSpent, SpendingLimits
from kernelwright.kernelbench.errors import UsageError

PRICES = Prices({"m": Price(prompt=10.0, completion=100.0)})
MOST_USD = 100 * 1000 / 1e6  # what the completion of a call below can cost: 10 cents


def call(task: str = "t", text: str = "") -> ModelCall:
    messages = (Message(role="user", content=text),)
    return ModelCall(
        role="coder", task=task, messages=messages, sampling=Sampling(model="m", max_tokens=1000)
    )


def spend(
    run: SpendingLimits, task: SpendingLimits, tasks: list[str], calls: int, share: float = 1.0
) -> tuple[Budget, dict]:
    """Each task makes its calls one after the other, all tasks at a time; what each could spend, in dollars."""
    budget = Budget(PRICES, run, task)
    spent: dict[str, float] = dict.fromkeys(tasks, 0.0)
    chance = random.Random(0)

    async def one(name: str) -> None:
        for _ in range(calls):
            try:
                async with budget.reserved(call(name)):
                    await asyncio.sleep(chance.random() / 500)
                    budget.count(name, share * MOST_USD, int(share * 1000))
                    spent[name] += share * MOST_USD
            except BudgetSpent:
                return

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, tasks))

    asyncio.run(all_of_them())
    return budget, spent


@pytest.mark.parametrize("limit", [0.0, 0.05, 0.35, 1.0])
def test_dollars_of_the_run(limit: float) -> None:
    budget, spent = spend(SpendingLimits(usd=limit), SpendingLimits(), list("abcdefghijkl"), 20)
    total = sum(spent.values())
    assert limit <= total <= limit + MOST_USD + 1e-9 if limit else total == 0
    assert budget.spent_by("a") == f"${limit:g} are spent"


def test_tokens_of_the_run() -> None:
    _, spent = spend(SpendingLimits(tokens=4500), SpendingLimits(), list("abcdefghijkl"), 20)
    assert 4500 <= sum(spent.values()) / MOST_USD * 1000 <= 5500


def test_each_task_has_its_own_limit() -> None:
    budget, spent = spend(SpendingLimits(usd=10), SpendingLimits(usd=0.25), list("abc"), 20)
    assert all(0.25 <= usd <= 0.35 for usd in spent.values())
    assert budget.spent_by("a") == "$0.25 are spent on this task"
    assert budget.spent_by("d") is None


def shared(budget: Budget, task: str, waiting: int, calls: int, usd: float) -> int:
    """The number of calls that a task can make of its share, one after the other."""

    async def made() -> int:
        for number in range(calls):
            try:
                async with budget.reserved(call(task)):
                    budget.count(task, usd, 1000)
            except ShareSpent:
                return number
        return calls

    with budget.share(task, waiting):
        return asyncio.run(made())


def test_a_first_round_takes_its_share_of_what_is_left_and_one_call_more_at_most() -> None:
    budget = Budget(PRICES, SpendingLimits(usd=1.0), SpendingLimits())
    assert shared(budget, "a", waiting=10, calls=9, usd=0.04) == 3  # of $0.10: the third began with $0.08
    assert budget.spent_on("a").usd == pytest.approx(0.12) and budget.spent_by("a") is None
    assert shared(budget, "b", waiting=9, calls=1, usd=0.01) == 1
    # What b left is shared out: (1 - 0.12 - 0.01) / 8 = $0.109
    assert shared(budget, "c", waiting=8, calls=9, usd=0.108) == 2
    assert shared(budget, "a", waiting=1, calls=3, usd=0.04) == 3  # what it had before is not counted


def test_shares_that_others_are_using_are_not_given_away() -> None:
    budget = Budget(PRICES, SpendingLimits(usd=0.3), SpendingLimits())
    with budget.share("a", 3), budget.share("b", 2):  # 10 cents each
        budget.count("a", 0.06, 0)
        assert shared(budget, "c", waiting=1, calls=9, usd=0.02) == 5
    with budget.share("d", 1):  # what a and b have left
        assert shared(budget, "e", waiting=1, calls=9, usd=0.02) == 0


def test_a_share_is_no_more_than_a_task_s_own_limit() -> None:
    budget = Budget(PRICES, SpendingLimits(usd=1.0), SpendingLimits(usd=0.05))
    with pytest.raises(BudgetSpent, match=r"\$0.05 are spent on this task"):
        shared(budget, "a", waiting=2, calls=9, usd=0.02)


def test_a_share_of_tokens() -> None:
    budget = Budget(PRICES, SpendingLimits(tokens=10_000), SpendingLimits())
    assert shared(budget, "a", waiting=4, calls=9, usd=0.0) == 3  # of 2500 tokens


def test_cheap_calls_use_all_that_there_is() -> None:
    """What is reserved is given back: calls that cost a hundredth of what they may are not kept out."""
    _, spent = spend(SpendingLimits(usd=0.2), SpendingLimits(), list("ab"), 500, share=0.01)
    assert 0.2 <= sum(spent.values()) <= 0.2 + 2 * 0.01 * MOST_USD


def test_calls_are_made_at_a_time_while_all_fit() -> None:
    budget = Budget(PRICES, SpendingLimits(usd=100), SpendingLimits())
    under_way = most = 0

    async def one() -> None:
        nonlocal under_way, most
        async with budget.reserved(call()):
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(8)))

    asyncio.run(all_of_them())
    assert most == 8


def test_a_limit_in_dollars_wants_a_price() -> None:
    unknown = Budget(PRICES, SpendingLimits(), SpendingLimits(usd=1))
    with pytest.raises(UsageError, match="--prices"):
        unknown.require_price("nobody-knows")
    unknown.require_price("m")
    Budget(PRICES, SpendingLimits(tokens=1), SpendingLimits()).require_price("nobody-knows")
