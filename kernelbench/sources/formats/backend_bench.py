"""BackendBench (github.com/meta-pytorch/BackendBench): an operator with the calls of its suite, and kernels.

    TRACE.txt:aten.mul.Tensor     TRACE.parquet:aten.mul.Tensor     TRACE.txt     TorchBench suites
    generated_kernels/mul__Tensor                                                 OpInfo's

    Operator: aten.mul.Tensor
    cnt: 24, ((T([8, 64], f16), T([64], f16, stride=(1,))), {})

Each call is a size: a constant for each argument, with ("float16", [8, 64]) for a tensor. The folder of an
operator, which holds kernels for it, is the task with its calls in torch's own tests. A file there,
OP_implementation_v1.py with the function OP_kernel_impl, becomes a candidate.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.functions import with_module
from kernelwright.kernelbench.modules.opinfo import opinfo_calls
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.entry import read_text
from kernelwright.kernelbench.sources.formats.carrying import carried
from kernelwright.kernelbench.sources.formats.interface import TaskFile
from kernelwright.kernelbench.sources.formats.task_text import TaskText, merged, returned, varying

_TRACES = (".txt", ".parquet")
_LINE = re.compile(r"cnt: (\d+), (.*)")
_MOST = 16  # sizes of a task, those that are called most often
_RARE = 0.001  # the weight of calls that are counted 0 times: made up, and verified like others
_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "b8": "bool",
}  # fmt: skip
_RENAMED = {"aten.sum.SymInt": "aten.sum.dim_IntList"}  # as BackendBench does, since torch did
_KERNEL = re.compile(r"(?P<op>\w+?)_implementation\w*\.py")
_DRAW = '''\
def drawn(given):
    """Return a tensor for ("float16", [2, 3]) or ("float16", [2, 3], [1, 2]), a dtype for ("float16",)."""
    if isinstance(given, list):
        return [drawn(each) for each in given]
    if not isinstance(given, tuple):
        return given
    if len(given) == 1:
        return getattr(torch, given[0])
    dtype, shape, *strides = getattr(torch, given[0]), *given[1:]
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides[0])) if strides else 0
    size = [extent] if strides else shape
    if dtype.is_floating_point:
        found = torch.rand(size, dtype=dtype)
    else:
        found = torch.randint(0, 2 if dtype is torch.bool else 10, size).to(dtype)
    return found.as_strided(shape, strides[0]) if strides else found
'''


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator: texts of its arguments, and how often it was seen."""

    arguments: tuple[str, ...]
    keywords: Mapping[str, str]
    count: int


class BackendBenchFormat:
    name = "BackendBench"

    def task_paths(self, path: Path) -> Sequence[Path]:
        if path.is_dir():
            return [path] if _overload(path) is not None else []
        file, operator = _split(path)
        if not file.is_file() or file.suffix not in _TRACES:
            return []
        if file.suffix == ".txt" and not _is_trace(file):
            return []
        return [path] if operator else [Path(f"{file}:{name}") for name in _operators(file)]

    def task(self, path: Path, sizes: Mapping[str, str]) -> TaskFile:
        if (overload := _overload(path)) is not None:
            lines_of_opinfo = [(1, text) for text in opinfo_calls(overload)]
            return traced_task(f"aten.{overload}", lines_of_opinfo, str(path), "OpInfo, torch's tests")
        file, operator = _split(path)
        lines = _operators(file)
        known = {name.removeprefix("aten."): name for name in lines}
        found = known.get(operator.removeprefix("aten."))
        if found is None:
            near = [name for name in known if name.startswith(operator.removeprefix("aten.").split(".")[0])]
            raise UsageError(
                f"{file} has no calls of {operator}",
                f"it has {', '.join(near or list(known)[:8])}: name one",
            )
        return traced_task(found, lines[found], str(path), f"the trace {file.name}")

    def holds_candidate(self, path: Path) -> bool:
        return _kernel_function(path) is not None

    def candidate(self, path: Path) -> str:
        return with_module(read_text(path), _kernel_function(path), str(path))


