"""Data sets with a task in each row, as Parquet, JSON lines or a JSON list: KernelBook and CUDA-Agent-Ops.

    dataset_permissive.parquet:19_SumAggregator     data.parquet:5_BatchNorm3d_diag     data.parquet:5

KernelBook (huggingface.co/datasets/GPUMODE/KernelBook; its generator is github.com/PaliC/triton-data) has a
module in `python_code`, the name of its class in `entry_point`, arguments of the class from get_init_inputs
as [positional, by name], and in `triton_code` what Inductor wrote for it, with the class entry_point + "New".
CUDA-Agent-Ops (huggingface.co/datasets/BytedTsinghua-SIA/CUDA-Agent-Ops-6K) has tasks in KernelBench's format
in `code`, and the names of their operators in `ops`.
"""

import ast
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.sources.assignments import module_scope, parse
from kernelwright.kernelbench.sources.formats.documents import read_json, read_json_lines
from kernelwright.kernelbench.sources.formats.interface import TaskFile
from kernelwright.kernelbench.sources.formats.task_text import with_notes

_SUFFIXES = (".parquet", ".jsonl", ".json")
_HELPERS = re.compile(r"^from _paritybench_helpers import (.*)\n", re.MULTILINE)
_CONFIG = '''

class _mock_config(dict):
    """A dictionary whose entries are attributes, too."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]
'''


class _DataSet(ABC):
    """A data set in rows. `needed`: columns that it is known by; `more`: others that are read."""

    name: str
    needed: tuple[str, ...]
    more: tuple[str, ...] = ()

    @abstractmethod
    def title(self, row: Mapping[str, Any]) -> str:
        """Return what a row is called beside its number."""

    @abstractmethod
    def text(self, row: Mapping[str, Any], where: str) -> str:
        """Return the task of a row. Raises UsageError."""

    def task_paths(self, path: Path) -> Sequence[Path]:
        file, row = _split(path)
        if not self._holds(file):
            return []
        return [path] if row else [Path(f"{file}:{self._named(i, each)}") for i, each in self._rows(file)]

    def task(self, path: Path, sizes: Mapping[str, str]) -> TaskFile:
        number, row = self._row(path)
        return TaskFile(self._named(number, row), with_notes(self.text(row, str(path)), [self._origin(row)]))

    def holds_candidate(self, path: Path) -> bool:
        return False

    def candidate(self, path: Path) -> str:
        raise UsageError(f"{path} holds no kernel", "give a Python file that defines ModelNew")

    def _holds(self, file: Path) -> bool:
        return file.suffix in _SUFFIXES and file.is_file() and set(self.needed) <= _columns(file)

    def _rows(self, file: Path) -> list[tuple[int, Mapping[str, Any]]]:
        columns = tuple(sorted({*self.needed, *self.more} & _columns(file)))
        return list(enumerate(_read(file, columns, file.stat().st_mtime_ns)))

    def _row(self, path: Path) -> tuple[int, Mapping[str, Any]]:
        file, wanted = _split(path)
        rows = self._rows(file)
        number = wanted.partition("_")[0]
        if not number.isdecimal() or int(number) >= len(rows):
            raise UsageError(
                f"{file} has no row {wanted}", f"give one of its {len(rows)} rows, such as {file}:0"
            )
        found = rows[int(number)]
        if wanted not in (number, self._named(*found)):
            raise UsageError(
                f"row {number} of {file} is {self._named(*found)}", "give that name, or a number"
            )
        return found

    def _named(self, number: int, row: Mapping[str, Any]) -> str:
        return f"{number}_{re.sub(r'[^A-Za-z0-9]+', '_', self.title(row)).strip('_') or 'task'}"

    def _origin(self, row: Mapping[str, Any]) -> str:
        licences = row.get("licenses")
        said = ", ".join(map(str, licences)) if isinstance(licences, list) else licences
        parts = [f"from {self.name}"]
        parts += [f"of {row['repo_name']}"] if row.get("repo_name") else []
        parts += [f"under {said}"] if said else []
        return ", ".join(parts)


class KernelBookFormat(_DataSet):
    name = "KernelBook"
    needed = ("entry_point", "python_code", "triton_code")
    more = ("repo_name", "licenses")

    def title(self, row: Mapping[str, Any]) -> str:
        return str(row["entry_point"])

    def text(self, row: Mapping[str, Any], where: str) -> str:
        source, entry = str(row["python_code"]), str(row["entry_point"])
        given = _init_arguments(source, where)
        lines = source.splitlines()
        first, last = given.lines
        rest = "\n".join([*lines[: first - 1], *lines[last:]]).strip("\n")
        return _with_config(rest, given.text, where) + _model("Model", entry, given.text) + _NO_ARGUMENTS

    def holds_candidate(self, path: Path) -> bool:
        file, row = _split(path)
        return bool(row) and self._holds(file)

    def candidate(self, path: Path) -> str:
        _, row = self._row(path)
        given = _init_arguments(str(row["python_code"]), str(path))
        kernel = _with_config(str(row["triton_code"]).strip("\n"), given.text, str(path))
        entry = f"{row['entry_point']}New"
        return kernel + _model("ModelNew", entry, given.text)


