"""One file of two candidates, of which each serves the sizes that it is faster at.

    class ModelLarge:                 the file of one candidate, its class renamed
    class ModelSmall:                 what the other has besides; names that both have end in `_small`
    class ModelNew(ModelLarge):       calls ModelSmall.forward(self, x) up to so many elements of x

Both forwards work on one set of weights, so both classes have to build them in the same way.
"""

import ast
import io
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass

from kernelwright.kernelbench.parsing import parsed

_CLASS = "ModelNew"


@dataclass(frozen=True)
class _Statement:
    """A statement of a module: its text, the names that it defines, and those that it reads."""

    node: ast.stmt
    text: str
    defines: frozenset[str]
    reads: frozenset[str]


def dispatching(small: str, large: str, argument: int, elements: int) -> str | None:
    """Return a file whose forward is that of `small` where an argument has at most so many elements.

    `argument`: its number. None where the two do not have the arguments, the methods or the weights in common
    that one module needs, or where names cannot be told apart.
    """
    ours, theirs = _statements(large), _statements(small)
    one, other = _class_of(ours), _class_of(theirs)
    if one is None or other is None or not _same_module(one, other, large, small):
        return None
    arguments = _positional(_forward(one))
    if arguments is None or arguments != _positional(_forward(other)) or argument >= len(arguments):
        return None
    theirs = _needed(theirs)
    names = {name: f"{name}_small" for name in _not_shared(ours, theirs)}
    names[_CLASS] = "ModelSmall"
    if not _can_be_renamed(theirs, names):
        return None
    defined = {name for each in ours for name in each.defines}
    if defined & {*names.values(), "ModelLarge"}:
        return None
    own = [each for each in theirs if not each.defines or each.defines & set(names)]
    given = ", ".join(arguments)
    header = f'"""One candidate up to {elements} elements of {arguments[argument]}, another for more."""'
    module = f"""class {_CLASS}(ModelLarge):
    def forward(self, {given}):
        if {arguments[argument]}.numel() <= {elements}:
            return ModelSmall.forward(self, {given})
        return ModelLarge.forward(self, {given})
"""
    first = _renamed(_with_imports(large, ours, theirs), {_CLASS: "ModelLarge"})
    return "\n\n\n".join([f"{header}\n\n{first}", *(_renamed(each.text, names) for each in own), module])


def _with_imports(source: str, ours: list[_Statement], theirs: list[_Statement]) -> str:
    """Return a file without its docstring, with those imports of another that it lacks."""
    lines = source.removeprefix("\ufeff").splitlines()
    known = {each.text for each in ours}
    lacking = [each.text for each in theirs if _is_import(each) and each.text not in known]
    first = ours[0].node.lineno - 1
    last = max([first, *(each.node.end_lineno or 0 for each in ours if _is_import(each))])
    lines[last:last] = lacking
    return "\n".join(lines[first:]).rstrip()


def _statements(source: str) -> list[_Statement]:
    """Return the statements of a file but for its docstring and `if __name__ == "__main__"`."""
    source = source.removeprefix("\ufeff")
    lines, found = source.splitlines(), []
    for node in parsed(source).body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        start = min([node.lineno, *(each.lineno for each in decorators)])
        text = "\n".join(lines[start - 1 : node.end_lineno])
        reads = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        found.append(_Statement(node, text, frozenset(_defined(node)), frozenset(reads)))
    return found


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, ast.Store)}


def _is_import(statement: _Statement) -> bool:
    return isinstance(statement.node, ast.Import | ast.ImportFrom)


def _class_of(statements: list[_Statement]) -> ast.ClassDef | None:
    found = [s.node for s in statements if isinstance(s.node, ast.ClassDef) and s.node.name == _CLASS]
    return found[0] if len(found) == 1 else None


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}


def _forward(node: ast.ClassDef) -> ast.FunctionDef | None:
    return _methods(node).get("forward")


def _positional(forward: ast.FunctionDef | None) -> tuple[str, ...] | None:
    """Return the names of forward's arguments if all are positional and have no default."""
    if forward is None:
        return None
    given = forward.args
    if given.vararg or given.kwarg or given.kwonlyargs or given.defaults or given.posonlyargs:
        return None
    return tuple(each.arg for each in given.args[1:])


def _same_module(one: ast.ClassDef, other: ast.ClassDef, large: str, small: str) -> bool:
    """Return True if what `other` reads of itself is made by `one` in the same way."""
    if [ast.dump(base) for base in one.bases] != [ast.dump(base) for base in other.bases]:
        return False
    ours, theirs = _members(one, large), _members(other, small)
    read: set[str] = set()
    todo = [name for name in _methods(other) if name != "__init__"]
    for name in todo:
        method = _methods(other)[name]
        if name != "forward" and ours.get(name) != theirs[name]:
            return False
        own = method.args.args[0].arg if method.args.args else ""
        read |= {
            each.attr
            for each in ast.walk(method)
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == own
        }
    return all(ours.get(name) == theirs[name] for name in read & set(theirs) - {"forward"})


def _members(node: ast.ClassDef, source: str) -> dict[str, str]:
    """Return by name the text of methods, attributes of the class, and of `self` in `__init__`."""
    found: dict[str, str] = {}
    init = _methods(node).get("__init__")
    for statement in (*node.body, *(ast.walk(init) if init is not None else ())):
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = ast.get_source_segment(source, statement) or ""
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
                found[name] = found.get(name, "") + (ast.get_source_segment(source, statement) or "")
    return found


def _needed(statements: list[_Statement]) -> list[_Statement]:
    """Return the class with what it needs, and what defines nothing with what that needs."""
    wanted = {_CLASS} | {name for each in statements if not each.defines for name in each.reads}
    grown = True
    while grown:
        more = {name for each in statements if each.defines & wanted for name in each.reads}
        grown = not more <= wanted
        wanted |= more
    return [each for each in statements if not each.defines or each.defines & wanted]


def _not_shared(ours: list[_Statement], theirs: list[_Statement]) -> set[str]:
    """Return the names of `theirs` that need names of their own: the same text need not mean the same."""
    texts = {each.text for each in ours}
    imported = {name for each in theirs if _is_import(each) for name in each.defines}
    own = [each for each in theirs if not _is_import(each)]
    apart = {name for each in own if each.text not in texts for name in each.defines}
    grown = True
    while grown:
        more = {name for each in own if each.reads & apart for name in each.defines if name not in apart}
        apart |= more
        grown = bool(more)
    return apart - imported


def _can_be_renamed(statements: list[_Statement], names: Mapping[str, str]) -> bool:
    """Return False where a name is also a keyword of a call, an argument, or read inside an f-string."""
    for statement in statements:
        for node in ast.walk(statement.node):
            if isinstance(node, ast.keyword | ast.arg) and node.arg in names:
                return False
            if isinstance(node, ast.JoinedStr):
                inside = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                if inside & set(names):
                    return False
    return True


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a statement's text with other names; attributes and strings stay as they are."""
    lines = text.splitlines(keepends=True)
    before = ""
    places: list[tuple[int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and token.string in names and before != ".":
            places.append((*token.start, token.string))
        before = token.string
    for row, column, name in reversed(places):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + names[name] + line[column + len(name) :]
    return "".join(lines)
