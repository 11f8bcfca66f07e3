"""Kernels on a grid of blocks: one function, or two where blocks find parts of a result."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TypeAlias

from kernelwright.agent.builtin.codegen.backend import Function, Kernel, Language
from kernelwright.agent.builtin.codegen.host import device
from kernelwright.agent.builtin.ir.program import Program
from kernelwright.agent.builtin.scheduling.loop_nest import Access, Plan
from kernelwright.kernelbench.chips.cards import CARDS, card_of
from kernelwright.kernelbench.chips.occupancy import limits_of

Numbers: TypeAlias = tuple[int, ...]
# Blocks, or programs, that a launch has at least if its work allows: two for each multiprocessor of an H100.
FILLING = 2 * CARDS["sm_90"].multiprocessors
SECTOR = 8  # neighbouring columns that a block works on at least: floats of a sector of memory


@dataclass(frozen=True)
class GridFunction(Function):
    comment: tuple[str, ...]
    width: int


@dataclass(frozen=True)
class GridKernel(Kernel):
    """A kernel of `grid` blocks, or programs, of `width` threads, or warps.

    `stages`: of loads that are under way at a time; 0: the language's own number.
    """

    grid: int = 1
    width: int = 1
    stages: int = 0
    parts: Parts | None = None

    @property
    def text(self) -> tuple[str, ...]:
        return super().text if self.parts is None else (*super().text, *self.parts.body)

    def functions(self, comment: Sequence[str]) -> list[GridFunction]:
        """Return the functions as the template writes them."""
        parts = self.parts
        if parts is None:
            return [GridFunction(self.name, self.parameters, self.body, tuple(comment), self.width)]
        own, joined = (
            (*(self.parameters[number] for number in taken), *names)
            for taken, names in zip(parts.taken, parts.names, strict=True)
        )
        said = ("The parts taken together.",)
        return [
            GridFunction(self.name, own, self.body, tuple(comment), self.width),
            GridFunction(f"{self.name}_joined", joined, parts.body, said, parts.width),
        ]


@dataclass(frozen=True)
class Parts:
    """Partial results of blocks, and the function that takes them together, which is one block."""

    dtypes: tuple[str, ...]
    body: tuple[str, ...]
    width: int
    taken: tuple[Numbers, Numbers]  # parameters of the kernel that each of the two functions has
    names: tuple[tuple[str, ...], tuple[str, ...]]  # of the parts, in each of the two


def taken(
    plan: Plan,
    pointers: Collection[str],
    reads: tuple[Collection[Access], Collection[Access]],
    free: Sequence[str] = (),
) -> tuple[Numbers, Numbers]:
    """Numbers of the parameters of two functions that read these; the second one writes scalars.

    Both take all of the sizes `free`.
    """

    def numbers(accesses: Collection[Access], scalars: bool) -> Numbers:
        written = [plan.output(name) for name in plan.outputs if (plan.level(name) == "scalar") == scalars]
        needed = {name for access in (*accesses, *written) for name in (access.base, access.at)}
        names = [*pointers, *plan.arguments, *free]
        return tuple(n for n, name in enumerate(names) if name in needed or name in free)

    return numbers(reads[0], False), numbers(reads[1], True)


class GpuLanguage(Language):
    multiprocessors = CARDS["sm_90"].multiprocessors
    shared_bytes = limits_of("sm_90").of_block

    def for_chip(self, chip: str) -> GpuLanguage:
        found, card = copy(self), card_of(chip)
        if card is not None:
            found.multiprocessors = card.multiprocessors
            found.shared_bytes = limits_of(card.chip or chip).of_block
        return found

    @abstractmethod
    def launch(self, function: str, grid: int, width: int, arguments: Sequence[str], stages: int = 0) -> str:
        """Return the line that launches a function."""

    def call(self, kernel: Kernel, arguments: Sequence[str]) -> list[str]:
        assert isinstance(kernel, GridKernel)
        parts = kernel.parts
        if parts is None:
            return [self.launch(kernel.name, kernel.grid, kernel.width, arguments, kernel.stages)]
        names = [f"{kernel.name}_part_{number}" for number in range(len(parts.dtypes))]
        own, joined = ([*(arguments[n] for n in taken), *names] for taken in parts.taken)
        return [
            *(
                f"{name} = torch.empty({kernel.grid}, dtype=torch.{dtype}, device={arguments[0]}.device)"
                for name, dtype in zip(names, parts.dtypes, strict=True)
            ),
            self.launch(kernel.name, kernel.grid, kernel.width, own),
            self.launch(f"{kernel.name}_joined", 1, parts.width, joined),
        ]

    def placement(self, program: Program) -> str:
        return device(program)