def traced_task(operator: str, lines: Sequence[tuple[int, str]], where: str, about: str) -> TaskFile:
    """Return the task of an operator with its calls, counts and texts of their arguments, as sizes.

    Raises UsageError where a task file can hold none of them.
    """
    reasons: Counter[str] = Counter()
    calls = []
    for count, text in lines:
        try:
            calls.append(_call(text, count))
        except _LeftOutError as why:
            reasons[str(why)] += 1
    forms = Counter((len(call.arguments), tuple(call.keywords)) for call in calls)
    if not forms:
        raise UsageError(f"{where}: {'; '.join(reasons) or 'it has no calls'}", "choose another operator")
    [(form, kept)] = forms.most_common(1)
    if len(calls) > kept:
        reasons["they give other arguments than most"] = len(calls) - kept
    names = [f"x{place}" for place in range(form[0])]
    all_sizes = merged(
        Size(constants=_constants(call, names), weight=call.count or _RARE)
        for call in calls
        if (len(call.arguments), tuple(call.keywords)) == form
    )
    chosen = sorted(all_sizes, key=lambda size: -size.weight)[:_MOST]
    if len(all_sizes) > _MOST:
        reasons[f"{_MOST} others are called more often"] = len(all_sizes) - _MOST
    arguments = [*names, *form[1]]
    given = [*names, *(f"{name}={name}" for name in form[1])]
    model = f"class Model(nn.Module):\n    def forward(self, {', '.join(arguments)}):\n"
    model += f"        return torch.ops.{operator}({', '.join(given)})\n\n\n"
    constants = chosen[0].constants
    draws = returned([f"drawn({name})" for name in constants])
    model += f"def get_inputs():\n{draws}\n\n\ndef get_init_inputs():\n    return []"
    notes = [f"{count} of {len(lines)} calls are left out: {why}" for why, count in reasons.items()]
    name = operator.removeprefix("aten.")
    file = TaskText(
        title=f"{operator}, with calls from {about}.",
        paragraphs=["Floats are uniform from 0 to 1, integers from 0 to 9."],
        carried=carried(_DRAW, where),
        constants=constants,
        sizes=varying(chosen) if constants else (),
        code=model,
        notes=notes,
    )
    return TaskFile(name, file.written(), tuple(notes))


class _LeftOutError(Exception):
    """Why a call is in no task file."""


def _constants(call: OperatorCall, names: Sequence[str]) -> dict[str, str]:
    return {**dict(zip(names, call.arguments, strict=True)), **call.keywords}


def _overload(folder: Path) -> str | None:
    """Return the operator of a folder: mul_.Tensor of mul___Tensor; None for other folders."""
    name, escaped, overload = folder.name.rpartition("__")
    named = bool(escaped and name.strip("_") and overload)
    return f"{name}.{overload}" if named and any(folder.glob(f"{folder.name}_implementation*.py")) else None


def _split(path: Path) -> tuple[Path, str]:
    """Return the file and the operator of `TRACE.txt:aten.mul.Tensor`."""
    file, colon, operator = str(path).rpartition(":")
    return (Path(file), operator) if colon and file.endswith(_TRACES) else (path, "")


