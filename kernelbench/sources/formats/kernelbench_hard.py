"""KernelBench-Hard (github.com/Infatoshi/KernelBench-Hard): reference.py with shapes.py and problem.yaml.

The reference is in KernelBench's format already, and the shapes are the sizes of its task. A solution.py,
which defines `Model`, becomes a candidate.
"""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.assignments import constants, module_scope, parse
from kernelwright.kernelbench.sources.entry import read_text
from kernelwright.kernelbench.sources.formats.documents import read_yaml
from kernelwright.kernelbench.sources.formats.interface import TaskFile
from kernelwright.kernelbench.sources.formats.task_text import merged, varying, with_notes
from kernelwright.kernelbench.sources.sizes import workload_text

_PROBLEM, _REFERENCE, _SHAPES, _SOLUTION = "problem.yaml", "reference.py", "shapes.py", "solution.py"


class KernelBenchHardFormat:
    name = "KernelBench-Hard"

    def task_paths(self, path: Path) -> Sequence[Path]:
        if path.is_dir():
            return [path / _REFERENCE] if (path / _PROBLEM).is_file() else []
        named = path.name in (_PROBLEM, _REFERENCE) and path.with_name(_PROBLEM).is_file()
        return [path.with_name(_REFERENCE)] if named else []

    def task(self, path: Path, sizes: Mapping[str, str]) -> TaskFile:
        if not path.is_file():
            raise UsageError(f"{path.parent} has no {_REFERENCE}", "give a problem that has one")
        source, where = read_text(path), str(path)
        problem = read_yaml(path.with_name(_PROBLEM))
        notes: list[str] = []
        if banned := problem.get("forbidden"):
            named = ", ".join(map(str, banned)) if isinstance(banned, list) else str(banned)
            notes.append(f"there a solution may not use {named}; that is not checked here")
        rows = _shapes(path.with_name(_SHAPES), constants(source, where), notes)
        found = varying(merged(rows)) if rows else []
        if len(found) > 1:
            source = _with_workload(source, where, found)
        return TaskFile(path.resolve().parent.name, with_notes(source, notes), tuple(notes))

    def holds_candidate(self, path: Path) -> bool:
        return path.name == _SOLUTION and path.is_file() and path.with_name(_PROBLEM).is_file()

    def candidate(self, path: Path) -> str:
        source = read_text(path)
        scope = module_scope(parse(source, str(path)))
        if scope.binds("ModelNew"):
            return source
        if not scope.binds("Model"):
            raise UsageError(f"{path} defines no class Model", "define it, as its reference does")
        return f"{source.rstrip()}\n\n\nModelNew = Model\n"


def _shapes(path: Path, known: Mapping[str, str], notes: list[str]) -> list[Size]:
    """Return the sizes that shapes.py lists, by the constants of the reference whatever their case."""
    if not path.is_file():
        notes.append(f"it has no {_SHAPES}, and so one size")
        return []
    form = f"write {_SHAPES} as SHAPES = [{{…}}, {{…}}] of literals"
    scope = module_scope(parse(read_text(path), str(path)))
    try:
        rows: Any = ast.literal_eval(scope.assignments["SHAPES"][-1].value)
    except (KeyError, ValueError):
        raise UsageError(f"{path} has no list SHAPES of literals", form) from None
    if not isinstance(rows, list | tuple) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: SHAPES is no list of dictionaries", form)
    names = {name.lower(): name for name in known} | {name: name for name in known}
    unknown = dict.fromkeys(str(key) for row in rows for key in row if str(key).lower() not in names)
    for key in unknown:
        notes.append(f"its sizes set {key}, and the reference has no such constant")
    found = []
    for row in rows:
        values = {
            names.get(str(key), names.get(str(key).lower(), "")): repr(value)
            for key, value in row.items()
            if str(key) not in unknown
        }
        if values:
            found.append(Size(constants=values))
    return found


def _with_workload(source: str, where: str, sizes: Sequence[Size]) -> str:
    """Return the text with a workload after the constants that its sizes set."""
    assignments = module_scope(parse(source, where)).assignments
    last = max(assignments[name][-1].statement.end_lineno or 0 for size in sizes for name in size.constants)
    lines = source.splitlines()
    return "\n".join([*lines[:last], "", workload_text(sizes), *lines[last:]]) + "\n"
