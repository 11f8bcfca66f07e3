"""GPU MODE's problems (github.com/gpu-mode/reference-kernels): task.yml with reference.py, and submissions.

`ref_kernel` and `generate_input`, with what they need of task.py and utils.py, become a task; the arguments
under `benchmarks` and `tests` are its sizes. A file with `custom_kernel` becomes a candidate. The seed among
the arguments is drawn for each input, and what checks a submission there is left out: here outputs are
held to the reference's error budget.
"""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.assignments import module_scope, parse
from kernelwright.kernelbench.sources.entry import read_text
from kernelwright.kernelbench.sources.formats.carrying import carried
from kernelwright.kernelbench.sources.formats.documents import read_yaml
from kernelwright.kernelbench.sources.formats.interface import TaskFile
from kernelwright.kernelbench.sources.formats.task_text import (
    TaskText,
    called,
    constant_names,
    documented,
    merged,
    varying,
)

_TASK, _REFERENCE = "task.yml", "reference.py"
_KERNEL, _DRAW, _CHECK, _CUSTOM = "ref_kernel", "generate_input", "check_implementation", "custom_kernel"
_SEED = "seed"
_TEST_WEIGHT = 0.001  # of a size under `tests`: verified like the others, and hardly counted
_DEPTH = 4  # folders above a submission in which its problem is looked for
_UNFILLED = ("torch.empty", "torch.empty_like", "torch.zeros", "torch.zeros_like")
_SAME = ("contiguous",)  # methods that leave memory as it is


class GpuModeFormat:
    name = "GPU MODE"

    def task_paths(self, path: Path) -> Sequence[Path]:
        if path.is_dir():
            return [path / _TASK] if (path / _TASK).is_file() else []
        return [path] if path.is_file() and path.suffix in (".yml", ".yaml") and path.stem == "task" else []

    def task(self, path: Path, sizes: Mapping[str, str]) -> TaskFile:
        held = read_yaml(path)
        if held.get("multi_gpu"):
            raise UsageError(f"{path} needs several GPUs in one call", "a task here runs on one device")
        name = path.resolve().parent.name
        source, where = self._reference(path)
        draw = _function(source, where, _DRAW)
        rows, notes = _rows(held, path, draw)
        code = carried(source, where, [_KERNEL, _DRAW], _modules(path, held))
        notes += _of_check(source, where)
        names = constant_names(dict.fromkeys(key for row, _ in rows for key in row), code.names, str(path))
        all_sizes = merged(
            Size(constants={names[key]: repr(value) for key, value in row.items()}, weight=weight)
            for row, weight in rows
        )
        first = all_sizes[0].constants if rows[0][0] else {}
        inputs, unfilled = _inputs(draw)
        if unfilled:
            memory = ", ".join(unfilled)
            notes.append(
                f"{memory} is memory for an output, which the reference may write to; a candidate returns a "
                "tensor of its own instead"
            )
        text = TaskText(
            title=f"{name}, a problem of GPU MODE.",
            paragraphs=[str(held.get("description") or "")],
            carried=code,
            constants=first,
            sizes=varying(all_sizes) if rows[0][0] else (),
            code=_code(draw, names, inputs),
            notes=notes,
        )
        return TaskFile(name, text.written(), tuple(notes))

    def holds_candidate(self, path: Path) -> bool:
        if path.suffix != ".py" or not path.is_file():
            return False
        try:
            scope = module_scope(parse(read_text(path), str(path)))
        except UsageError:
            return False
        return scope.binds(_CUSTOM) and not scope.binds("ModelNew") and not scope.binds(_KERNEL)

    def candidate(self, path: Path) -> str:
        source = read_text(path)
        task = next((f / _TASK for f in path.resolve().parents[:_DEPTH] if (f / _TASK).is_file()), None)
        modules: dict[str, str] = {}
        inputs: list[str] = []
        unfilled: list[str] = []
        if task is not None:
            modules = _modules(task, read_yaml(task))
            reference, where = self._reference(task)
            inputs, unfilled = _inputs(_function(reference, where, _DRAW))
        elif wanted := sorted({"task", "utils"} & _imported(source, str(path))):
            raise UsageError(
                f"{path} imports {wanted[0]}, and there is no {_TASK} above it",
                "put it into the folder of its problem",
            )
        code = carried(source, str(path), None, modules)
        given = _data([f"torch.empty_like({name})" if name in unfilled else name for name in inputs])
        futures = [line for line in code.imports if "__future__" in line]
        imports = [*futures, *dict.fromkeys(["import torch", *code.without(futures)])]
        model = f"class ModelNew(torch.nn.Module):\n    def forward(self, {', '.join(inputs) or 'data'}):\n"
        model += f"        return {_CUSTOM}({given})\n"
        head = documented([f"{path.name}: a submission to GPU MODE."])
        return f"{head}\n\n" + "\n".join(imports) + f"\n\n\n{code.code}\n\n\n{model}"

    def _reference(self, task: Path) -> tuple[str, str]:
        path = task.with_name(_REFERENCE)
        if not path.is_file():
            raise UsageError(f"{task} has no {_REFERENCE} beside it", "give the whole folder of the problem")
        return read_text(path), str(path)


