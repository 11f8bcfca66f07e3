"""Status of a run at a moment: money, calls, the queue of the device, tasks, and the time that is left.

$3.41 of $75 · 41 calls, 12 under way · GPU queue 3 · 14/250 tasks done, 30 under way · about 4.6 h left
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.results import formatting

_BETWEEN = " · "
_LEAST_SHARE, _LEAST_S = 0.02, 20.0  # of a run, before it is told how long it may take
_NAMED = 2  # tasks of an activity
_DOING = {"coder": "writing", "judge": "advising on", "agent": "working on"}


@dataclass(frozen=True)
class RunStatus:
    """`usd`: None without language models. `share`: of the run that is done. Tasks `begun` are not done."""

    usd: float | None
    tokens: int
    max_usd: float | None
    calls: int
    asked: int  # calls under way
    device: str
    queue: int
    tasks: int
    done: int
    begun: int
    share: float
    took_s: float
    left_s: float | None
    now: str

    def parts(self) -> list[str]:
        """Return what is known."""
        known = []
        if self.usd is not None:
            spent = formatting.money(self.usd) if self.usd or self.max_usd else f"{self.tokens:,} tokens"
            known.append(f"{spent} of ${self.max_usd:g}" if self.max_usd is not None else spent)
            known.append(f"{self.calls} calls, {self.asked} under way")
        known.append(f"{self.device} queue {self.queue}")
        known.append(f"{self.done}/{self.tasks} tasks done, {self.begun} under way")
        return known if self.left_s is None else [*known, f"about {_about(self.left_s)} left"]

    def line(self) -> str:
        return _BETWEEN.join(self.parts())

    def lines(self, width: int) -> list[str]:
        """Return the line, broken between its parts where they do not fit."""
        found = [""]
        for part in self.parts():
            longer = f"{found[-1]}{_BETWEEN}{part}" if found[-1] else part
            if found[-1] and len(longer) > width:
                found.append(part)
            else:
                found[-1] = longer
        return found


def activities(evaluated: Sequence[str], asked: Sequence[tuple[str, str]]) -> str:
    """Return what is going on, given the tasks in slots and the (role, task) of the calls under way.

    "evaluating level1/softmax · writing level1/relu, level2/gelu and 9 more"
    """
    doing: dict[str, list[str]] = {"evaluating": list(evaluated)} if evaluated else {}
    for role, task in asked:
        doing.setdefault(_DOING.get(role, f"asking the {role} about"), []).append(task)
    return _BETWEEN.join(f"{what} {_names(tasks)}" for what, tasks in doing.items())


def seconds_left(took_s: float, share_before: float, share: float, max_minutes: float | None) -> float | None:
    """Estimate the seconds left, from what has passed since a run went on; None while that tells nothing."""
    limit = None if max_minutes is None else max(0.0, 60 * max_minutes - took_s)
    gained = share - share_before
    if gained < _LEAST_SHARE or took_s < _LEAST_S:
        return None
    left = took_s * (1 - share) / gained
    return left if limit is None else min(left, limit)


def _names(tasks: Sequence[str]) -> str:
    names = list(dict.fromkeys(task.partition(":")[2] or task for task in tasks))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _about(seconds: float) -> str:
    """Format as `40 s`, `12 min`, `4.6 h`."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
