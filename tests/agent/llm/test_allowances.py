"""A limit is never overshot by more than the call that reached it, however many are made at a time."""

import asyncio
import random

import pytest

from kernelwright.agent.budget import BudgetSpent, SpendingLimits
from kernelwright.agent.llm.budget import Budget
from kernelwright.agent.llm.model import Message, ModelCall, Sampling
from kernelwright.agent.llm.prices import Price, Prices
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
