"""Parts of a reference that a candidate keeps: the constructor, and what the constructor needs.

A `ModelNew` that builds its submodules exactly as `Model` does has the same parameters under the same
names, drawn from the random generator in the same order.
"""

import ast
import json
import re
from dataclasses import dataclass

from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.kernelbench.parsing import parsed

_DROPPED = {"get_inputs", "get_init_inputs"}


@dataclass(frozen=True)
class ReferenceSource:
    imports: tuple[str, ...]
    definitions: tuple[str, ...]  # module-level code the class needs, in order
    bases: str
    members: str  # class body, indented as in a class; may be empty
    arguments: str  # of forward, without annotations: "self, x, y=1"
    names: frozenset[str]  # all module-level names in `definitions`


def read(source: str, constructor: tuple[str, ...], whole: bool = False) -> ReferenceSource:
    """Return the parts of a reference, its class renamed to ModelNew.

    The `whole`, with its forward, is renamed to Unfused.

    `constructor` are the literals the graph was traced with; other values are refused at construction.
    """
    tree = parsed(source)
    model = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"][-1]
    methods = {n.name: n for n in model.body if isinstance(n, ast.FunctionDef)}
    kept = set(methods) if whole else _reachable_methods(methods)
    members, wanted = [], set()
    for node in model.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or (isinstance(node, ast.FunctionDef) and node.name not in kept):
            continue
        text = _text(source, node)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            text = _checked(source, node, constructor)
        members.append(text)
        wanted |= _names(node)
    for base in (*model.bases, *model.keywords):
        wanted |= _names(base)
    definitions, imports = _module_level(source, tree, wanted)
    if "forward" not in methods:
        raise Untraceable("Model inherits its forward")
    given = methods["forward"].args
    for argument in (*given.args, *given.kwonlyargs):
        argument.annotation = None
    arguments = ast.unparse(given)
    body = re.sub(r"\bModel\b", "Unfused" if whole else "ModelNew", "\n\n".join(members))
    return ReferenceSource(
        imports=tuple(imports),
        definitions=tuple(text for text, _ in definitions),
        bases=", ".join(ast.unparse(base) for base in model.bases),
        members=body,
        arguments=arguments,
        names=frozenset(name for _, names in definitions for name in names),
    )


def renamed(source: str) -> str:
    """Return the whole reference with its class renamed."""
    return re.sub(r"\bModel\b", "ModelNew", source).strip() + "\n"


def needed(source: str, names: set[str]) -> str:
    """Return the imports and module-level code that these names need; without the class Model."""
    definitions, imports = _module_level(source, parsed(source), set(names))
    return "\n\n\n".join(["\n".join(imports), *(text for text, _ in definitions)]).strip()


def _reachable_methods(methods: dict[str, ast.FunctionDef]) -> set[str]:
    """Methods the constructor calls, with itself."""
    found: set[str] = set()
    todo = ["__init__"]
    while todo:
        name = todo.pop()
        if name in found or name not in methods:
            continue
        found.add(name)
        for node in ast.walk(methods[name]):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                todo.append(node.attr)
    return found - {"forward"}


def _checked(source: str, init: ast.FunctionDef, constructor: tuple[str, ...]) -> str:
    """Return the constructor, with a check of its arguments at the start."""
    names = [a.arg for a in init.args.args[1:]][: len(constructor)]
    text = _text(source, init)
    if not names or init.args.vararg is not None:
        return text
    values = ", ".join(constructor[: len(names)])
    left, right = (names[0], values) if len(names) == 1 else (f"({', '.join(names)})", f"({values})")
    body = init.body
    is_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    first = body[1] if is_docstring and len(body) > 1 else body[0]
    lines = text.splitlines()
    start = init.decorator_list[0].lineno if init.decorator_list else init.lineno
    shown = ", ".join(constructor)
    check = [
        f"        if {left} != {right}:",
        f"            raise ValueError({json.dumps(f'these kernels are built for ModelNew({shown})')})",
    ]
    at = first.lineno - start
    if is_docstring:
        assert isinstance(body[0], ast.Expr)
        lines = lines[: body[0].lineno - start] + lines[at:]
        at = body[0].lineno - start
    return "\n".join([*lines[:at], *check, *lines[at:]])


def _module_level(
    source: str, tree: ast.Module, wanted: set[str]
) -> tuple[list[tuple[str, set[str]]], list[str]]:
    """Definitions and imports that `wanted` names need, in the order of the source."""
    chosen: set[int] = set()
    grown = True
    while grown:
        grown = False
        for index, node in enumerate(tree.body):
            if index in chosen or not (_defines(node) & wanted):
                continue
            if isinstance(node, ast.ClassDef) and node.name == "Model":
                continue
            chosen.add(index)
            if not isinstance(node, ast.Import | ast.ImportFrom):
                wanted |= _names(node)
            grown = True
    definitions, imports = [], []
    for index in sorted(chosen):
        node = tree.body[index]
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += _imports(node, wanted)
        else:
            definitions.append((_text(source, node), _defines(node)))
    return definitions, imports


def _imports(node: ast.Import | ast.ImportFrom, wanted: set[str]) -> list[str]:
    """One import for each wanted name."""
    found = []
    for alias in node.names:
        if (alias.asname or alias.name).split(".")[0] not in wanted:
            continue
        name = alias.name + (f" as {alias.asname}" if alias.asname else "")
        if isinstance(node, ast.ImportFrom):
            found.append(f"from {'.' * node.level}{node.module or ''} import {name}")
        else:
            found.append(f"import {name}")
    return found


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return {node.name} - _DROPPED
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(a.asname or a.name).split(".")[0] for a in node.names}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _names(node: ast.AST) -> set[str]:
    """Names a statement reads from outside of it."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        found |= _names(child)
    if isinstance(node, ast.Name):
        found.add(node.id)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        every = (
            *node.args.posonlyargs,
            *node.args.args,
            *node.args.kwonlyargs,
            node.args.vararg,
            node.args.kwarg,
        )
        found -= {argument.arg for argument in every if argument is not None}
    return found


def _text(source: str, node: ast.stmt) -> str:
    """Return the source of a statement with its decorators and indentation."""
    lines = source.splitlines()
    decorators = getattr(node, "decorator_list", [])
    start = decorators[0].lineno if decorators else node.lineno
    return "\n".join(lines[start - 1 : node.end_lineno])
