"""Launches of a candidate, recorded with the machine code that was built for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from kernelwright.kernelbench.chips import sass
from kernelwright.kernelbench.chips.cards import card_of
from kernelwright.kernelbench.chips.occupancy import MOST_REGISTERS, MOST_THREADS
from kernelwright.kernelbench.chips.ptx import parsing
from kernelwright.kernelbench.chips.ptx.tracing import LaunchArguments, LaunchTrace, trace
from kernelwright.kernelbench.chips.ptx.unrolling import unrolled
from kernelwright.kernelbench.errors import Unavailable
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
    trace: LaunchTrace | None = None
    untraced: str = ""  # why there is none


@dataclass(frozen=True)
class _Recorded:
    """Code and arguments of the first of equal launches."""

    ptx: str
    arguments: LaunchArguments | None
    launches: int = 1


class Notebook:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.failed = False  # whether a kernel could not be built
        self._launches: dict[tuple[RecordedLaunch, bytes], _Recorded] = {}

    def note(
        self, launch: RecordedLaunch, cubin: bytes, ptx: str = "", arguments: LaunchArguments | None = None
    ) -> None:
        """Record a launch. `arguments`: none where they are not known."""
        known = self._launches.get((launch, cubin), _Recorded(ptx, arguments, 0))
        self._launches[launch, cubin] = replace(known, launches=known.launches + 1)

    def forget(self) -> None:
        """Drop the launches so far, such as those that a file makes while it is loaded."""
        self._launches.clear()

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
        for (launch, cubin), recorded in list(self._launches.items())[:_MOST_KERNELS]:
            if cubin not in known:
                known[cubin] = {kernel.name: kernel for kernel in sass.kernels(cubin)}
            kernel = known[cubin].get(launch.name)
            if kernel is None:
                self.problem(f"the build contains no kernel {launch.name}")
                continue
            traced, why = _traced(launch, recorded, kernel)
            found.append(
                Launched(
                    builder=launch.builder,
                    name=launch.name,
                    launches=recorded.launches,
                    grid=launch.grid,
                    threads=launch.threads,
                    configurations=launch.configurations,
                    registers=kernel.registers,
                    stack_bytes=kernel.stack_bytes,
                    shared_bytes=kernel.shared_bytes + launch.shared_bytes,
                    loops=len(kernel.innermost_loops()),
                    mix=sass.mix(kernel),
                    whole=sass.whole(kernel),
                    trace=traced,
                    untraced=why,
                )
            )
        return found


def _traced(
    launch: RecordedLaunch, recorded: _Recorded, code: sass.SassKernel
) -> tuple[LaunchTrace | None, str]:
    """Return the trace of a launch, or why there is none."""
    if recorded.arguments is None or not recorded.ptx:
        return None, "its arguments are not known"
    kernel = parsing.kernels(recorded.ptx).get(launch.name)
    card = card_of(code.chip)
    if kernel is None or card is None or card.latencies is None:
        return None, f"no latencies of {code.chip} are known" if kernel else "its PTX is not known"
    try:
        return trace(kernel, launch.grid, recorded.arguments, card.latencies, unrolled(kernel, code)), ""
    except Unavailable as error:
        return None, str(error)


def three(sizes: Sequence[int]) -> tuple[int, int, int]:
    """Extend a grid or a block to three dimensions."""
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"
