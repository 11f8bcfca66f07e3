"""Launches of a candidate, recorded with the machine code that was built for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from kernelwright.kernelbench.chips import sass
from kernelwright.kernelbench.chips.occupancy import MOST_REGISTERS, MOST_THREADS
from kernelwright.kernelbench.evaluator.processes.answers import Count

_MOST_KERNELS, _MOST_PROBLEMS = 64, 8
Builder = Literal["Triton", "NVRTC", "CuTe DSL"]


@dataclass(frozen=True)
class RecordedLaunch:
    builder: Builder
    name: str  # in the cubin
    grid: tuple[int, int, int]  # zeros where it is not known
    threads: int
    shared_bytes: int  # that the launch adds to what the kernel declares
    configurations: int = 0


@dataclass(frozen=True)
class Launched:
    """A kernel with its launch, one or more times in a call."""

    builder: Builder
    name: str
    launches: Count
    grid: tuple[Count, Count, Count]
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    configurations: Count  # that an autotuned one would be timed in; the first one was built
    registers: Annotated[int, Field(ge=0, le=MOST_REGISTERS)]
    stack_bytes: Count
    shared_bytes: Count  # of a block, static and dynamic
    loops: Count  # innermost ones, which `mix` is of
    mix: sass.SassMix
    whole: sass.SassMix


class Notebook:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.failed = False  # whether a kernel could not be built
        self._counts: dict[tuple[RecordedLaunch, bytes], int] = {}

    def note(self, launch: RecordedLaunch, cubin: bytes) -> None:
        self._counts[launch, cubin] = self._counts.get((launch, cubin), 0) + 1

    def problem(self, text: str) -> None:
        if text not in self.problems and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(text)

    def failure(self, text: str) -> None:
        """Record a problem that the source itself caused."""
        self.failed = True
        self.problem(text)

    def read(self) -> list[Launched]:
        """Return the launches so far. Raises Unavailable."""
        found = []
        known: dict[bytes, dict[str, sass.SassKernel]] = {}
        for (launch, cubin), launches in list(self._counts.items())[:_MOST_KERNELS]:
            if cubin not in known:
                known[cubin] = {kernel.name: kernel for kernel in sass.kernels(cubin)}
            kernel = known[cubin].get(launch.name)
            if kernel is None:
                self.problem(f"the build contains no kernel {launch.name}")
                continue
            found.append(
                Launched(
                    builder=launch.builder,
                    name=launch.name,
                    launches=launches,
                    grid=launch.grid,
                    threads=launch.threads,
                    configurations=launch.configurations,
                    registers=kernel.registers,
                    stack_bytes=kernel.stack_bytes,
                    shared_bytes=kernel.shared_bytes + launch.shared_bytes,
                    loops=len(kernel.innermost_loops()),
                    mix=sass.mix(kernel),
                    whole=sass.whole(kernel),
                )
            )
        return found


def three(sizes: Sequence[int]) -> tuple[int, int, int]:
    """Extend a grid or a block to three dimensions."""
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"
