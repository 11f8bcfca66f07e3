"""Advantages of turns from their credit: the estimators that online training chooses among.

Turns of one prompt are a group. `grpo` and `dr_grpo` subtract the group's mean (arXiv:2402.03300,
arXiv:2503.20783) over all its turns, as Kevin does (arXiv:2507.11948); `rloo` the mean of the others at the
same place in their trajectories (arXiv:2402.14740; turn by turn as in Dr.Kernel, arXiv:2602.05885); `remax`
the greedy reply's credit there (arXiv:2310.10505). A turn without a reward, because the evaluator failed, has
an advantage of 0 and is part of no mean.

Four replies to one prompt, the last without a reward; their mean is 3, and their standard deviation 2.65:

>>> replies = [Credited(value, group=0) for value in (1.0, 2.0, 6.0, None)]
>>> advantages(replies, "dr_grpo")  # 1 - 3, 2 - 3, 6 - 3
[-2.0, -1.0, 3.0, 0.0]
>>> [round(advantage, 2) for advantage in advantages(replies, "grpo")]  # these over 2.65
[-0.76, -0.38, 1.13, 0.0]
>>> advantages(replies, "rloo")  # 1 - (2 + 6) / 2, and so on
[-3.0, -1.5, 4.5, 0.0]
>>> advantages([*replies, Credited(1.5, group=0, greedy=True)], "remax")  # less 1.5
[-0.5, 0.5, 4.5, 0.0, 0.0]
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Estimator = Literal["grpo", "dr_grpo", "rloo", "remax"]

_EPSILON = 1e-4  # added to the standard deviation, as in TRL's GRPOTrainer


@dataclass(frozen=True)
class Credited:
    """Credit of one turn. `value`: its discounted return; None if unknown."""

    value: float | None
    group: int
    turn: int = 0
    greedy: bool = False  # a baseline of `remax`, which is not learned from


def advantages(turns: Sequence[Credited], estimator: Estimator) -> list[float]:
    """Return the advantage of each turn, in order."""
    groups: dict[tuple[int, ...], list[Credited]] = {}
    by_turn = estimator in ("rloo", "remax")
    for turn in turns:
        groups.setdefault(_key(turn, by_turn), []).append(turn)
    return [_advantage(turn, groups[_key(turn, by_turn)], estimator) for turn in turns]


def _key(turn: Credited, by_turn: bool) -> tuple[int, ...]:
    return (turn.group, turn.turn) if by_turn else (turn.group,)


def _advantage(turn: Credited, group: Sequence[Credited], estimator: Estimator) -> float:
    if turn.value is None or turn.greedy:
        return 0.0
    if estimator == "remax":
        greedy = _known(other for other in group if other.greedy)
        return turn.value - greedy[0] if greedy else 0.0
    if estimator == "rloo":
        others = _known(other for other in group if other is not turn)
        return turn.value - math.fsum(others) / len(others) if others else 0.0
    known = _known(group)
    mean = math.fsum(known) / len(known)
    if estimator == "dr_grpo":
        return turn.value - mean
    if len(known) < 2:
        return 0.0
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1))
    return (turn.value - mean) / (deviation + _EPSILON)


def _known(turns: Iterable[Credited]) -> list[float]:
    return [turn.value for turn in turns if turn.value is not None]
