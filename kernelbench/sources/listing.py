"""The catalogue: what `kernelwright tasks` shows of each task."""

import ast
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Record, Size
from kernelwright.kernelbench.sources import checkout
from kernelwright.kernelbench.sources.assignments import constants, module_scope, parse
from kernelwright.kernelbench.sources.entry import Entry
from kernelwright.kernelbench.sources.names import TaskLibrary
from kernelwright.kernelbench.sources.sizes import ordered
from kernelwright.kernelbench.sources.validate import model_class


class Listing(Record):
    id: str
    level: int
    title: str
    constants: dict[str, str]  # constant -> the text of its value
    sizes: tuple[Size, ...] = ()  # of a workload


def catalogue(suite: str | None = None, *, kernelbench_dir: Path | None = None) -> list[Listing]:
    """Return the tasks of a suite, or of anything else that `resolve` accepts as a name.

    Without a suite: the built-in one, and the KernelBench checkout if one is known.
    """
    library = TaskLibrary(kernelbench_dir)
    names = [suite] if suite else ["builtin"]
    if not suite and checkout.known(kernelbench_dir) is not None:
        names.append("kernelbench")
    listed: dict[str, Listing] = {}
    for name in names:
        for found in library.find(name):
            listing = Listing(
                id=found.entry.id,
                level=found.entry.level,
                title=title(found.source, found.entry),
                constants={**constants(found.source, found.entry.where), **found.overrides},
                sizes=ordered(found.sizes, found.source, found.entry.where),
            )
            if listed.setdefault(listing.id, listing) != listing:
                raise UsageError(f"{listing.id} stands for two different tasks", "name only one of them")
    return list(listed.values())


def title(source: str, entry: Entry) -> str:
    """Return the first line of the file's docstring, else of `Model`'s, else the file's name as words."""
    tree = parse(source, entry.where)
    model = model_class(module_scope(tree))
    documented: list[ast.Module | ast.ClassDef] = [tree, *([] if model is None else [model])]
    for node in documented:
        docstring = ast.get_docstring(node)
        if docstring and docstring.strip():
            return docstring.strip().splitlines()[0].strip()
    return entry.title
