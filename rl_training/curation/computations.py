"""Tasks that compute the same, whatever their text: by traced graphs, and by outputs on the same inputs.

    softmax(x, dim=1) of 16 x 512          torch.exp(x) / torch.exp(x).sum(1, keepdim=True) of 8 x 64
      graph: amax sub exp sum …              graph: exp exp sum div             graphs differ
      outputs on 16 x 512 …                  outputs on the same 16 x 512       the same: one is the other

Graphs are compared without names and sizes, so equal ones are found at other sizes. Outputs are compared on
the inputs of one of the two, on its own and on normal ones, with its parameters; where the other cannot take
these, only graphs are known. All of it runs in sandboxed workers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal

from kernelwright.agent.builtin.ir.graph import Arg, DType, Graph, Ref
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.sources.smaller import smaller

_TIMEOUT_S = 120.0  # of one task's comparison with all others
_PRODUCT = 1 << 14  # of the constants of the task that others are compared with
_SIZES = 2  # smaller ones that are tried before its own
_SIZE = 8  # from which on a whole number in a graph is a size; a number of a kernel or an axis is less
_TINY = 1e-3  # below which a number is an epsilon, whichever


@dataclass(frozen=True)
class SameComputation:
    """Two tasks that compute the same, by id, and how that is known."""

    one: str
    other: str
    by: Literal["graph", "outputs"]


class Computations:
    """Finder of tasks that compute the same. `pool`: of workers, on the CPU."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._graphs: dict[str, str | None] = {}  # by sha256 of the task
        self.unknown: dict[str, str] = {}  # task id -> why its outputs could not be compared

    def same(self, tasks: Sequence[Task], others: Sequence[Task]) -> list[SameComputation]:
        """Return the pairs of a task and another that compute the same; a task is none with itself."""
        found = []
        for task in tasks:
            graph, rest = self._graph(task), []
            for other in others:
                if other.id == task.id:
                    continue
                if graph is not None and graph == self._graph(other):
                    found.append(SameComputation(task.id, other.id, "graph"))
                else:
                    rest.append(other)
            found += [SameComputation(task.id, other.id, "outputs") for other in self._alike(task, rest)]
        return found

    def _graph(self, task: Task) -> str | None:
        """Return the canonical text of a task's graph; None if it cannot be traced."""
        if task.sha256 not in self._graphs:
            try:
                self._graphs[task.sha256] = canonical(trace(self._pool, task))
            except (Untraceable, TaskError):
                self._graphs[task.sha256] = None
        return self._graphs[task.sha256]

    def _alike(self, task: Task, others: Sequence[Task]) -> list[Task]:
        """Return the others whose outputs are the task's."""
        if not others:
            return []
        try:
            return self._compared(task, others)
        except TaskError as error:
            self.unknown[task.id] = error.message
            return []
        except (WorkerDied, WorkerTimeout) as error:
            return self._apart(task, others, str(error))

    def _apart(self, task: Task, others: Sequence[Task], why: str) -> list[Task]:
        """Compare the task with halves of the others, of which one ended the worker, or the task did."""
        if len(others) == 1:
            try:
                self._compared(task, [])
                self.unknown[others[0].id] = why
            except (TaskError, WorkerDied, WorkerTimeout):
                self.unknown[task.id] = why
            return []
        middle = len(others) // 2
        first = self._alike(task, others[:middle])
        return first if task.id in self.unknown else first + self._alike(task, others[middle:])

    def _compared(self, task: Task, others: Sequence[Task]) -> list[Task]:
        """Return the others whose outputs are the task's.

        Raises TaskError if the task cannot be compared, WorkerDied and WorkerTimeout.
        """
        sizes = islice(chain.from_iterable(smaller(task, _PRODUCT)), _SIZES)
        request = {
            "sources": [*(each.source for each in sizes), task.source],
            "precision": str(task.precision),
            "others": [[other.source, str(other.precision)] for other in others],
        }
        entry = "kernelwright.rl_training.curation.compared_outputs:serve"
        with self._pool.start("oracle", entry) as worker:
            answer = json.loads(worker.request(request, _TIMEOUT_S))
        if "error" in answer:
            raise TaskError(answer["error"], "see the task")
        return [other for other, same in zip(others, answer["same"], strict=True) if same]


def canonical(graph: Graph) -> str | None:
    """Return a text of a graph that is the same for other names and sizes; None if it does not say all."""
    if graph.left or not graph.nodes:
        return None
    names = {given.name: f"{given.kind[0]}{place}" for place, given in enumerate(graph.inputs)}
    axes = {given.name: len(given.meta.shape) for given in graph.inputs}
    lines = [f"{given.kind} {given.meta.dtype} {axes[given.name]}" for given in graph.inputs]
    for place, node in enumerate(graph.nodes):
        rank = axes[node.inputs[0]] if node.inputs else 0
        named = sorted(node.kwargs.items())
        words = [_word(arg, names, rank) for arg in node.args]
        words += [f"{name}={_word(arg, names, rank)}" for name, arg in named]
        names[node.name], axes[node.name] = f"n{place}", len(node.meta.shape)
        lines.append(f"{node.op} {' '.join(words)}")
    return "\n".join([*lines, " ".join(names[name] for name in graph.outputs)])


def _word(arg: Arg, names: Mapping[str, str], rank: int) -> str:
    """Return an argument without names and sizes; axes of a list are counted from the first of `rank`."""
    if isinstance(arg, Ref):
        return names[arg.ref]
    if isinstance(arg, DType):
        return arg.dtype
    if isinstance(arg, tuple):
        axes = (each + rank if isinstance(each, int) and -rank <= each < 0 else each for each in arg)
        return f"({' '.join(_word(each, names, rank) for each in axes)})"
    if isinstance(arg, int | float) and not isinstance(arg, bool):
        if not math.isfinite(arg):
            return repr(arg)
        if abs(arg) >= _SIZE and arg == int(arg):
            return "size"
        return "epsilon" if 0 < abs(arg) < _TINY else repr(arg)
    return repr(arg)
