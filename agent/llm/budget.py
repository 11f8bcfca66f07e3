"""Budget of a run, and of each of its tasks, for language models; checked before a call is made, not after.

A call is begun when its highest possible cost fits into what is left, counting the calls under way. If it
does not fit it waits for those; when none is under way and anything is left, it is begun all the same. So a
limit is exceeded by one call at most; that may cost three answers if streams break off.

Calls for a part of a task count for the whole as well, which has the limits of a task; the part has its share
of these.

A task's first round may take its share of what is left of the run, so that something is left for the others:
of $30 for 100 tasks $0.30. The first takes $0.10, so the next may take $29.90 / 99 = $0.302.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from kernelwright.agent.llm.endpoint.prices import Prices
from kernelwright.agent.llm.model import ModelCall, Usage
from kernelwright.agent.spending.budget import BudgetSpent, ShareSpent, SpendingLimits
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import PartOf, Task

# None: the run; a task's id: the task itself; its id in a tuple: the task with its parts.
Account: TypeAlias = str | tuple[str] | None


@dataclass(frozen=True)
class Spent:
    usd: float = 0.0
    tokens: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.usd + other.usd, self.tokens + other.tokens)

    def reaches(self, limit: SpendingLimits) -> str | None:
        """Return the limit that has been reached; None while something is left."""
        if limit.tokens is not None and self.tokens >= limit.tokens:
            return f"{limit.tokens} tokens"
        return f"${limit.usd:g}" if limit.usd is not None and self.usd >= limit.usd else None

    def fits(self, limit: SpendingLimits) -> bool:
        tokens, usd = limit.tokens, limit.usd
        return (tokens is None or self.tokens <= tokens) and (usd is None or self.usd <= usd)

    def part_of(self, limit: SpendingLimits) -> float:
        """Return the largest part of any limit that this is; 0.0 if there is none."""
        usd = self.usd / limit.usd if limit.usd else 0.0
        return max(usd, self.tokens / limit.tokens if limit.tokens else 0.0)

    def left_of(self, limit: SpendingLimits) -> "Spent":
        """Return what is left of each limit; 0 of what has none."""
        return Spent(max(0.0, (limit.usd or 0.0) - self.usd), max(0, (limit.tokens or 0) - self.tokens))


class Budget:
    """Budget of one run. Not thread-safe: calls are made in one event loop."""

    def __init__(self, prices: Prices, run: SpendingLimits, task: SpendingLimits) -> None:
        self.prices = prices
        self._allowances = {"run": run, "task": task}
        self._spent: dict[Account, Spent] = {}
        self._reserved: dict[Account, Spent] = {}
        self._under_way: Counter[Account] = Counter()
        self._parts: dict[str, PartOf] = {}
        self._changed = asyncio.Condition()
        self.calls = 0  # that were counted
        self._asked: dict[int, ModelCall] = {}  # the calls under way
        self._shares: dict[str, SpendingLimits] = {}  # of tasks in their first round: what they may reach
        self._sharing = threading.Lock()

    def require_price(self, model: str) -> None:
        """Raise UsageError if dollars are limited and the price of the model is unknown."""
        limited = any(allowance.usd is not None for allowance in self._allowances.values())
        if limited and self.prices.of(model) is None:
            raise UsageError(
                f"--max-usd cannot be enforced: the price of {model} is unknown",
                "give it with --price IN/OUT, in dollars per million tokens, or a table with --prices",
            )

    def count(self, task: str | None, usd: float | None, tokens: int) -> None:
        """Add the cost of a call; None dollars if unknown."""
        self.calls += 1
        for account in self._accounts(task):
            self._spent[account] = self.spent_on(account) + Spent(usd or 0.0, tokens)

    def add_parts(self, tasks: Iterable[Task]) -> None:
        """Count calls for these parts as their wholes', too. From any thread, before any is made."""
        self._parts |= {task.id: task.part for task in tasks if task.part is not None}

    def spent_on(self, account: Account) -> Spent:
        """Return what has been spent on a task without its parts, or by the run."""
        return self._spent.get(account, Spent())

    def _accounts(self, task: str | None) -> tuple[Account, ...]:
        if task is None:
            return (None,)
        part = self._parts.get(task)
        return None, (part.whole if part is not None else task,), task

    @property
    def under_way(self) -> list[ModelCall]:
        """Return the calls that are being made. From any thread."""
        return list(self._asked.values())

    @contextmanager
    def share(self, task: str, waiting: float) -> Iterator[None]:
        """Limit a task's calls in the block to 1 / `waiting` of what the run has left. From any thread.

        What other tasks have left of their shares is not counted as left. Calls beyond it raise ShareSpent.
        """
        run = self._allowances["run"]
        with self._sharing:
            spent = self.spent_on(None)
            for other, share in self._shares.items():
                spent += self.spent_on(other).left_of(share)
            left, own = spent.left_of(run), self.spent_on(task)
            self._shares[task] = SpendingLimits(
                usd=None if run.usd is None else own.usd + left.usd / waiting,
                tokens=None if run.tokens is None else own.tokens + int(left.tokens / waiting),
            )
        try:
            yield
        finally:
            with self._sharing:
                del self._shares[task]

    def spent_by(self, task: str | None) -> str | None:
        """Return the limit that a task, or the run, has reached; None while something is left."""
        for account in self._accounts(task):
            limit = self.spent_on(account).reaches(self._allowance(account))
            if limit is not None:
                return f"{limit} are spent" + (" on this task" if account is not None else "")
        return None

    @asynccontextmanager
    async def reserved(self, call: ModelCall) -> AsyncIterator[None]:
        """Reserve the cost of a call around it and its `count`. Raises BudgetSpent if it must not be made."""
        most = self._most(call)
        accounts = self._accounts(call.task)
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_begin(call, accounts, most))
            for account in accounts:
                self._reserved[account] = self._reserved.get(account, Spent()) + most
                self._under_way[account] += 1
            self._asked[id(call)] = call
        try:
            yield
        finally:
            del self._asked[id(call)]
            async with self._changed:
                for account in accounts:
                    self._reserved[account] += Spent(-most.usd, -most.tokens)
                    self._under_way[account] -= 1
                self._changed.notify_all()

    def _may_begin(self, call: ModelCall, accounts: Iterable[Account], most: Spent) -> bool:
        """Return True if a call may begin now; False while it must wait. Raises BudgetSpent."""
        reached = self.spent_by(call.task)
        if reached is not None:
            raise BudgetSpent(reached)
        share = self._shares.get(call.task or "", SpendingLimits())
        if (reached := self.spent_on(call.task).reaches(share)) is not None:
            raise ShareSpent(f"{reached}, this task's share of what is left, are spent")
        for account in accounts:
            used = self.spent_on(account) + self._reserved.get(account, Spent()) + most
            fits = used.fits(self._allowance(account)) and (account != call.task or used.fits(share))
            if self._under_way[account] and not fits:
                return False
        return True

    def _most(self, call: ModelCall) -> Spent:
        """Return the highest possible cost of a call."""
        prompt = call.prompt_tokens
        usage = Usage(prompt_tokens=prompt, completion_tokens=call.sampling.max_tokens)
        price = self.prices.of(call.sampling.model)
        return Spent(price.usd(usage) if price is not None else 0.0, prompt + call.sampling.max_tokens)

    def _allowance(self, account: Account) -> SpendingLimits:
        if isinstance(account, str):
            return self._allowances["task"].of_part(self._parts.get(account))
        return self._allowances["run" if account is None else "task"]
