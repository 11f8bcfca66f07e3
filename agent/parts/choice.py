"""Choice of the parts of a model, from what its submodules take.

For 12 transformer blocks of 7% each between an embedding and a head

    blocks.0 … blocks.11   one part in 12 places, 84%   (they are called alike and have equal parameters)
    head                   one part, 12%
    embedding              too small: 4%

A submodule that is nearly the whole, or that is called in several ways, is passed over for those that it
calls; a call of torch's library alone is none. Consecutive children of an `nn.Sequential` are joined, so that
a convolution comes with its activation: `features.0` to `features.4`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LEAST = 0.1  # of the whole's time, in all places; these five chosen by hand
COVERED = 0.5  # of it by all parts, or the whole is better searched at once
_MOST = 0.8  # in one place
_JOINED = 0.2  # a run of children that takes as much ends before the next one that is
_EXPENSIVE = 0.02  # of the time

Place = tuple[str, ...]  # paths of one submodule, or of consecutive ones of a Sequential


@dataclass(frozen=True)
class MeasuredSubmodule:
    """A submodule in a call of the whole."""

    seconds: float
    kind: str  # what has an equal one is the same but for the values of its parameters
    fits: bool  # it is called in one way, with tensors, and gives tensors
    calls: tuple[str, ...] = ()  # the submodules that it calls
    writes: bool = False  # into what it is given, which must then be made within its part
    is_chain: bool = False  # it is an nn.Sequential
    is_library: bool = False  # one call of torch's library, of which nothing is gained alone


@dataclass(frozen=True)
class ChosenPart:
    places: tuple[Place, ...]
    share: float  # of the whole's time, in all places


def chosen(modules: Mapping[str, MeasuredSubmodule]) -> list[ChosenPart]:
    """Return the parts, the most expensive first; none where they are not most of the whole.

    `modules`: by path; the whole's is empty.
    """
    total = modules[""].seconds
    alike: dict[tuple[str, ...], list[Place]] = {}
    for place in _places(modules, "", set()):
        alike.setdefault(tuple(modules[path].kind for path in place), []).append(place)
    parts = [
        ChosenPart(tuple(places), sum(modules[path].seconds for place in places for path in place) / total)
        for places in alike.values()
    ]
    expensive = sorted((part for part in parts if part.share >= LEAST), key=lambda part: -part.share)
    return expensive if sum(part.share for part in expensive) >= COVERED else []


def _places(modules: Mapping[str, MeasuredSubmodule], path: str, seen: set[str]) -> Iterator[Place]:
    total, calls = modules[""].seconds, modules[path].calls
    of_kind: dict[str, float] = {}
    for child in calls:
        kind = modules[child].kind
        of_kind[kind] = of_kind.get(kind, 0.0) + modules[child].seconds / total
    run: list[str] = []
    for child in calls:
        if child in seen:  # it is called by another one, too
            continue
        seen.add(child)
        each = modules[child]
        share, joined = each.seconds / total, sum(modules[other].seconds for other in run) / total
        fits = each.fits and share <= _MOST and (not each.writes or bool(run))
        joins = fits and modules[path].is_chain and (not each.calls or of_kind[each.kind] < LEAST)
        is_full = (joined >= _JOINED and share >= _EXPENSIVE) or joined + share > _MOST
        if not joins or (is_full and not each.writes):
            yield from _run(modules, run)
            run = []
        if joins:
            run.append(child)
        elif fits:
            yield from _run(modules, [child])
        else:
            yield from _places(modules, child, seen)
    yield from _run(modules, run)


def _run(modules: Mapping[str, MeasuredSubmodule], run: list[str]) -> Iterator[Place]:
    if len(run) > 1 or (run and not modules[run[0]].is_library):
        yield tuple(run)
