"""Definitions and workloads of FlashInfer-Bench and SOL-ExecBench, as their files hold them.

    definition.json   axes (const, var, expr), inputs and outputs with shapes and dtypes, the reference's code
    workload.jsonl    a line a size: values of the var axes, and where each input comes from

Schemas: docs/flashinfer-trace of github.com/flashinfer-ai/flashinfer-bench, docs/ of NVIDIA/SOL-ExecBench.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources.assignments import parse
from kernelwright.kernelbench.sources.formats.documents import (
    ForeignRecord,
    checked,
    read_json,
    read_json_lines,
)

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_FORM = 'a definition has "axes", "inputs", "outputs" and "reference", as FlashInfer-Bench describes it'
_ARITHMETIC = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.Name,
    ast.Constant,
    ast.operator,
    ast.unaryop,
    ast.Load,
)
_EXPRESSION = "write arithmetic of axes, e.g. M // 2"
_DEPTH = 6  # folders above a file in which a data set's folders are looked for


class Axis(ForeignRecord):
    type: Literal["const", "var", "expr"]
    value: int | None = Field(default=None, ge=0)
    expression: str = ""


class TensorSpec(ForeignRecord):
    shape: tuple[str, ...] | None  # axes; None: a number, not a tensor
    dtype: str


class OperatorDefinition(ForeignRecord):
    name: str
    description: str | None = None
    axes: dict[str, Axis]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    reference: str
    constraints: tuple[str, ...] | None = None
    custom_inputs_entrypoint: str | None = None

    def value_of(self, axis: str, where: str) -> str:
        """Return the text of an axis's value in names of other axes; of a var axis, its name."""
        known = self.axes.get(axis)
        if known is None and axis.isdecimal():
            return axis
        if known is None:
            raise UsageError(
                f"{where}: there is no axis {axis}", f"it has {', '.join(self.axes)}: add it there"
            )
        if known.type == "var":
            return axis
        if known.type == "const":
            if known.value is None:
                raise UsageError(f"{where}: the const axis {axis} has no value", 'give it one: "value": 4096')
            return str(known.value)
        return _expression(known.expression, self.axes, f"{where}: the axis {axis}")


class InputSource(ForeignRecord):
    type: str
    value: bool | int | float | None = None
    path: str = ""
    tensor_key: str = ""


class WorkloadRow(ForeignRecord):
    uuid: str = ""
    axes: dict[str, int] = Field(default_factory=dict)
    inputs: dict[str, InputSource] = Field(default_factory=dict)


def is_definition(path: Path) -> bool:
    """Return whether a file looks like a definition; a damaged `definition.json` does."""
    if path.suffix != ".json" or not path.is_file():
        return False
    if path.name == "definition.json":
        return True
    try:
        held = read_json(path)
    except UsageError:
        return path.parent.parent.name == "definitions"
    return isinstance(held, dict) and {"axes", "inputs", "reference"} <= held.keys()


def read_definition(path: Path) -> OperatorDefinition:
    """Return a definition whose axes, dtypes and reference fit together. Raises UsageError."""
    held = read_json(path)
    if isinstance(held, dict) and "name" not in held:
        held = {**held, "name": path.parent.name if path.name == "definition.json" else path.stem}
    found = checked(OperatorDefinition, held, str(path), _FORM)
    if not found.inputs or not found.outputs:
        raise UsageError(f"{path} has no {'outputs' if found.inputs else 'inputs'}", _FORM)
    for axis in found.axes:
        found.value_of(axis, str(path))
    for kind, tensors in (("input", found.inputs), ("output", found.outputs)):
        for name, spec in tensors.items():
            if spec.dtype not in DTYPES:
                four = "float4" in spec.dtype
                fix = "torch computes nothing in it on its own" if four else f"use one of {', '.join(DTYPES)}"
                raise UsageError(f"{path}: the {kind} {name} has the dtype {spec.dtype}", fix)
            for axis in spec.shape or ():
                found.value_of(axis, f"{path}: the {kind} {name}")
    return found


