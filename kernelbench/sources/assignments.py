"""Bindings of a task file's module scope, and the constants among them that can be set from outside.

A constant is a name that the module only ever binds by assigning an expression of literals, other constants,
built-in arithmetic functions and `math`: `batch_size = 64`, `out = 2 * hidden`, `m, n = 3, 4`, `height =
width = 256`. Names bound in functions and classes, results of other calls (`config =
AutoConfig.from_pretrained(…)`) and the names of the task format itself are none.
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from kernelwright.kernelbench.errors import TaskError

FORMAT_NAMES = frozenset(
    {"Model", "ModelNew", "get_inputs", "get_init_inputs", "input_domains", "without_gradient", "workload"}
)
ARITHMETIC = frozenset(
    {"abs", "bool", "dict", "divmod", "float", "int", "len", "list", "max", "min", "pow"}
    | {"range", "reversed", "round", "sorted", "str", "sum", "tuple", "zip"}
)
OWN_SCOPE = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclass(frozen=True)
class Assignment:
    """One name given one value. `shared`: other names get the same value object, as in `a = b = 3`."""

    name: str
    value: ast.expr
    statement: ast.Assign | ast.AnnAssign
    shared: bool


@dataclass(frozen=True)
class ModuleScope:
    assignments: dict[str, list[Assignment]]  # in source order; the last governs
    definitions: dict[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]
    imported: frozenset[str]  # "*" for a star import
    rebound: dict[str, int]  # names that something else than an assignment binds -> its line

    def binds(self, name: str) -> bool:
        """Return True if the name exists after import, as far as the text shows."""
        return (
            name in self.assignments
            or name in self.definitions
            or name in self.rebound
            or not self.imported.isdisjoint((name, "*"))
        )

    def settable(self) -> dict[str, list[Assignment]]:
        """Return the constants, in the order of their first assignment."""
        return {
            name: found
            for name, found in self.assignments.items()
            if name not in FORMAT_NAMES
            and not name.startswith("__")
            and name not in self.rebound
            and name not in self.definitions
            and name not in self.imported
            and self._is_plain(found[-1].value)
        }

    def _is_plain(self, value: ast.expr) -> bool:
        foreign = (self.imported | self.definitions.keys()) - {"math"}
        for node in ast.walk(value):
            if isinstance(node, ast.Lambda | ast.NamedExpr | ast.Await):
                return False
            if isinstance(node, ast.Call) and not self._is_arithmetic(node.func):
                return False
            if isinstance(node, ast.Name) and node.id in foreign:
                return False
        return True

    def _is_arithmetic(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Attribute):
            return isinstance(function.value, ast.Name) and function.value.id == "math"
        return isinstance(function, ast.Name) and function.id in ARITHMETIC


def parse(source: str, where: str) -> ast.Module:
    """Parse a task file; `TaskError` names the file as `where`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "\d" in a docstring is the author's business
            return ast.parse(source)
    except SyntaxError as error:
        raise TaskError(
            f"{where} is not Python: line {error.lineno}: {error.msg}", "fix that line"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"{where} is not Python: {error}", "give a plain Python file") from error


def module_scope(tree: ast.Module) -> ModuleScope:
    assignments: dict[str, list[Assignment]] = {}
    definitions: dict[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = {}
    imported: set[str] = set()
    rebound: dict[str, int] = {}
    paired: set[int] = set()  # ids of the target nodes that belong to an assignment above
    for node in _nodes(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target, assignment in _pairs_of(node):
                paired.add(id(target))
                if assignment is not None:
                    assignments.setdefault(assignment.name, []).append(assignment)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imported.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in paired:
            rebound[node.id] = node.lineno
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            rebound[node.name] = node.lineno
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            rebound.update(dict.fromkeys(inner.names, inner.lineno))
    return ModuleScope(assignments, definitions, frozenset(imported), rebound)


def constants(source: str, where: str = "the task") -> dict[str, str]:
    """Return the task's constants with their values' text: `{"batch_size": "64", "out": "2 * hidden"}`."""
    settable = module_scope(parse(source, where)).settable()
    return {name: _text(source, found[-1].value) for name, found in settable.items()}


def _text(source: str, value: ast.expr) -> str:
    written = ast.get_source_segment(source, value)
    return ast.unparse(value) if written is None or "\n" in written or "\r" in written else written


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all nodes of the module's own scope, in source order."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, OWN_SCOPE):
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _pairs_of(
    statement: ast.Assign | ast.AnnAssign,
) -> Iterator[tuple[ast.Name, Assignment | None]]:
    if isinstance(statement, ast.AnnAssign):
        if isinstance(statement.target, ast.Name):
            name, value = statement.target, statement.value
            yield name, None if value is None else Assignment(name.id, value, statement, shared=False)
        return
    shared = len(statement.targets) > 1
    for target in statement.targets:
        for name, value in _unpack(target, statement.value):
            yield name, Assignment(name.id, value, statement, shared)


def _unpack(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Name, ast.expr]]:
    """Yield the names of a target with the part of the value that each gets, where the text shows it."""
    if isinstance(target, ast.Name):
        yield target, value
    elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        pieces = [*target.elts, *value.elts]
        if len(target.elts) == len(value.elts) and not any(isinstance(p, ast.Starred) for p in pieces):
            for part, piece in zip(target.elts, value.elts, strict=True):
                yield from _unpack(part, piece)
