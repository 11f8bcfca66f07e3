"""Split of the tasks: held-out ones, and those that must not be in the data at all."""

import random
from collections.abc import Mapping, Sequence

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


def groups(tasks: Sequence[TaskSamples], alike: float) -> list[list[TaskSamples]]:
    """Group tasks of one family of operators, or with references that are near-duplicates."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(tasks)))
    references = [reference_shingles(one.data.task.source) for one in tasks]
    for i, one in enumerate(tasks):
        for j in range(i):
            same = one.data.family == tasks[j].data.family
            if same or likeness(references[i], references[j], alike) > 0:
                graph.add_edge(i, j)
    together = nx.connected_components(graph)
    return [[tasks[i] for i in sorted(group)] for group in sorted(together, key=min)]


def held_out(tasks: Sequence[TaskSamples], share: float, seed: int, alike: float) -> list[TaskSamples]:
    """Choose whole groups, about `share` of the tasks, to hold out.

    Raises UsageError if that is not possible.
    """
    if share == 0:
        return []
    together = groups(tasks, alike)
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


def closest(
    train: Mapping[str, frozenset[int]], test: Mapping[str, frozenset[int]]
) -> tuple[str, str, float] | None:
    """Return the most similar pair of the two parts, by name, with its likeness; None if one is empty."""
    pairs = ((a, b, likeness(s, t)) for a, s in train.items() for b, t in test.items())
    return max(pairs, key=lambda pair: pair[2], default=None)
