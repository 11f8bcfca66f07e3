"""Tasks drawn from a grammar: what the embedded policy learns from, and is tried on.

A task is some pointwise operations on one or two matrices, a core over rows (a softmax, a sum …, or none), and
perhaps pointwise operations after it. Its structure is the core with the number of its inputs; held out are whole
structures, so that what a policy is tried on was neither in its data nor among the tasks it was rewarded for.
"""

import random
from collections.abc import Iterator, Sequence

from kernelbench.records import Record, Task, Work
from rl_training.templating import template

CORES = {
    "none": (),
    "softmax": ("h = torch.softmax(h, dim=-1)",),
    "layer_norm": ("h = torch.nn.functional.layer_norm(h, ({columns},))",),
    "rms_norm": ("h = h * torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + 1e-05)",),
    "centred": ("h = h - h.mean(dim=-1, keepdim=True)",),
    "scaled": ("h = h / (h.abs().amax(dim=-1, keepdim=True) + 1.0)",),
    "sum": ("h = h.sum(dim=-1)",),
    "mean": ("h = h.mean(dim=-1)",),
    "amax": ("h = h.amax(dim=-1)",),
}
_TO_ROWS = ("sum", "mean", "amax")  # cores that leave one number a row
_UNARY = (
    "torch.relu(h)",
    "torch.sigmoid(h)",
    "torch.tanh(h)",
    "torch.nn.functional.silu(h)",
    "h.abs()",
    "h.square()",
    "h * {number}",
    "h + {number}",
)
_BINARY = ("h + y", "h * y", "torch.maximum(h, y)", "h - y")
_NUMBERS = ("0.5", "2.0", "0.1", "1.5", "0.25", "3.0")
# Rows and columns: what lies in a last-level cache, so that it is timed in a moment.
SIZES = ((256, 512), (512, 512), (128, 1024), (256, 1024), (128, 2048))


class DrawnTask(Record):
    name: str
    structure: tuple[str, int]  # core, inputs
    rows: int
    columns: int
    source: str

    @property
    def task(self) -> Task:
        return Task(id=f"drawn:{self.name}", level=1, source=self.source)

    @property
    def work(self) -> Work:
        core, inputs = self.structure
        matrix = 4 * self.rows * self.columns
        written = 4 * self.rows if core in _TO_ROWS else matrix
        return Work(input_bytes=inputs * matrix, weight_bytes=0, output_bytes=written, flops=0)


STRUCTURES: tuple[tuple[str, int], ...] = tuple((core, inputs) for core in CORES for inputs in (1, 2))


def drawn(chance: random.Random, structures: Sequence[tuple[str, int]]) -> Iterator[DrawnTask]:
    """Tasks without end, no two alike, their structures in turn."""
    seen: set[str] = set()
    while True:
        for core, inputs in structures:
            body = _body(chance, core, inputs)
            rows, columns = chance.choice(SIZES)
            text = template("drawn_task.py").render(
                arguments=("x", "y")[:inputs],
                statements=[line.format(columns=columns) for line in body],
                rows=rows,
                columns=columns,
            )
            if text not in seen:
                seen.add(text)
                yield DrawnTask(
                    name=f"{core}_{inputs}_{len(seen):04}",
                    structure=(core, inputs),
                    rows=rows,
                    columns=columns,
                    source=text,
                )


def _body(chance: random.Random, core: str, inputs: int) -> list[str]:
    """Statements on `h`, which begins as x."""
    before = [_pointwise(chance) for _ in range(chance.randint(1, 2))]
    if inputs == 2:
        before.insert(chance.randint(0, len(before)), f"h = {chance.choice(_BINARY)}")
    most = 0 if core in _TO_ROWS else 1
    after = [_pointwise(chance) for _ in range(chance.randint(0, most) if core != "none" else 1)]
    return [*before, *CORES[core], *after]


def _pointwise(chance: random.Random) -> str:
    return "h = " + chance.choice(_UNARY).format(number=chance.choice(_NUMBERS))
