"""Interface of a language that kernels are written in; the coder uses nothing else of it.

A language is a folder: a `Language`, the emitters that write its kernels, and `templates/` with the file that
they go into, `file.py.j2`, and the functions that they call.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernelwright.agent.builtin.codegen.host import CPU
from kernelwright.agent.builtin.ir.program import Attention, Program
from kernelwright.agent.builtin.scheduling.loop_nest import Plan
from kernelwright.kernelbench import records


class KnobReader(Protocol):
    """Reader of the knobs of one kernel."""

    def __call__(self, knob: str, default: str, most: int | None = None) -> str:
        """Return the value of a knob. `most`: the number from which on all values lead to the same code."""
        ...


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple[str, ...]  # as they are declared
    body: tuple[str, ...]


@dataclass(frozen=True)
class Kernel(Function):
    """The text of one kernel. It takes external values, then the outputs, then where some of them begin."""

    loop_style: str  # how it goes over a row, or over all elements
    launcher: Function | None = None  # what calls it, again and again
    parallel: bool = False  # whether it starts threads
    free: tuple[str, ...] = ()  # the free sizes that it takes, as its last arguments

    @property
    def text(self) -> tuple[str, ...]:
        """Parameters and lines of the kernel, and of what belongs to it."""
        return (*self.parameters, *self.body)


@dataclass(frozen=True)
class Batch:
    """Calls of a kernel in one launch."""

    count: int = 1
    several: frozenset[str] = frozenset()  # the external values and outputs that each call has its own of
    begins: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # the kernel's arguments in each call
    beside: bool = False  # whether launched together with other kernels


class Language(ABC):
    name: ClassVar[records.Language]
    folder: ClassVar[Path]  # of its templates
    graph_knobs: ClassVar[frozenset[str]]  # those of a whole graph that change what it writes
    reserved: ClassVar[frozenset[str]]  # what no kernel may be called
    imports: ClassVar[tuple[str, ...]] = ()
    batches: ClassVar[bool] = False  # whether a launch may be several calls
    prologues: ClassVar[bool] = False  # whether a product's kernel may compute its operands
    abreast: ClassVar[int] = 16  # launches of small kernels that may be one
    defaults: Mapping[str, str] = {}  # of knobs of a whole graph, where they are not those of all
    multiprocessors: int = 0  # among which long reductions are split; 0: they are not
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "products": ("own", "library")
    }  # where they are fewer

    @property
    def words(self) -> frozenset[str]:
        """Words that no free size may be called: those of the language, and of its templates."""
        texts = (re.sub(r"{[{%].*?[%}]}", "", path.read_text()) for path in sorted(self.folder.glob("*.j2")))
        return self.reserved.union(*(re.findall(r"\w+", text) for text in texts))

    def for_chip(self, chip: str) -> Language:
        """Return the language as it is written for a chip, such as "sm_80"."""
        return self

    def replanned(self, planned: Plan, program: Program, ask: KnobReader) -> Plan:
        """Return the plan with what the schedule of its kernel changes of it."""
        return planned

    @abstractmethod
    def kernel(
        self,
        name: str,
        planned: Plan,
        program: Program,
        pointers: Mapping[str, str],
        in_place: frozenset[str],
        ask: KnobReader,
        batch: Batch,
    ) -> Kernel:
        """`pointers`: parameters, by external value and output; `in_place`: outputs written over a value."""

    def joins(self, planned: Plan) -> bool:
        """Return True if a small kernel may be launched together with others."""
        return True

    @abstractmethod
    def together(self, name: str, kernels: Sequence[Kernel], work: int) -> Kernel:
        """Return a kernel that launches `kernels`, with the parameters of all; `work`: elements in total."""

    @abstractmethod
    def attention(
        self, name: str, statement: Attention, program: Program, pointers: Mapping[str, str], ask: KnobReader
    ) -> Kernel:
        """`pointers`: parameters, by the values that are read, and by the statement's name."""

    @abstractmethod
    def call(self, kernel: Kernel, arguments: Sequence[str]) -> list[str]:
        """Return the lines of `forward` that run a kernel on its arguments; of a batch, some are lists."""

    @abstractmethod
    def context(self, kernels: Sequence[Kernel], schedule: Mapping[str, str]) -> dict[str, object]:
        """Return the variables of the language's template, besides those that all languages have."""

    def placement(self, program: Program) -> str:
        """Device of new tensors, as torch's `device` argument."""
        return CPU


def linked(kernels: Iterable[Kernel], definition: Callable[[str], str | None]) -> list[str]:
    """Definitions of the functions that kernels call and of all that these call, callees first."""
    chosen: dict[str, str] = {}
    order: list[str] = []

    def visit(name: str) -> None:
        text = None if name in chosen else definition(name)
        if text is None:
            return
        chosen[name] = text
        for word in dict.fromkeys(re.findall(r"\w+", text)):
            visit(word)
        order.append(name)

    for word in (word for kernel in kernels for line in kernel.text for word in re.findall(r"\w+", line)):
        visit(word)
    return [chosen[name] for name in order]


def named(names: Iterable[str], lines: Iterable[str]) -> tuple[str, ...]:
    """Return those of the names that these lines of code hold."""
    words = {word for line in lines for word in re.findall(r"\w+", line)}
    return tuple(name for name in names if name in words)


@cache
def environment(*folders: Path) -> Environment:
    """Templates of these folders."""
    return Environment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is a program, not HTML
    )
