"""Credit of a turn: its reward and, discounted, those of later turns (Kevin, arXiv:2507.11948).

Each turn is a separate sample, so that a first file that is slow, but leads to a fast one, is worth
something.
"""

from collections.abc import Sequence


def discounted(rewards: Sequence[float | None], gamma: float) -> list[float | None]:
    """Return R_t = r_t + gamma R_{t+1} for each turn.

    None if the turn's own reward is unknown, or a later one that would count: its sum would be incomplete, a
    penalty for a failure of the evaluator.
    """
    returns: list[float | None] = []
    after: float | None = 0.0
    for reward in reversed(rewards):
        if reward is None or gamma == 0:
            after = reward
        elif after is not None:
            after = reward + gamma * after
        returns.append(after)
    return returns[::-1]
