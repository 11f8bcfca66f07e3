"""The loops of machine code: natural loops (Aho, Lam, Sethi, Ullman 2006, chapter 9.6)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx as nx  # type: ignore[import-untyped]


@dataclass(frozen=True)
class NaturalLoop:
    """A loop by the numbers of its instructions, in order, without those of inner loops."""

    own: tuple[int, ...]
    innermost: bool


def loops(
    successors: Sequence[Sequence[int]], counts: Callable[[set[int]], bool] = lambda body: True
) -> list[NaturalLoop]:
    """Return the loops of code in which instruction n is followed by one of `successors[n]`; it starts at 0.

    An edge back to an instruction that dominates its origin makes a loop; an edge from code behind a loop
    that jumps back into it does not. `counts`: filter of loops by their body.
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
        found.append(NaturalLoop(tuple(sorted(body.difference(*inner))), not inner))
    return sorted(found, key=lambda loop: loop.own)


def _dominates(head: int, at: int | None, dominators: dict[int, int | None]) -> bool:
    while at is not None and at != head:
        at = dominators[at]
    return at == head


def _body(graph: "nx.DiGraph[int]", origin: int, head: int) -> set[int]:
    """Return the instructions that reach the origin of a back edge without passing the head."""
    found, open_ = {head}, [origin]
    while open_:
        at = open_.pop()
        if at not in found:
            found.add(at)
            open_ += graph.predecessors(at)
    return found