class CudaAgentOpsFormat(_DataSet):
    name = "CUDA-Agent-Ops"
    needed = ("code", "data_source", "ops")

    def title(self, row: Mapping[str, Any]) -> str:
        return "_".join(each.rpartition(".")[2] for each in _names(row["ops"]))

    def text(self, row: Mapping[str, Any], where: str) -> str:
        return str(row["code"])


_NO_ARGUMENTS = "\n\ndef get_init_inputs():\n    return []\n"


class _Given(NamedTuple):
    """Arguments of a class as they stand in a call, and the lines of the function that returns them."""

    text: str
    lines: tuple[int, int]


def _init_arguments(source: str, where: str) -> _Given:
    """Return what get_init_inputs returns, [[4], {"bias": False}], as arguments: "4, bias=False"."""
    function = module_scope(parse(source, where)).definitions.get("get_init_inputs")
    form = "KernelBook's get_init_inputs returns [[…], {…}], positional arguments and those by name"
    body = function.body if isinstance(function, ast.FunctionDef) else []
    if function is None or len(body) != 1 or not isinstance(body[0], ast.Return):
        raise UsageError(f"{where}: no get_init_inputs that does nothing but return arguments", form)
    value = body[0].value
    pair = value.elts if isinstance(value, ast.List | ast.Tuple) else []
    if len(pair) != 2 or not isinstance(pair[0], ast.List | ast.Tuple) or not isinstance(pair[1], ast.Dict):
        raise UsageError(f"{where}: get_init_inputs does not return two parts", form)
    words = [ast.unparse(each) for each in pair[0].elts]
    for key, each in zip(pair[1].keys, pair[1].values, strict=True):
        name = key.value if isinstance(key, ast.Constant) else None
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(f"{where}: an argument of get_init_inputs has no name", form)
        words.append(f"{name}={ast.unparse(each)}")
    return _Given(", ".join(words), (function.lineno, function.end_lineno or function.lineno))


def _model(name: str, base: str, arguments: str) -> str:
    if name == base:
        raise UsageError(f"a class is called {base} already", "rename it: the task's class is made from it")
    return f"\n\nclass {name}({base}):\n    def __init__(self):\n        super().__init__({arguments})\n"


def _with_config(source: str, arguments: str, where: str) -> str:
    """Return the text without the module that inputs were made with, and with what it needs of that."""
    used = {name.strip() for line in _HELPERS.findall(source) for name in line.split(",")}
    if unknown := sorted(used - {"_mock_config"}):
        raise UsageError(
            f"{where} needs {unknown[0]} of PyTorch JIT ParityBench", "leave it out, or define that there"
        )
    text = _HELPERS.sub("", source).rstrip("\n") + "\n"
    return text + _CONFIG if "_mock_config(" in text + arguments else text


def _split(path: Path) -> tuple[Path, str]:
    """Return the file and the row of `FILE.parquet:5_relu`."""
    file, colon, row = str(path).rpartition(":")
    return (Path(file), row) if colon and file.endswith(_SUFFIXES) else (path, "")


def _names(ops: Any) -> list[str]:
    """Return the operators of a row: a list, or the text of one."""
    if isinstance(ops, str):
        try:
            ops = json.loads(ops)
        except json.JSONDecodeError:
            return [ops]
    return [str(each) for each in ops] if isinstance(ops, list) else [str(ops)]


def _columns(file: Path) -> set[str]:
    try:
        time_ns = file.stat().st_mtime_ns
    except OSError:
        return set()
    return set(_columns_at(file, time_ns))


@lru_cache(maxsize=8)
def _columns_at(file: Path, time_ns: int) -> tuple[str, ...]:
    if file.suffix == ".parquet":
        try:
            import pyarrow.parquet

            return tuple(pyarrow.parquet.read_schema(file).names)
        except ImportError:
            raise MissingPrerequisite(f"{file} needs the package pyarrow", "pip install pyarrow") from None
        except (OSError, ValueError):  # pyarrow's own are these, too; whose file it is, another format says
            return ()
    try:
        with file.open(encoding="utf-8") as lines:
            first = next(lines, "")
        row = json.loads(first) if file.suffix == ".jsonl" else _first_of(read_json(file))
    except (OSError, ValueError, UsageError):
        return ()
    return tuple(row) if isinstance(row, dict) else ()


def _first_of(found: Any) -> Any:
    return found[0] if isinstance(found, list) and found else None


@lru_cache(maxsize=2)
def _read(file: Path, columns: tuple[str, ...], time_ns: int) -> tuple[Mapping[str, Any], ...]:
    """Read columns of all rows. Raises UsageError."""
    if file.suffix == ".parquet":
        import pyarrow.parquet

        try:
            return tuple(pyarrow.parquet.read_table(file, columns=list(columns)).to_pylist())
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise UsageError(f"{file} cannot be read: {error}", "download it again") from None
    rows = [row for _, row in read_json_lines(file)] if file.suffix == ".jsonl" else read_json(file)
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or not set(columns) <= row.keys():
            raise UsageError(f"row {number} of {file} has other columns than its first", "correct the file")
    return tuple(rows)
