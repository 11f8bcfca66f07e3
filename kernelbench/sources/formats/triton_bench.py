"""TritonBench (github.com/thunlp/TritonBench): functions of torch with their tests, and Triton kernels.

    TritonBench_T_v1/addmm.py      def addmm(input, mat1, mat2, beta=1): ...    a function of torch
                                   #################################
                                   def test_addmm(): ...                        which calls it

The function becomes a task, the calls of its test the task's sizes; their arguments are drawn by the test.
A file of TritonBench_G_v1 has a Triton kernel in place of the function, and becomes a candidate.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.functions import with_module
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.assignments import parse
from kernelwright.kernelbench.sources.entry import read_text
from kernelwright.kernelbench.sources.formats.carrying import carried
from kernelwright.kernelbench.sources.formats.interface import TaskFile
from kernelwright.kernelbench.sources.formats.task_text import TaskText, documented

_BETWEEN = "#" * 100  # what is between a function and its test, and longer
_FOLDER, _OF_KERNELS = "TritonBench_", "TritonBench_G"
_CASE = "case"
_REPEATED = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.FunctionDef, ast.Lambda, ast.Try)
_CODE = '''\
class Model(nn.Module):
    def forward(self, {inputs}):
        return {function}({given})


class Reached(BaseException):
    """The call whose arguments are wanted."""


def get_inputs():
    calls = []

    def recorded(*arguments, **keywords):
        bound = inspect.signature({function}).bind(*arguments, **keywords)
        bound.apply_defaults()
        calls.append([bound.arguments[name] for name in {names}])
        if len(calls) == {case}:
            raise Reached
        return {function}(*arguments, **keywords)

    try:
        {test}(recorded)
    except Reached:
        pass
    return calls[-1]


def get_init_inputs():
    return []
'''


class TritonBenchFormat:
    name = "TritonBench"

    def task_paths(self, path: Path) -> Sequence[Path]:
        if path.is_dir():
            if path.name.startswith(_OF_KERNELS):
                return [path]
            mine = path.name.startswith(_FOLDER)
            return [each for each in sorted(path.glob("*.py")) if _is_tested(each)] if mine else []
        return [path] if _is_tested(path) and not _has_kernel(path) else []

    def task(self, path: Path, sizes: Mapping[str, str]) -> TaskFile:
        if path.is_dir():
            raise UsageError(
                f"{path} holds kernels alone, without references in torch", f"give {_FOLDER}T_v1 for tasks"
            )
        return _TestedFunction.of(path).task()

    def holds_candidate(self, path: Path) -> bool:
        return _is_tested(path)

    def candidate(self, path: Path) -> str:
        found = _TestedFunction.of(path)
        code = carried(found.source, str(path), [found.function.name])
        head = [documented([f"{path.name}: a function of TritonBench."]), "\n".join(code.imports)]
        text = "\n\n".join(head) + f"\n\n\n{code.code}\n"
        return with_module(text, found.function.name, str(path))


@dataclass(frozen=True)
class _TestedFunction:
    """A function with the test that calls it."""

    path: Path
    source: str
    function: ast.FunctionDef
    test: ast.FunctionDef

    @classmethod
    def of(cls, path: Path) -> "_TestedFunction":
        source = _without_runs(read_text(path), path)
        body = parse(source, str(path)).body
        functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        test = next(node for name, node in reversed(functions.items()) if name.startswith("test_"))
        called = {
            node.func.id
            for node in ast.walk(test)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions
        }
        named = [path.stem, test.name.removeprefix("test_"), *sorted(called)]
        chosen = next((name for name in named if name in called), None)
        if chosen is None or (len(called) > 1 and chosen != path.stem):
            raise UsageError(
                f"{path}: {test.name} calls {' and '.join(sorted(called)) or 'no function of the file'}",
                "cut off the test and name a function of a kernel: FILE.py:FUNCTION",
            )
        return cls(path, source, functions[chosen], test)

    def task(self) -> TaskFile:
        name, where = self.function.name, str(self.path)
        cases, notes = self._cases()
        inputs, given = self._arguments([call for _, call in cases])
        lines = self.source.splitlines()
        place = self.test.lineno - 1
        lines[place] = lines[place].replace("()", f"({name})", 1)
        code = _CODE.format(
            function=name,
            inputs=", ".join(inputs),
            given=", ".join(given),
            names=tuple(inputs),
            case=_CASE,
            test=self.test.name,
        )
        kept = carried("import inspect\n" + "\n".join(lines), where, [name, self.test.name, "inspect"])
        sizes = [Size(constants={_CASE: str(number)}) for number, _ in cases]
        text = TaskText(
            title=f"{name}, a function of TritonBench.",
            paragraphs=[f"The {_CASE} is which call of {self.test.name} the arguments are of."],
            carried=kept,
            constants={_CASE: str(cases[0][0])},
            sizes=sizes,
            code=code,
            notes=notes,
        )
        return TaskFile(name, text.written(), tuple(notes))

    def _cases(self) -> tuple[list[tuple[int, ast.Call]], list[str]]:
        """Return the calls that can be told apart, with their numbers, and what is left out."""
        found: list[tuple[ast.Call, bool]] = []

        def visit(node: ast.AST, repeated: bool) -> None:
            for child in ast.iter_child_nodes(node):
                visit(child, repeated or isinstance(child, _REPEATED))
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if isinstance(node, ast.Call) and called and ast.unparse(node.func) == self.function.name:
                found.append((node, repeated))

        visit(ast.Module(self.test.body, []), False)
        cases: list[tuple[int, ast.Call]] = []
        for number, (call, repeated) in enumerate(found, start=1):
            if repeated:  # from here on the numbers are not known
                break
            if not any(word.arg in ("out", None) for word in call.keywords):
                cases.append((number, call))
        if not cases:
            raise UsageError(
                f"{self.path}: {self.test.name} has no plain call of {self.function.name}",
                "call it outside of loops and try statements, without out=",
            )
        left = len(found) - len(cases)
        why = "in a loop or a try statement, or with memory for the output"
        return cases, [f"{left} of {len(found)} calls are left out: they are {why}"] if left else []

    def _arguments(self, calls: Sequence[ast.Call]) -> tuple[list[str], list[str]]:
        """Return the inputs of the task, and how the function is called with them."""
        arguments = self.function.args
        if arguments.vararg is not None or arguments.kwarg is not None:
            raise UsageError(
                f"{self.path}: {self.function.name} takes any number of arguments", "name its arguments"
            )
        plain = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        words = {word.arg for call in calls for word in call.keywords}
        most = max(
            max(len(call.args) for call in calls),
            *(place + 1 for place, name in enumerate(plain) if name in words),
            0,
        )
        named = [each.arg for each in arguments.kwonlyargs if each.arg in words]
        return [*plain[:most], *named], [*plain[:most], *(f"{name}={name}" for name in named)]


def _without_runs(source: str, path: Path) -> str:
    """Return the text without statements that run the test, or import the file itself."""
    lines = source.splitlines()
    for node in parse(source, str(path)).body:
        value = getattr(node, "value", None)
        runs = isinstance(value, ast.Call) and ast.unparse(value.func).startswith("test_")
        if runs or (isinstance(node, ast.ImportFrom) and node.module == path.stem):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            lines[first:last] = [""] * (last - first)
    return "\n".join(lines)


def _is_tested(path: Path) -> bool:
    """Return whether a file has a function and, behind a line, its test."""
    if path.suffix != ".py" or not path.is_file():
        return False
    text = path.read_bytes().decode("utf-8", "replace")
    return "\n" + _BETWEEN in text and "\ndef test_" in text.partition("\n" + _BETWEEN)[2]


def _has_kernel(path: Path) -> bool:
    return "triton.jit" in read_text(path)
