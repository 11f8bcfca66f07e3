"""A history by rounds.

A history is flat; seeds and repairs in it are no rounds of their own:

    0 seed, correct   1 build error   2 repair of 1, correct   3 wrong output

are a seed and two rounds. The first begins at attempt 1 and ends in attempt 2, the second in attempt 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.protocols import Attempt


@dataclass(frozen=True)
class SearchRound:
    """A file asked of the search's coder, and the repairs of it."""

    began: int  # attempts before it
    attempts: tuple[Attempt, ...]

    @property
    def last(self) -> Attempt:
        """The result of the round: its last attempt with a file, if there is one."""
        return next((a for a in reversed(self.attempts) if a.candidate.usable), self.attempts[-1])

    @property
    def usable(self) -> bool:
        return self.last.candidate.usable


@dataclass(frozen=True)
class Rounds:
    """The seeds of a history and its rounds, in order. `attempts`: how many there are of all kinds."""

    seeds: tuple[Attempt, ...]
    rounds: tuple[SearchRound, ...]
    attempts: int

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def last(self) -> list[Attempt]:
        """The result of each round."""
        return [each.last for each in self.rounds]

    @property
    def usable(self) -> list[Attempt]:
        """The results of the rounds that have a file."""
        return [each.last for each in self.rounds if each.usable]

    def seen(self, rounds: int) -> int:
        """Return the number of attempts before the round after so many."""
        return self.rounds[rounds].began if rounds < len(self.rounds) else self.attempts

    def first(self, rounds: int) -> "Rounds":
        """Return the history before the round after so many."""
        return Rounds(self.seeds, self.rounds[:rounds], self.seen(rounds))


def rounds_of(history: Sequence[Attempt]) -> Rounds:
    """Return the rounds of a history. A repair belongs to the round that made its parent first."""
    seeds: list[Attempt] = []
    rounds: list[tuple[int, list[Attempt]]] = []
    made_in: dict[str, list[Attempt]] = {}
    for number, attempt in enumerate(history):
        candidate = attempt.candidate
        if candidate.origin == "seed":
            seeds.append(attempt)
            continue
        known = [made_in[parent] for parent in candidate.parents if parent in made_in]
        if candidate.origin == "repair" and known:
            own = known[0]
            own.append(attempt)
        else:
            own = [attempt]
            rounds.append((number, own))
        made_in.setdefault(candidate.sha256, own)
    return Rounds(tuple(seeds), tuple(SearchRound(began, tuple(own)) for began, own in rounds), len(history))
