"""Advantages of turns from their credit: the estimators that online training chooses among.

Turns of one prompt are a group. `grpo` and `dr_grpo` subtract the group's mean (arXiv:2402.03300,
arXiv:2503.20783) over all its turns, as Kevin does (arXiv:2507.11948); `rloo` the mean of the others at the
same place in their trajectories (arXiv:2402.14740; turn by turn as in Dr.Kernel, arXiv:2602.05885); `remax`
the greedy reply's credit there (arXiv:2310.10505). `reinforce_plus_plus` subtracts the mean of the whole
batch and divides by its standard deviation, `reinforce_plus_plus_baseline` first subtracts the group's mean
(arXiv:2501.03262). `max_at_k` is for a policy of whose replies the best of k is taken: by how much a reply
raises the expected best of k of its group, as in arXiv:2505.15201, over what k of the others give. A turn
without a reward, because the evaluator failed, has an advantage of 0 and is part of no mean.

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
>>> advantages(replies, "max_at_k", k=2)  # (max(1, 2) + max(1, 6)) / 2 - max(2, 6), and so on
[-2.0, -2.0, 4.0, 0.0]

A function of the user's, `my.py:centred`, takes the turns and returns their advantages:

    def centred(turns: Sequence[Credited]) -> list[float]: ...
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kernelwright.kernelbench.errors import KernelwrightError
from kernelwright.rl_training.functions import function_of

Estimator = Literal[
    "grpo",
    "dr_grpo",
    "rloo",
    "remax",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "max_at_k",
]
ESTIMATORS: tuple[str, ...] = get_args(Estimator)

_EPSILON = 1e-4  # added to the standard deviation, as in TRL's GRPOTrainer


@dataclass(frozen=True)
class Credited:
    """Credit of one turn. `value`: its discounted return; None if unknown."""

    value: float | None
    group: int
    turn: int = 0
    greedy: bool = False  # a baseline of `remax`, which is not learned from


class EstimatorFailed(KernelwrightError):  # noqa: N818 - what happened
    """A defect of a user's estimator."""


def advantages(turns: Sequence[Credited], estimator: str, k: int = 4) -> list[float]:
    """Return the advantage of each turn, in order.

    `estimator`: one of ESTIMATORS, or a user's function; `k`: of `max_at_k`. Raises UsageError,
    EstimatorFailed.
    """
    if estimator not in ESTIMATORS:
        return _by_function(turns, estimator)
    groups: dict[tuple[int, ...], list[Credited]] = {}
    by_turn = estimator in ("rloo", "remax", "max_at_k")
    for turn in turns:
        groups.setdefault(_key(turn, by_turn), []).append(turn)
    found = [_advantage(turn, groups[_key(turn, by_turn)], estimator, k) for turn in turns]
    return _normalized(turns, found) if estimator.startswith("reinforce_plus_plus") else found


def _key(turn: Credited, by_turn: bool) -> tuple[int, ...]:
    return (turn.group, turn.turn) if by_turn else (turn.group,)


def _advantage(turn: Credited, group: Sequence[Credited], estimator: str, k: int) -> float:
    if turn.value is None or turn.greedy:
        return 0.0
    if estimator == "reinforce_plus_plus":
        return turn.value
    if estimator == "remax":
        greedy = _known(other for other in group if other.greedy)
        return turn.value - greedy[0] if greedy else 0.0
    if estimator in ("rloo", "max_at_k"):
        others = _known(other for other in group if other is not turn)
        return _raised_best(turn.value, others, 1 if estimator == "rloo" else k)
    known = _known(group)
    mean = math.fsum(known) / len(known)
    if estimator != "grpo":
        return turn.value - mean
    if len(known) < 2:
        return 0.0
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1))
    return (turn.value - mean) / (deviation + _EPSILON)


def _raised_best(value: float, others: Sequence[float], k: int) -> float:
    """Return the mean best of `value` and k - 1 of the others, less that of k of the others.

    That of a single one is their mean. Of fewer others than k, k is their number.
    """
    k = min(k, len(others))
    if k == 0:
        return 0.0
    ordered = sorted(others)
    # Of all subsets of j, comb(i, j - 1) have the element at place i as their largest.
    without = math.fsum(math.comb(i, k - 1) * best for i, best in enumerate(ordered))
    without /= math.comb(len(ordered), k)
    if k == 1:
        return value - without
    best_with = math.fsum(math.comb(i, k - 2) * max(best, value) for i, best in enumerate(ordered))
    return best_with / math.comb(len(ordered), k - 1) - without


def _normalized(turns: Sequence[Credited], values: Sequence[float]) -> list[float]:
    """Return the values of turns with a reward, less their mean and over their standard deviation."""
    learned = [turn.value is not None and not turn.greedy for turn in turns]
    known = [value for value, is_learned in zip(values, learned, strict=True) if is_learned]
    if len(known) < 2:
        return [0.0] * len(turns)
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1))
    return [
        (value - mean) / (deviation + _EPSILON) if is_learned else 0.0
        for value, is_learned in zip(values, learned, strict=True)
    ]


def _by_function(turns: Sequence[Credited], name: str) -> list[float]:
    function = function_of(name)
    fix = "return a finite number for each turn, in order"
    try:
        found = [float(value) for value in function(turns)]
    except Exception as error:
        raise EstimatorFailed(f"{name} raised {type(error).__name__}: {error}", fix) from error
    if len(found) != len(turns) or not all(map(math.isfinite, found)):
        raise EstimatorFailed(f"{name} gave {found[:8]} for {len(turns)} turns", fix)
    unknown = (turn.value is None or turn.greedy for turn in turns)
    return [0.0 if is_unknown else value for value, is_unknown in zip(found, unknown, strict=True)]


def _known(turns: Iterable[Credited]) -> list[float]:
    return [turn.value for turn in turns if turn.value is not None]