def _function(source: str, where: str, name: str) -> ast.FunctionDef:
    body = parse(source, where).body
    functions = {each.name: each for each in body if isinstance(each, ast.FunctionDef)}
    for wanted in (_KERNEL, _DRAW):
        if wanted not in functions:
            raise UsageError(
                f"{where} defines no function {wanted}", f"a problem has {_KERNEL} and {_DRAW} there"
            )
    return functions[name]


def _modules(task: Path, held: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the modules that a problem's files import from each other, by name."""
    places: dict[str, Path] = {}
    for each in held.get("files") or ():
        if isinstance(each, dict) and str(each.get("name", "")).endswith(".py"):
            source = str(each.get("source", ""))
            if not source.startswith("@"):
                places[str(each["name"]).removesuffix(".py")] = task.parent / source
    for name in ("task", "utils"):
        beside = [task.parent / f"{name}.py", task.parent.parent / f"{name}.py"]
        places.setdefault(name, next((each for each in beside if each.is_file()), beside[0]))
    root = task.resolve().parent.parent.parent  # problems/SERIES/NAME/task.yml
    for path in places.values():
        if not path.resolve().is_relative_to(root):
            raise UsageError(f"{task} names a file outside its repository, {path}", "name files beside it")
    return {name: read_text(path) for name, path in places.items() if path.is_file() and name != "reference"}


def _imported(source: str, where: str) -> set[str]:
    tree = parse(source, where)
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


def _rows(
    held: Mapping[str, Any], path: Path, draw: ast.FunctionDef
) -> tuple[list[tuple[dict[str, Any], float]], list[str]]:
    """Return the arguments of each size with its weight, benchmarks first, and what is not read of them."""
    given = [each.arg for each in (*draw.args.posonlyargs, *draw.args.args, *draw.args.kwonlyargs)]
    rows: list[tuple[dict[str, Any], float]] = []
    keys: set[str] = set()
    for kind, weight in (("benchmarks", 1.0), ("tests", _TEST_WEIGHT)):
        listed = held.get(kind) or []
        for number, row in enumerate(listed if isinstance(listed, list) else [listed], start=1):
            if not isinstance(row, dict) or not all(isinstance(key, str) for key in row):
                raise UsageError(f"{path}: {kind} {number} is no mapping of arguments", "write {size: 128}")
            keys |= row.keys()
            rows.append((row, weight))
    if not rows:
        raise UsageError(f"{path} has neither benchmarks nor tests", "list arguments of generate_input there")
    free = draw.args.kwarg is not None
    if unknown := sorted(key for key in keys if key not in given and not free):
        raise UsageError(
            f"{path} gives {unknown[0]}, which is no argument of {_DRAW}", f"it takes {', '.join(given)}"
        )
    defaults = _defaults(draw)
    names = [key for key in dict.fromkeys(key for row, _ in rows for key in row) if key != _SEED]
    found = []
    for row, weight in rows:
        full = {key: row[key] if key in row else defaults.get(key) for key in names}
        if missing := [key for key in names if key not in row and key not in defaults]:
            raise UsageError(f"{path}: a size gives no {missing[0]}, which another does", "give it in each")
        try:
            ast.literal_eval(repr(full))
        except (ValueError, SyntaxError):
            raise UsageError(f"{path}: an argument is no number, text or list", "write literals") from None
        found.append((full, weight))
    counted = {repr(row): weight for row, weight in found if weight == 1.0}
    return [(row, weight) for row, weight in found if weight == 1.0 or repr(row) not in counted], []


def _defaults(function: ast.FunctionDef) -> dict[str, Any]:
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    pairs += [
        (a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None
    ]
    found = {}
    for argument, default in pairs:
        try:
            found[argument.arg] = ast.literal_eval(default)
        except ValueError:
            continue
    return found


def _of_check(source: str, where: str) -> list[str]:
    """Return what is to say where the problem accepts other outputs than its reference's."""
    functions = [n for n in parse(source, where).body if isinstance(n, ast.FunctionDef) and n.name == _CHECK]
    if not functions:
        return []
    used = {each.id for each in ast.walk(functions[-1]) if isinstance(each, ast.Name)}
    if _KERNEL in used:
        return []
    return [
        "its check_implementation accepts any output with certain properties, and here outputs have to be "
        f"those of {_KERNEL}"
    ]


def _inputs(draw: ast.FunctionDef) -> tuple[list[str], list[str]]:
    """Return names of what is drawn, none if that is no tuple, and of those that are memory for an output.

    That is memory which the function allocates, and does nothing else with than to return it.
    """
    returns = [node.value for node in ast.walk(draw) if isinstance(node, ast.Return)]
    if len(returns) != 1 or not isinstance(returns[0], ast.Tuple):
        return [], []
    elements = returns[0].elts
    names = [_name_of(each) or f"data_{place}" for place, each in enumerate(elements)]
    if any(isinstance(each, ast.Starred) for each in elements) or len(set(names)) < len(names):
        return [], []
    used = [n.id for n in ast.walk(draw) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    allocated = [name for name, each in zip(names, elements, strict=True) if _allocates(each)]
    for node in ast.walk(draw):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            allocated += [name] if used.count(name) == 1 and _allocates(node.value) else []
    return names, [name for name in names if name in allocated]


def _name_of(value: ast.expr) -> str:
    """Return the name of a value: "a" of a, a.T and a.contiguous()."""
    while isinstance(value, ast.Call | ast.Attribute):
        value = value.func if isinstance(value, ast.Call) else value.value
    return value.id if isinstance(value, ast.Name) and value.id not in ("torch", "self") else ""


def _data(inputs: Sequence[str]) -> str:
    """Return the one argument of a kernel: a tuple of the inputs, or "data" where that is not seen."""
    return f"({', '.join(inputs)}{',' if len(inputs) == 1 else ''})" if inputs else "data"


def _allocates(value: ast.expr) -> bool:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SAME:
        value = value.func.value
    return isinstance(value, ast.Call) and ast.unparse(value.func) in _UNFILLED


def _code(draw: ast.FunctionDef, names: Mapping[str, str], inputs: Sequence[str]) -> str:
    """Return Model and the functions of the format."""
    words = [f"{key}={own}" for key, own in names.items()]
    takes_seed = _SEED in {each.arg for each in (*draw.args.args, *draw.args.kwonlyargs)}
    words += [f"{_SEED}={_SEED}"] if takes_seed else []
    lines = ["class Model(nn.Module):", f"    def forward(self, {', '.join(inputs) or 'data'}):"]
    lines += [f"        return {_KERNEL}({_data(inputs)})", "", "", "def get_inputs():"]
    if takes_seed:
        lines.append(f'    {_SEED} = int(torch.randint(2**31, (), device="cpu"))')
    lines.append(called(_DRAW, words, "return list(" if inputs else "return [", ")" if inputs else "]"))
    lines += ["", "", "def get_init_inputs():", "    return []"]
    return "\n".join(lines)
