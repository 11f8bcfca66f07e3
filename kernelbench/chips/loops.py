"""The loops of machine code: natural loops (Aho, Lam, Sethi, Ullman 2006, chapter 9.6)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx as nx  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Loop:
    """By the numbers of its instructions, in order, without those of the loops in it."""

    own: tuple[int, ...]
    innermost: bool


def loops(
    successors: Sequence[Sequence[int]], counts: Callable[[set[int]], bool] = lambda body: True
) -> list[Loop]:
    """Of code whose instruction number n goes on with one of `successors[n]`, the first at 0.

    An edge back to an instruction without which its origin is not reached makes a loop: code that lies behind
    a loop and jumps back into it does not. `counts`: whether a loop is one.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(successors)))
    graph.add_edges_from((at, after) for at, goes_on in enumerate(successors) for after in goes_on)
    if not len(graph):
        return []
    dominators: dict[int, int | None] = {**nx.immediate_dominators(graph, 0), 0: None}
    bodies: dict[int, set[int]] = {}
    for origin, head in graph.edges:
        if origin in dominators and _dominates(head, origin, dominators):
            bodies.setdefault(head, {head}).update(_body(graph, origin, head))
    bodies = {head: body for head, body in bodies.items() if counts(body)}
    found = []
    for head, body in bodies.items():
        inner = [other for at, other in bodies.items() if at != head and at in body]
        found.append(Loop(tuple(sorted(body.difference(*inner))), not inner))
    return sorted(found, key=lambda loop: loop.own)


def _dominates(head: int, at: int | None, dominators: dict[int, int | None]) -> bool:
    while at is not None and at != head:
        at = dominators[at]
    return at == head


def _body(graph: "nx.DiGraph[int]", origin: int, head: int) -> set[int]:
    """What reaches the origin of an edge back without passing the head."""
    found, open_ = {head}, [origin]
    while open_:
        at = open_.pop()
        if at not in found:
            found.add(at)
            open_ += graph.predecessors(at)
    return found
