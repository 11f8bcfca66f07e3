"""Text of the task file of a traced call."""

import builtins
import keyword
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator.reference.task_format import described
from kernelwright.kernelbench.free_sizes.text import joined, tokens, words
from kernelwright.kernelbench.free_sizes.unify import Grid, SizesDecide, unified
from kernelwright.kernelbench.modules.call_graph import said
from kernelwright.kernelbench.modules.tensor_code import buffer_like, input_like, parameter_like
from kernelwright.kernelbench.modules.tracing import SEED, TracedCall

_WIDTH = 100
_ALWAYS = ("self", "torch", "nn")  # names in every forward
_SMALLEST = 17  # of the sizes at which calls are compared
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""  # between quotes, whose words are no names
_WORD = re.compile(rf"{_TEXT}|(?<![.\w])\w+\b(?!=)")  # which is no attribute, and no keyword of a call
_KEYWORD = re.compile(rf"{_TEXT}|\b(\w+) = ")


def task_source(call: TracedCall, inputs: Sequence[str] = (), name: str = "Model") -> str:
    """Return a file in KernelBench's format whose `Model` computes what this call does.

    `inputs`: code that draws each input, where it is known better than by the numbers of the example. Raises
    UsageError where the call cannot be written down, or what was written computes something else.
    """
    code, imports = _forward(call)
    drawn = list(inputs) or [input_like(tensor, f"the input {name}") for name, tensor in call.inputs.items()]
    source = _file(_heading(call), imports, [], _constructor(call) + code, drawn, name)
    _check(call, source, name)
    return source


def free_task_source(
    at: Callable[[Mapping[str, int]], tuple[TracedCall, Sequence[str]]],
    sizes: Mapping[str, int],
    axes: Mapping[str, tuple[int, int]],
    grid: Grid | None = None,
    others: Sequence[TracedCall] = (),
) -> str:
    """Return a file in KernelBench's format with constants for sizes, which its forward reads off its inputs.

    `at`: traces the call at other sizes, and gives the code that draws each input; `sizes`: of the file;
    `axes`: an input, by its number, and the axis of it that has the size; `grid`: sizes at which calls are
    compared, by default `small_grid`; `others`: further calls that the file is to compute, too. Raises
    UsageError where the call does something else at other sizes.
    """
    call, drawn = at(sizes)
    given = {*call.inputs, *_ALWAYS}
    grid = grid or small_grid(sizes, (*call.inputs.values(), *call.weights.values()))
    if all(size > 1 for size in sizes.values()):
        grid = replace(grid, checks=(*grid.checks, sizes))
    forms, imports = [], _forward(call)[1]
    for point in grid.points:
        own, inputs = (call, drawn) if point == sizes else at(point)
        code = _forward(own)[0]
        task_source(own, inputs)  # which is held against the module there
        forms.append([tuple(map(tokens, part)) for part in ([_constructor(own), code], inputs)])
    try:
        (constructor, forward), codes = unified(forms, grid)
    except SizesDecide as why:
        names = ", ".join(sizes)
        raise UsageError(f"{call.name} is not one task for any {names}: {why}", "give numbers") from why
    define, *lines = joined(forward).split("\n")
    if taken := [name for name in sizes if name in given or any(f"    {name} = " in line for line in lines)]:
        raise UsageError(f"{taken[0]} is the name of a value in forward", "call the size otherwise")
    named = list(call.inputs)
    read = [f"    {n} = {named[axes[n][0]]}.shape[{axes[n][1]}]" for n in sizes if n in words(lines)]
    constants = [f"{name} = {size}" for name, size in sizes.items()]
    code = joined(constructor) + "\n".join([define, *read, *lines])
    source = _file(_heading(call, sizes), imports, constants, code, list(map(joined, codes)), "Model")
    for each in (call, *others):
        _check(each, source, "Model")
    return source


def small_grid(names: Iterable[str], tensors: Iterable[Tensor]) -> Grid:
    """Return small sizes at which calls are compared, none of which is a length in these tensors."""
    taken = {length for tensor in tensors for length in tensor.shape}
    return Grid.near(dict.fromkeys(names, _SMALLEST), _SMALLEST, taken)


