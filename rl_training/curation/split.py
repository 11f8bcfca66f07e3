"""Split of the tasks: held-out ones, and those that must not be in the data at all."""

import random
from collections.abc import Collection, Mapping, Sequence

import networkx as nx  # type: ignore[import-untyped]

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Task
from kernelwright.rl_training.curation.samples import TaskSamples
from kernelwright.rl_training.similarity import likeness, nearest, reference_shingles


def contaminated(tasks: Sequence[TaskSamples], evaluation: Sequence[Task], alike: float) -> dict[str, str]:
    """Return task id -> the evaluation task that it equals, or is a near-duplicate of."""
    ids = {task.id for task in evaluation}
    references = [(task.id, reference_shingles(task.source)) for task in evaluation]
    found = {}
    for one in tasks:
        task = one.data.task
        near = nearest(reference_shingles(task.source), references, alike)
        if task.id in ids:
            found[task.id] = task.id
        elif near:
            found[task.id] = near[0][0]
    return found


def groups(
    tasks: Sequence[TaskSamples], alike: float, same: Collection[tuple[str, str]] = ()
) -> list[list[TaskSamples]]:
    """Group tasks of one family of operators, or with references that are near-duplicates.

    `same`: pairs of ids that compute the same, and are grouped, too.
    """
    graph = nx.Graph()
    graph.add_nodes_from(range(len(tasks)))
    references = [reference_shingles(one.data.task.source) for one in tasks]
    for i, one in enumerate(tasks):
        for j in range(i):
            related = one.data.family == tasks[j].data.family
            if related or likeness(references[i], references[j], alike) > 0:
                graph.add_edge(i, j)
    places = {one.data.task.id: i for i, one in enumerate(tasks)}
    graph.add_edges_from((places[a], places[b]) for a, b in same if a in places and b in places)
    together = nx.connected_components(graph)
    return [[tasks[i] for i in sorted(group)] for group in sorted(together, key=min)]


def held_out(
    tasks: Sequence[TaskSamples],
    share: float,
    seed: int,
    alike: float,
    same: Collection[tuple[str, str]] = (),
) -> list[TaskSamples]:
    """Choose whole groups, about `share` of the tasks, to hold out. `same`: see `groups`.

    Raises UsageError if that is not possible.
    """
    if share == 0:
        return []
    together = groups(tasks, alike, same)
    if len(tasks) == 1:
        raise UsageError(
            f"the only task, {tasks[0].data.task.id}, cannot be held out",
            "give runs of more tasks, or --held-out-share 0",
        )
    if len(together) == 1:
        raise UsageError(
            f"all {len(tasks)} tasks are of one family of operators, {tasks[0].data.family}",
            "give runs with tasks of other families to hold out, or --held-out-share 0",
        )
    together.sort(key=lambda group: group[0].data.task.id)
    random.Random(seed).shuffle(together)
    wanted, held = share * len(tasks), list[list[TaskSamples]]()
    for group in together[:-1]:
        now = sum(map(len, held))
        if abs(now + len(group) - wanted) < abs(now - wanted):
            held.append(group)
    if not held:
        held.append(min(together, key=len))
    return [one for group in held for one in group]


def held_out_by_operator(
    tasks: Sequence[TaskSamples],
    share: float,
    seed: int,
    alike: float,
    same: Collection[tuple[str, str]] = (),
) -> list[TaskSamples]:
    """Choose families of operators that no task of training has, of about `share` of the tasks, to hold out.

    With each task goes its group, as of `groups`. Raises UsageError if that is not possible.
    """
    if share == 0:
        return []
    together = [{one.data.task.id for one in group} for group in groups(tasks, alike, same)]
    with_it: dict[str, set[str]] = {}
    for one in tasks:
        for operator in one.data.family.split("+"):
            with_it.setdefault(operator, set()).add(one.data.task.id)
    for ids in with_it.values():
        for group in together:
            ids |= group if not ids.isdisjoint(group) else set()
    order = sorted(with_it)
    random.Random(seed).shuffle(order)
    wanted, held = share * len(tasks), set[str]()
    for operator in order:
        more = held | with_it[operator]
        if len(more) < len(tasks) and abs(len(more) - wanted) < abs(len(held) - wanted):
            held = more
    if not held:
        raise UsageError(
            f"no operator of these {len(tasks)} tasks can be held out with about {share:.0%} of them",
            "give runs of more tasks, another --held-out-share, or --held-out-by combination",
        )
    return [one for one in tasks if one.data.task.id in held]


def closest(
    train: Mapping[str, frozenset[int]], test: Mapping[str, frozenset[int]]
) -> tuple[str, str, float] | None:
    """Return the most similar pair of the two parts, by name, with its likeness; None if one is empty."""
    pairs = ((a, b, likeness(s, t)) for a, s in train.items() for b, t in test.items())
    return max(pairs, key=lambda pair: pair[2], default=None)
