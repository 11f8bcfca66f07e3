"""Text of a Triton kernel: one function, or two where programs compute parts of a result."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.builtin.codegen.backend import Kernel


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple[str, ...]
    comment: tuple[str, ...]
    body: tuple[str, ...]


@dataclass(frozen=True)
class TritonKernel(Kernel):
    """`parts` are the dtypes of partial results, which the function with the body `joins` takes together."""

    programs: int = 1
    warps: int = 4
    parts: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(re.findall(r"\w+", "\n".join([*self.body, *self.joins]))))

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(f"parts_{number}_ptr" for number in range(len(self.parts)))

    def used(self, body: Sequence[str]) -> tuple[int, ...]:
        """Numbers of the parameters that a function with this body takes."""
        words = set(re.findall(r"\w+", "\n".join(body)))
        return tuple(n for n, parameter in enumerate(self.parameters) if parameter in words)

    def functions(self, comment: Sequence[str]) -> list[Function]:
        """Functions that the template writes."""
        if not self.parts:
            return [Function(self.name, self.parameters, tuple(comment), self.body)]
        joined = f"{self.name}_joined"
        texts = [(self.name, tuple(comment), self.body), (joined, ("The parts taken together.",), self.joins)]
        return [
            Function(name, (*(self.parameters[n] for n in self.used(body)), *self.part_names), said, body)
            for name, said, body in texts
        ]
