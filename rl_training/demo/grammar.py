"""Tasks from a grammar, on which the embedded policy is trained and tried.

A task is a pointwise operation on one matrix or two, a core over rows (a softmax, a sum …, or none), and
perhaps another pointwise operation. Whole sequences of operations are held out, with any numbers: a policy
has seen each of their parts, but never in this combination.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import product

from kernelwright.kernelbench.records import Record, Task, Work
from kernelwright.rl_training.templating import template

# Functions that take their time, so that what others on the machine do to memory counts for less.
FIRST: Mapping[str, str] = {
    "sigmoid": "torch.sigmoid(x)",
    "tanh": "torch.tanh(x)",
    "erf": "torch.erf(x)",
    "silu": "x * torch.sigmoid(x)",
    "softplus": "torch.nn.functional.softplus(x)",
    "damp": "torch.tanh(x * {number})",
    "gate": "torch.sigmoid(x) * y",
    "blend": "torch.tanh(x + y)",
}
_OF_TWO = ("gate", "blend")  # inputs
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
LAST: Mapping[str, str] = {
    "": "",
    "sigmoid": "torch.sigmoid(h)",
    "tanh": "torch.tanh(h)",
    "erf": "torch.erf(h)",
    "silu": "h * torch.sigmoid(h)",
    "softplus": "torch.nn.functional.softplus(h)",
    "damp": "torch.tanh(h * {number})",
}
_NUMBERS = ("0.5", "2.0", "0.1")
_WITH_NUMBER = ("damp",)
ROWS, COLUMNS = 256, 1024  # so small that a call is timed in a moment


class DrawnTask(Record):
    name: str
    sequence: tuple[str, str, str]  # the first operation, the core, the last operation
    numbers: tuple[str, ...] = ()  # of these, "" where an operation has none
    source: str
    rows: int = ROWS
    columns: int = COLUMNS

    @property
    def inputs(self) -> int:
        return 2 if self.sequence[0] in _OF_TWO else 1

    @property
    def task(self) -> Task:
        """The task as `kernelwright run NAME.py` has it, so that a served policy sees familiar prompts."""
        return Task(id=f"file:{self.name}", level=1, source=self.source)

    @property
    def work(self) -> Work:
        matrix = 4 * self.rows * self.columns
        written = 4 * self.rows if self.sequence[1] in _TO_ROWS else matrix
        return Work(input_bytes=self.inputs * matrix, weight_bytes=0, output_bytes=written, flops=0)


def every_task(rng: random.Random) -> list[DrawnTask]:
    """Return each sequence of operations with random numbers, in a random order."""
    found = [
        drawn_task(sequence, [rng.choice(_NUMBERS) if part in _WITH_NUMBER else "" for part in sequence])
        for sequence in product(FIRST, CORES, LAST)
        if _is_one(sequence)
    ]
    rng.shuffle(found)
    return found


def _is_one(sequence: tuple[str, str, str]) -> bool:
    """Return True for a valid sequence: reductions end it; without a core it has two distinct operations."""
    first, core, last = sequence
    if core in _TO_ROWS:
        return not last
    return core != "none" or last not in ("", first)


def every_task_of(shapes: Sequence[tuple[int, int]], rng: random.Random) -> list[DrawnTask]:
    """Return each sequence of operations with each of the shapes (rows, columns), in a random order."""
    found = [drawn_task(task.sequence, task.numbers, *shape) for task in every_task(rng) for shape in shapes]
    rng.shuffle(found)
    return found


def drawn_task(
    sequence: tuple[str, str, str], numbers: Sequence[str], rows: int = ROWS, columns: int = COLUMNS
) -> DrawnTask:
    parts = zip((FIRST, CORES, LAST), sequence, numbers, strict=True)
    statements = [kind[name].format(number=number) for kind, name, number in parts if kind[name]]
    source = template("drawn_task.py").render(
        arguments=("x", "y")[: 2 if sequence[0] in _OF_TWO else 1],
        statements=[f"h = {line}" for line in statements],
        rows=rows,
        columns=columns,
    )
    named = (part + number for part, number in zip(sequence, numbers, strict=True))
    name = "_".join(part for part in named if part and part != "none")
    shape = "" if (rows, columns) == (ROWS, COLUMNS) else f"_{rows}x{columns}"
    return DrawnTask(
        name=name + shape,
        sequence=sequence,
        numbers=tuple(numbers),
        source=source,
        rows=rows,
        columns=columns,
    )