def _is_trace(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8") as lines:
            return next(lines, "").startswith("Operator: ")
    except (OSError, UnicodeDecodeError):
        return False


def _operators(file: Path) -> dict[str, list[tuple[int, str]]]:
    """Return the calls of each operator: counts, and texts of their arguments. Raises UsageError."""
    found: dict[str, list[tuple[int, str]]] = {}
    if file.suffix == ".parquet":
        for operator, count, text in _rows(file):
            found.setdefault(operator, []).append((count, text))
        return found
    operator = ""
    for line in read_text(file).splitlines():
        if line.startswith("Operator: "):
            operator = line.removeprefix("Operator: ").strip()
            operator = _RENAMED.get(operator, operator)
            found.setdefault(operator, [])
        elif call := _LINE.match(line):
            found.setdefault(operator, []).append((int(call[1]), call[2]))
    return found


def _rows(file: Path) -> Iterator[tuple[str, int, str]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingPrerequisite(f"{file} needs the package pyarrow", "pip install pyarrow") from None
    try:
        rows = pyarrow.parquet.read_table(file).to_pylist()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UsageError(f"{file} cannot be read: {error}", "download it again") from None
    for row in rows:
        if not {"op_name", "args"} <= row.keys():
            raise UsageError(f"{file} has no columns op_name and args", "give a suite of BackendBench")
        if row.get("included_in_benchmark", True):
            yield str(row["op_name"]), int(row.get("count") or 0), str(row["args"])


def _call(text: str, count: int) -> OperatorCall:
    """Return a call from the text of a tuple and a dictionary. Raises _LeftOutError."""
    try:
        tree = ast.parse(text.strip().strip("'\""), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _LeftOutError("they cannot be parsed") from None
    if not isinstance(tree, ast.Tuple) or len(tree.elts) != 2:
        raise _LeftOutError("they are no arguments and keywords")
    arguments, keywords = tree.elts
    if not isinstance(arguments, ast.Tuple | ast.List) or not isinstance(keywords, ast.Dict):
        raise _LeftOutError("they are no arguments and keywords")
    values = {}
    for key, value in zip(keywords.keys, keywords.values, strict=True):
        if not isinstance(key, ast.Constant) or not str(key.value).isidentifier():
            raise _LeftOutError("a keyword is no name")
        if key.value in ("device", "layout", "pin_memory"):
            raise _LeftOutError(f"they set the {key.value}")
        values[str(key.value)] = _value(value)
    return OperatorCall(tuple(_value(each) for each in arguments.elts), values, count)


def _value(node: ast.expr) -> str:
    """Return the text of a constant for an argument. Raises _LeftOutError."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "T":
        return _tensor(node)
    if isinstance(node, ast.List | ast.Tuple):
        return f"[{', '.join(_value(each) for each in node.elts)}]"
    if isinstance(node, ast.Name) and node.id == "inf":
        return "1e999"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return f"-{_value(node.operand)}"
    if isinstance(node, ast.Name | ast.Attribute) and (dtype := _dtype(node)) is not None:
        return f'("{dtype}",)'
    if isinstance(node, ast.Constant):
        return repr(node.value)
    raise _LeftOutError(f"an argument is {ast.unparse(node)}, for which there is no constant")


def _tensor(node: ast.Call) -> str:
    try:
        shape, dtype, *rest = node.args
        given = [ast.literal_eval(each) for each in (shape, *rest, *(word.value for word in node.keywords))]
        sizes, *strides = [list(map(int, each)) for each in given]
    except (ValueError, TypeError):
        raise _LeftOutError(f"a tensor is {ast.unparse(node)}") from None
    known = _dtype(dtype)
    if known is None:
        raise _LeftOutError(f"a tensor is of {ast.unparse(dtype)}")
    if 0 in sizes:
        raise _LeftOutError("a tensor of them is empty")
    return f'("{known}", {sizes}{f", {strides[0]}" if strides else ""})'


def _dtype(node: ast.expr) -> str | None:
    """Return the dtype that f16, torch.float16 or float16 is."""
    name = ast.unparse(node).strip("'\"").removeprefix("torch.")
    return _DTYPES.get(name, name if name in _DTYPES.values() else None)


def _kernel_function(path: Path) -> str | None:
    """Return the function of a kernel file, OP_kernel_impl in OP_implementation_v1.py."""
    named = _KERNEL.fullmatch(path.name)
    if named is None or not path.is_file():
        return None
    function = f"{named['op']}_kernel_impl"
    return function if f"def {function}(" in read_text(path) else None
