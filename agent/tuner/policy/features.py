"""Features of a traced task that a policy reads: operators, sizes, bytes, FLOPs.

Of `torch.softmax(torch.tanh(x), dim=-1)` with x of [256, 1024]:

    tanh _softmax rows:8 columns:10 bytes:21 flops:20

Numbers are logarithms to base 2, rounded. A policy knows the words of its training tasks (`Words`): other
numbers are given as the nearest that it knows, and operators that it does not know are left out.
"""

import math
from collections.abc import Iterable, Sequence

from kernelwright.agent.builtin.coverage import coverage
from kernelwright.agent.builtin.ir.graph import Graph, Meta
from kernelwright.agent.builtin.schedule import DEFAULT
from kernelwright.agent.tuner.policy.space import ScheduleSpace

_OPERATORS = 24  # of a task, at most, each once
ASSISTANT, END, PAD = "<|assistant|>", "<|eos|>", "<|pad|>"


def features(graph: Graph) -> list[str]:
    """Return the words that describe a graph. Raises Untraceable."""
    graphs = [*graph.parts.values()] or [graph]
    nodes = [node for each in graphs for node in each.nodes]
    operators = list(dict.fromkeys(node.operator for node in nodes if node.op != "getitem"))
    metas = [meta for each in graphs for meta in _tensors(each)]
    largest = max(metas, key=lambda meta: meta.numel)
    columns = largest.shape[-1] if largest.shape else 1
    cost = coverage(graph, DEFAULT)
    numbers = {
        "rows": largest.numel // max(1, columns),
        "columns": columns,
        "bytes": cost.own.bytes + cost.library.bytes,
        "flops": cost.own.flops + cost.library.flops,
    }
    return [*operators[:_OPERATORS], *(f"{name}:{_log2(value)}" for name, value in numbers.items())]


class Words:
    """The words that a policy knows."""

    def __init__(self, known: Iterable[str]) -> None:
        self.known = tuple(dict.fromkeys(known))
        self._numbers: dict[str, list[int]] = {}
        for word in self.known:
            name, colon, value = word.partition(":")
            if colon and value.isdigit():
                self._numbers.setdefault(name, []).append(int(value))

    def prompt(self, space: ScheduleSpace) -> str:
        """Return what is asked for a task: its features, then the knobs that a line is to have."""
        return " ".join([*self._read(features(space.graph)), *(slot.asked for slot in space.slots)])

    def _read(self, words: Sequence[str]) -> list[str]:
        found = []
        for word in words:
            name, colon, value = word.partition(":")
            if colon and name in self._numbers:
                nearest = min(self._numbers[name], key=lambda known: abs(known - int(value)))
                found.append(f"{name}:{nearest}")
            elif word in self.known:
                found.append(word)
        return found


def _tensors(graph: Graph) -> list[Meta]:
    return [each.meta for each in graph.inputs] + [meta for node in graph.nodes for meta in node.outputs]


def _log2(value: int) -> int:
    return round(math.log2(max(1, value)))
