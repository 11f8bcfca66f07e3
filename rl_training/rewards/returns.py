"""What a turn is credited with: its reward and, discounted, those of later turns (Kevin, arXiv:2507.11948).

Each turn is a sample of its own, so that a first file that is slow, but leads to a fast one, is worth
something.
"""

from collections.abc import Sequence


def discounted(rewards: Sequence[float | None], gamma: float) -> list[float | None]:
    """R_t = r_t + gamma R_{t+1}, for each turn.

    None where the turn's own reward is not known, or a later one that would count: its sum would be short of
    something, which would be a penalty for what the evaluator did.
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