def workload_file(path: Path) -> Path | None:
    """Return the workload that belongs to a definition: beside it, or in the data set's folder workloads."""
    beside = [path.with_name("workload.jsonl")] if path.name == "definition.json" else []
    beside += [path.with_suffix(".jsonl"), path.with_name("workload.jsonl")]
    for folder in path.parents[:_DEPTH]:
        if folder.name == "definitions":
            place = path.relative_to(folder).with_suffix("")
            for root in (folder.parent / "workloads", folder.parent / "traces" / "workloads"):
                beside += [root / f"{place}.jsonl", root / f"{place}.workload.jsonl"]
    return next((each for each in beside if each.is_file()), None)


def read_workload(path: Path, definition: OperatorDefinition) -> Iterator[tuple[str, WorkloadRow]]:
    """Yield where each size is written, and what it is. Raises UsageError."""
    fix = 'write {"axes": {"M": 128}, "inputs": {"A": {"type": "random"}}}, a line a size'
    needed = [name for name, axis in definition.axes.items() if axis.type == "var"]
    for where, held in read_json_lines(path):
        inner = held.get("workload", held) if isinstance(held, dict) else held  # in a trace, or alone
        row = checked(WorkloadRow, inner, where, fix)
        if missing := [name for name in needed if name not in row.axes]:
            raise UsageError(
                f"{where} gives no value for the axis {missing[0]}", f'add "{missing[0]}" to its axes'
            )
        yield where, row


def definition_of(solution: Path, name: str) -> Path | None:
    """Return the definition of this name for a solution: beside it, or in a data set's folder above it."""
    beside = solution.with_name("definition.json")
    if beside.is_file():
        return beside
    for folder in solution.resolve().parents[:_DEPTH]:
        found = sorted((folder / "definitions").rglob(f"{name}.json")) if name else []
        if found:
            return found[0]
    return None


def function_arguments(source: str, name: str, where: str) -> tuple[list[str], bool] | None:
    """Return the arguments of a function, and whether it returns a dictionary; None if it is not defined."""
    found = [n for n in parse(source, where).body if isinstance(n, ast.FunctionDef) and n.name == name]
    if not found:
        return None
    arguments = found[-1].args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    returns = [node.value for node in ast.walk(found[-1]) if isinstance(node, ast.Return)]
    return names, any(isinstance(value, ast.Dict) for value in returns)


def _expression(text: str, axes: Mapping[str, Any], where: str) -> str:
    """Return an expression of axes, checked to be arithmetic alone."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        raise UsageError(f"{where} has the expression {text!r}", _EXPRESSION) from None
    for node in ast.walk(tree):
        if not isinstance(node, _ARITHMETIC):
            raise UsageError(f"{where} has the expression {text!r}", _EXPRESSION)
        if isinstance(node, ast.Name) and node.id not in axes:
            raise UsageError(f"{where} names {node.id}, which is no axis", f"it has {', '.join(axes)}")
    divides = any(isinstance(node, ast.Div) for node in ast.walk(tree))
    return f"int({ast.unparse(tree)})" if divides else ast.unparse(tree)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return an expression with names replaced."""
    return re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), text)


def in_order(definition: OperatorDefinition, axes: Sequence[str], where: str) -> list[str]:
    """Return axes, each after those that its expression names. Raises UsageError for a circle."""
    found: dict[str, None] = {}

    def visit(axis: str, above: tuple[str, ...]) -> None:
        if axis in above:
            raise UsageError(f"{where}: the axis {axis} is computed from itself", "give one of them a value")
        if axis not in definition.axes or axis in found:
            return
        if definition.axes[axis].type == "expr":
            for name in re.findall(r"[A-Za-z_]\w*", definition.value_of(axis, where)):
                visit(name, (*above, axis))
        found.setdefault(axis)

    for axis in axes:
        visit(axis, ())
    return list(found)
