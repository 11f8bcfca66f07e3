"""Text of a task file that is made of another project's files."""

import keyword
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.assignments import FORMAT_NAMES
from kernelwright.kernelbench.sources.formats.carrying import CarriedCode
from kernelwright.kernelbench.sources.sizes import workload_text

WIDTH = 100
_OWN = ("import torch", "from torch import nn")
RESERVED = frozenset(
    {"torch", "nn", "self", "weight", "hidden", *FORMAT_NAMES}
)  # no constants of these names


@dataclass(frozen=True)
class TaskText:
    """The parts of a task file; `constants`: texts of values; `sizes`: of a workload, perhaps only one."""

    title: str
    paragraphs: Sequence[str]
    carried: CarriedCode
    constants: Mapping[str, str]
    sizes: Sequence[Size]
    code: str  # Model, get_inputs and get_init_inputs, or those that the carried code lacks
    notes: Sequence[str] = field(default=())

    def written(self) -> str:
        """Return the file. Raises UsageError where the carried code has a name of the format."""
        futures = [line for line in self.carried.imports if line.startswith("from __future__")]
        imports = [*_OWN, *self.carried.without([*_OWN, *futures])]
        if both := sorted(self.carried.names & self.constants.keys()):
            raise UsageError(
                f"{self.title}: its code and its axes both use the name {both[0]}", "rename one of them"
            )
        made = {name for name in FORMAT_NAMES if f"class {name}(" in self.code or f"def {name}(" in self.code}
        if both := sorted(self.carried.names & {*made, "workload"}):
            raise UsageError(f"{self.title}: its code defines {both[0]}, too", "give that another name")
        constants = "\n".join(f"{name} = {value}" for name, value in self.constants.items())
        parts = [
            documented([self.title, *self.paragraphs, *(f"Note: {note}." for note in self.notes)]),
            *(["\n".join(futures)] if futures else []),
            "\n".join(imports),
            *([constants] if constants else []),
            *([workload_text(self.sizes)] if len(self.sizes) > 1 else []),
        ]
        code = [self.carried.code, self.code.strip("\n")]
        return "\n\n".join(parts) + "\n\n\n" + "\n\n\n".join(filter(None, code)) + "\n"


def documented(paragraphs: Iterable[str]) -> str:
    """Return a docstring of paragraphs, whose own lines are kept.

    A backslash or three quotes in them would not stay what they are.
    """
    filled = ["\n".join(_filled(line) for line in each.strip().splitlines()) for each in paragraphs]
    text = "\n\n".join(filter(None, filled)).replace("\\", "/").replace('"""', "'''")
    return f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'


def _filled(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line.rstrip(), WIDTH, subsequent_indent=indent)


def with_notes(source: str, notes: Sequence[str]) -> str:
    """Return a file that is a task already with notes as comments at its beginning."""
    lines = [line for note in notes for line in textwrap.wrap(f"Note: {note}.", WIDTH - 2)]
    return "".join(f"# {line}\n" for line in lines) + source


def sentence(text: str) -> str:
    """Return a text with a full stop at its end."""
    stripped = " ".join(text.split())
    return stripped if not stripped or stripped.endswith((".", "!", "?")) else f"{stripped}."


def constant_names(wanted: Iterable[str], taken: Collection[str], where: str) -> dict[str, str]:
    """Return a name for each constant: its own, or a longer one where that is taken.

    Raises UsageError for what cannot be a Python name.
    """
    found: dict[str, str] = {}
    for name in wanted:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"{where}: {name!r} is no Python name", "rename it")
        free = name
        while free in taken or free in RESERVED or free in found.values():
            free += "_size"
        found[name] = free
    return found


def merged(sizes: Iterable[Size]) -> list[Size]:
    """Return sizes, each once; the weights of equal ones are added up."""
    found: dict[tuple[tuple[str, str], ...], Size] = {}
    for size in sizes:
        key = tuple(sorted(size.constants.items()))
        before = found.get(key)
        weight = size.weight + (before.weight if before is not None else 0.0)
        found[key] = size.model_copy(update={"weight": weight})
    return list(found.values())


def varying(sizes: Sequence[Size]) -> list[Size]:
    """Return the sizes with those constants alone that differ between them."""
    same = {
        name
        for name, value in sizes[0].constants.items()
        if all(size.constants.get(name) == value for size in sizes)
    }
    return [
        size.model_copy(update={"constants": {n: v for n, v in size.constants.items() if n not in same}})
        for size in sizes
    ]


def called(function: str, arguments: Sequence[str], before: str = "return ", after: str = "") -> str:
    """Return a statement of a function's body that calls a function, on several lines where it is long."""
    line = f"    {before}{function}({', '.join(arguments)}){after}"
    if len(line) <= WIDTH:
        return line
    lines = "".join(f"        {argument},\n" for argument in arguments)
    return f"    {before}{function}(\n{lines}    ){after}"


def returned(values: Sequence[str]) -> str:
    """Return a return statement of a list, in a function's body."""
    line = f"    return [{', '.join(values)}]"
    if len(line) <= WIDTH:
        return line
    return "    return [\n" + "".join(f"        {value},\n" for value in values) + "    ]"
