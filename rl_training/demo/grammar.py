"""Tasks drawn from a grammar: what the embedded policy learns from, and is tried on.

A task is a pointwise operation on one matrix or two, a core over rows (a softmax, a sum …, or none), and
perhaps another pointwise operation. Its structure is its first operation with its core. Held out are whole
structures: a policy has seen each of their parts, but never the two together, neither in its data nor among
the tasks it was rewarded for.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

from kernelbench.records import Record, Task, Work
from rl_training.templating import template

FIRST: Mapping[str, str] = {
    "relu": "torch.relu(x)",
    "sigmoid": "torch.sigmoid(x)",
    "tanh": "torch.tanh(x)",
    "square": "x.square()",
    "scale": "x * {number}",
    "shift": "x + {number}",
    "add": "x + y",
    "mul": "x * y",
}
CORES: Mapping[str, str] = {
    "none": "",
    "softmax": "torch.softmax(h, dim=-1)",
    "rms_norm": "h * torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + 1e-05)",
    "centred": "h - h.mean(dim=-1, keepdim=True)",
    "sum": "h.sum(dim=-1)",
    "mean": "h.mean(dim=-1)",
    "amax": "h.amax(dim=-1)",
}
_TO_ROWS = ("sum", "mean", "amax")  # cores that leave one number a row
_LAST = ("torch.relu(h)", "h * {number}", "h + {number}")
_NUMBERS = ("0.5", "2.0")
SIZES = ((512, 512), (256, 1024))  # so small that a call is timed in a moment
STRUCTURES: tuple[tuple[str, str], ...] = tuple((first, core) for core in CORES for first in FIRST)


class DrawnTask(Record):
    name: str
    structure: tuple[str, str]  # the first operation, the core
    rows: int
    columns: int
    source: str

    @property
    def inputs(self) -> int:
        return 2 if self.structure[0] in ("add", "mul") else 1

    @property
    def task(self) -> Task:
        return Task(id=f"drawn:{self.name}", level=1, source=self.source)

    @property
    def work(self) -> Work:
        matrix = 4 * self.rows * self.columns
        written = 4 * self.rows if self.structure[1] in _TO_ROWS else matrix
        return Work(input_bytes=self.inputs * matrix, weight_bytes=0, output_bytes=written, flops=0)


def drawn(chance: random.Random, structures: Sequence[tuple[str, str]]) -> Iterator[DrawnTask]:
    """Tasks, no two alike, their structures in turn; it ends where no more are found."""
    seen: set[str] = set()
    while True:
        before = len(seen)
        for structure in structures:
            made = _task(chance, structure)
            if made.source not in seen:
                seen.add(made.source)
                yield made.model_copy(update={"name": f"{made.name}_{len(seen):03}"})
        if len(seen) == before:
            return


def _task(chance: random.Random, structure: tuple[str, str]) -> DrawnTask:
    first, core = structure
    statements = [f"h = {FIRST[first]}", f"h = {CORES[core]}"] if core != "none" else [f"h = {FIRST[first]}"]
    if core not in _TO_ROWS and (core == "none" or chance.random() < 0.5):
        statements.append(f"h = {chance.choice(_LAST)}")
    rows, columns = chance.choice(SIZES)
    source = template("drawn_task.py").render(
        arguments=("x", "y")[: 2 if first in ("add", "mul") else 1],
        statements=[line.format(number=chance.choice(_NUMBERS)) for line in statements],
        rows=rows,
        columns=columns,
    )
    return DrawnTask(name=f"{first}_{core}", structure=structure, rows=rows, columns=columns, source=source)
