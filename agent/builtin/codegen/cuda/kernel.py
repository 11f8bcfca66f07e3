"""Text of a CUDA kernel: one function, or two where blocks compute parts of a result."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.builtin.codegen.backend import Kernel
from kernelwright.agent.builtin.codegen.cuda.types import STORAGE

JOINING = 256  # threads that take parts together


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple[str, ...]
    comment: tuple[str, ...]
    body: tuple[str, ...]
    threads: int


@dataclass(frozen=True)
class CudaKernel(Kernel):
    """`parts` are the dtypes of partial results, which the function with the body `joins` takes together."""

    blocks: int = 1
    threads: int = 256
    parts: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(re.findall(r"\w+", "\n".join([*self.parameters, *self.body, *self.joins])))
        )

    def used(self, body: Sequence[str]) -> tuple[int, ...]:
        """Numbers of the parameters that a function with this body takes."""
        words = set(re.findall(r"\w+", "\n".join(body)))
        names = (parameter.rsplit(maxsplit=1)[1] for parameter in self.parameters)
        return tuple(number for number, name in enumerate(names) if name in words)

    def functions(self, comment: Sequence[str]) -> list[Function]:
        """Functions that the template writes."""
        if not self.parts:
            return [Function(self.name, self.parameters, tuple(comment), self.body, self.threads)]
        joined = f"{self.name}_joined", ("The parts taken together.",), self.joins, JOINING
        found = []
        for const, (name, said, body, threads) in (
            ("", (self.name, tuple(comment), self.body, self.threads)),
            ("const ", joined),
        ):
            taken = [self.parameters[number] for number in self.used(body)]
            taken += [f"{const}{kind}* part_{number}" for number, kind in enumerate(self.part_types)]
            found.append(Function(name, tuple(taken), said, body, threads))
        return found

    @property
    def part_types(self) -> tuple[str, ...]:
        return tuple(STORAGE[dtype] for dtype in self.parts)