def taken_names(call: TracedCall) -> set[str]:
    """Return the names that the forward of a call has for its values."""
    return {node.name for node in call.graph.nodes} | {*_ALWAYS}


def unused_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or a longer one if it is taken."""
    while name in taken:
        name = f"{name}_size"
    return name


def _file(
    heading: str, imports: Sequence[str], constants: Sequence[str], code: str, drawn: Sequence[str], name: str
) -> str:
    parts = [
        f'"""{heading}\n"""',
        "\n".join(["import torch", *imports, "from torch import nn"])
        + "".join(f"\n{c}" for c in ["", *constants] if constants),
        f"class {name}(nn.Module):\n{textwrap.indent(code, '    ')}",
        f"def get_inputs():\n{_returned(drawn)}",
        "def get_init_inputs():\n    return []",
    ]
    return f"{parts[0]}\n\n{parts[1]}\n\n\n" + "\n\n\n".join(parts[2:]) + "\n"


def _heading(call: TracedCall, sizes: Mapping[str, int] | None = None) -> str:
    inputs = ", ".join(f"{name}: {described([tensor])}" for name, tensor in call.inputs.items())
    constants = [c for c, t in zip(call.arguments.constants, call.arguments.is_tensor, strict=True) if not t]
    fixed = f" Further arguments are {described(constants)}." if constants else ""
    origin = f" of {call.origin}" if call.origin else ""
    about = f"{call.name}{origin}, for {inputs}.{fixed}"
    how = (
        "Traced by kernelwright: forward holds the torch calls that were made for such inputs. Weights have "
        "the shapes and dtypes of the module's, and numbers like them."
    )
    if sizes:
        how += f" It is the same for any {', '.join(sizes)}, which it reads off its inputs."
    return "\n\n".join(
        textwrap.fill(each, _WIDTH) for each in (about.replace("\\", "/").replace('"', "'"), how)
    )


def _returned(values: Sequence[str]) -> str:
    line = f"    return [{', '.join(values)}]"
    if len(line) <= _WIDTH:
        return line
    return "    return [\n" + "".join(f"        {value},\n" for value in values) + "    ]"


def _constructor(call: TracedCall) -> str:
    """Return the constructor, which makes the weights under the names that the module has for them."""
    if not call.weights:
        return ""
    lists, made = _lists(call.weights), {""}
    lines = ["def __init__(self):", "    super().__init__()"]
    for path, tensor in call.weights.items():
        *parents, name = path.split(".")
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"the name of {path} is no Python name", "rename it")
        for place in range(len(parents)):
            holder = ".".join(parents[: place + 1])
            if holder not in made:
                made.add(holder)
                if ".".join(parents[:place]) not in lists:
                    lines.append(f"    {_made(holder, lists, call.weights)}")
        holder = _attribute(".".join(parents), lists) if parents else "self"
        if isinstance(tensor, nn.Parameter):
            frozen = "" if tensor.requires_grad else ", requires_grad=False"
            lines.append(f"    {holder}.{name} = nn.Parameter({parameter_like(tensor, path)}{frozen})")
        else:
            lines.append(f'    {holder}.register_buffer("{name}", {buffer_like(tensor, path)})')
    return "\n".join(lines) + "\n\n"


def _made(path: str, lists: Collection[str], weights: Iterable[str]) -> str:
    """Return the statement that makes a module which only holds others, or weights."""
    parent, _, name = path.rpartition(".")
    holder = _attribute(parent, lists) if parent else "self"
    made = "nn.Module()"
    if path in lists:
        count = len(
            {
                weight.removeprefix(f"{path}.").partition(".")[0]
                for weight in weights
                if weight.startswith(f"{path}.")
            }
        )
        made = f"nn.ModuleList(nn.Module() for _ in range({count}))"
    return f"{holder}.{name} = {made}" if name.isidentifier() else f'{holder}.add_module("{name}", {made})'


def _forward(call: TracedCall) -> tuple[str, list[str]]:
    """Return the code of forward, and the imports that it needs beside torch."""
    written = call.graph.python_code("self")
    weights = {node.name: node.target for node in call.graph.find_nodes(op="get_attr")}
    lists = _lists(call.weights)
    lines = [f"def forward(self, {', '.join(call.inputs)}):"]
    for line in written.src.strip().splitlines()[1:]:
        line = re.sub(r"; +(\w+ = )+None$", "", line).strip()  # memory is freed when forward ends
        result, equals, code = line.partition(" = ")
        if not equals:
            result, code = "", line
        if not code or result in weights:
            continue
        code = _KEYWORD.sub(lambda m: f"{m[1]}=" if m[1] else m[0], code)
        code = _WORD.sub(lambda m: _attribute(weights[m[0]], lists) if m[0] in weights else m[0], code)
        lines.append(f"    {result.partition(' :')[0]}{equals}{code}")
    used = set(_WORD.findall("\n".join(lines[1:])))
    imports = {_import(name, value) for name, value in written.globals.items() if name in used}
    return "\n".join(lines), sorted(imports - {"import torch", ""})


def _lists(paths: Iterable[str]) -> set[str]:
    """Return the paths of those modules whose parts are numbered from 0."""
    children: dict[str, dict[str, None]] = {}
    for path in paths:
        parts = path.split(".")
        for place, part in enumerate(parts):
            children.setdefault(".".join(parts[:place]), {})[part] = None
    return {
        path for path, names in children.items() if path and list(names) == [*map(str, range(len(names)))]
    }


def _attribute(path: str, lists: Collection[str]) -> str:
    """Return the expression for what has this path in self."""
    found, *parts = "self", *path.split(".")
    for place, part in enumerate(parts):
        if ".".join(parts[:place]) in lists:
            found += f"[{part}]"
        else:
            found = f"{found}.{part}" if part.isidentifier() else f'getattr({found}, "{part}")'
    return found


def _import(name: str, value: Any) -> str:
    """Return the statement that gives a name its value. Raises UsageError if that is code of the user's."""
    known = {
        "inf": "from math import inf",
        "nan": "from math import nan",
        "device": "from torch import device",
    }
    if name in known:
        return known[name]
    if getattr(builtins, name, None) is value:
        return ""
    if isinstance(value, ModuleType) and value.__name__ == name:
        return f"import {name}"
    where, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if where in ("math", "operator", "builtins", "_operator") or str(where).startswith("torch"):
        if own.isidentifier():
            return f"from {where} import {own} as {name}"
        raise UsageError(  # of TorchDynamo, which has calls of numpy as objects of its own
            f"it calls {name.removeprefix('torch__dynamo_utils_')} of {where}, which is no function",
            "pass the part without it, or use torch's functions in the place of numpy's",
        )
    raise UsageError(
        f"it calls {own or name} of {where}, which is no code of torch", "pass the part without it"
    )


def _check(call: TracedCall, source: str, name: str) -> None:
    """Run what was written with the module's own weights: it must give what the module gave."""
    scope: dict[str, Any] = {"__name__": "task"}
    try:
        exec(compile(source, "task.py", "exec"), scope)
        device = next(iter(call.inputs.values())).device
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model = scope[name](*scope["get_init_inputs"]()).to(device)
            held = dict(model.named_parameters()) | dict(model.named_buffers())
            for path, tensor in call.weights.items():
                held[path].copy_(tensor)
            torch.manual_seed(SEED)
            made = model(*(tensor.clone() for tensor in call.inputs.values()))
            scope["get_inputs"]()
    except Exception as error:
        raise UsageError(
            f"{call.name} cannot be written as a task: {said(error)}", "write a task file"
        ) from error
    made = made if isinstance(made, tuple) else (made,)
    for ours, theirs in zip(made, call.outputs, strict=True):
        try:
            torch.testing.assert_close(ours, theirs, equal_nan=True)
        except AssertionError as error:
            raise UsageError(
                f"{call.name} gives other numbers when it is called again: {said(error).partition(': ')[2]}",
                "make it deterministic, by .eval() say",
            ) from error
