"""MultiKernelBench (github.com/wzzll123/MultiKernelBench): reference/CATEGORY/NAME.py, tasks as they are.

Files of its NPUKernelBench levels read the inputs of each case from a JSON lines file, by `get_input_groups`.
Their tasks hold a case in the constant `input_case`, and the others are the task's further sizes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.assignments import module_scope, parse
from kernelwright.kernelbench.sources.entry import read_text
from kernelwright.kernelbench.sources.formats.documents import read_json_lines
from kernelwright.kernelbench.sources.formats.interface import TaskFile
from kernelwright.kernelbench.sources.formats.task_text import merged, with_notes
from kernelwright.kernelbench.sources.sizes import workload_text

_FOLDER = "reference"
_GROUPS = "get_input_groups"
_CASE = "input_case"  # a `case` is what the functions there call it
_OPENED = re.compile(r"""open\(json_path(, *["']r["'])?\)""")
_PATH = re.compile(r"^[ \t]*json_path = .*\n", re.MULTILINE)


class MultiKernelBenchFormat:
    name = "MultiKernelBench"

    def task_paths(self, path: Path) -> Sequence[Path]:
        if path.is_file():
            mine = path.suffix == ".py" and path.with_suffix(".json").is_file()
            return [path] if mine and path.resolve().parent.parent.name == _FOLDER else []
        if path.resolve().parent.name == _FOLDER:
            return sorted(path.glob("[!_.]*.py"))
        root = path if path.resolve().name == _FOLDER else path / _FOLDER
        return sorted(root.glob("*/[!_.]*.py"))

    def task(self, path: Path, sizes: Mapping[str, str]) -> TaskFile:
        source = read_text(path)
        notes: list[str] = []
        scope = module_scope(parse(source, str(path)))
        if not scope.binds("get_inputs"):
            if not scope.binds(_GROUPS):
                raise UsageError(f"{path} defines no function get_inputs", "leave it out: it is no task")
            source, notes = _with_cases(source, path)
        return TaskFile(path.stem, with_notes(source, notes), tuple(notes))

    def holds_candidate(self, path: Path) -> bool:
        return False  # its solutions define ModelNew

    def candidate(self, path: Path) -> str:
        return read_text(path)


def _with_cases(source: str, path: Path) -> tuple[str, list[str]]:
    """Return the text with its cases as sizes, which reads no file, and what is left out of them."""
    file = path.with_suffix(".json")
    if not file.is_file() or len(_OPENED.findall(source)) != 1:
        raise UsageError(
            f"{path}: {_GROUPS} does not read {file.name} in the form that is known",
            "write get_inputs, with constants for sizes",
        )
    cases = [case for _, case in read_json_lines(file)]
    lines = [json.dumps(case) for case in cases if not _is_empty(case)]
    if not lines:
        raise UsageError(f"{file} has no case with anything in its tensors", "write one a line")
    notes = []
    if left := len(cases) - len(lines):
        notes.append(f"{left} of {len(cases)} cases are left out: a tensor of them is empty")
    sizes = merged(Size(constants={_CASE: repr(line)}) for line in lines)
    text = _PATH.sub("", _OPENED.sub(f"io.StringIO({_CASE})", source)).rstrip()
    held = f"{_CASE} = {lines[0]!r}\n"
    if len(sizes) > 1:
        held += f"\n{workload_text(sizes)}\n"
    return f"{text}\n\n\nimport io\n\n{held}\n\ndef get_inputs():\n    return {_GROUPS}()[0]\n", notes


def _is_empty(case: Any) -> bool:
    """Return whether an input of a case has an axis of length 0."""
    inputs = case.get("inputs") if isinstance(case, dict) else None
    shapes = [each.get("shape") for each in inputs or () if isinstance(each, dict)]
    return any(isinstance(shape, list) and 0 in shape for shape in shapes)
