"""Renaming of the names that a file has at its top, so that several files can be one.

    LEFT = 3                                   LEFT_mlp = 3
    def scale(x, LEFT=LEFT):          ->       def scale_mlp(x, LEFT=LEFT_mlp):
        return torch.mul(x, LEFT)                  return torch.mul(x, LEFT)

The syntax tree is renamed, and so is the text, in which comments and strings stay; where the text does not
give the same tree it is generated from the tree, without comments.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kernelwright.kernelbench.parsing import parsed

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)
_BY_NAME = {"globals", "locals", "exec", "eval"}  # what uses names that cannot be seen


class NotRenamed(Exception):  # noqa: N818 - a property of a file
    """Names of a file cannot be changed; says why."""


def names_of(source: str) -> dict[str, str]:
    """Return the names that a file has at its top, with what it is of an import, or "".

    Raises NotRenamed where they cannot all be seen.
    """
    tree = parsed(source)
    for node in ast.walk(tree):
        match node:
            case ast.alias(name="*"):
                raise NotRenamed("it imports *")
            case ast.Name(id=name) if name in _BY_NAME:
                raise NotRenamed(f"it uses {name}")
            case ast.Match():
                raise NotRenamed("it has a match statement")
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    declared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    own = _bound(node for node in tree.body if node not in imports) | declared
    found = dict.fromkeys(sorted(own), "")
    for node in imports:
        for alias in node.names:
            name, said = _import(node, alias)
            if name not in own:
                found[name] = said if found.get(name, said) == said else f"{found[name]}; {said}"
    return found


def _import(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> tuple[str, str]:
    """Return the name that an import gives a file, and what it is."""
    if isinstance(node, ast.ImportFrom):
        return alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}: {alias.name}"
    if alias.asname is not None:
        return alias.asname, alias.name
    first = alias.name.partition(".")[0]
    return first, first


def renamed(source: str, names: Mapping[str, str]) -> str:
    """Return a file with other names at its top. Raises NotRenamed."""
    if not names:
        return source
    tree, text = parsed(source), SourceText(source)
    _Renaming(names, text).visit(tree)
    edited = text.edited()
    try:
        if ast.dump(parsed(edited)) == ast.dump(tree):
            return edited
    except (SyntaxError, ValueError):
        pass
    try:
        generated = ast.unparse(tree) + "\n"
    except ValueError as error:  # an f-string that this Python cannot write
        raise NotRenamed(str(error)) from None
    if ast.dump(parsed(generated)) != ast.dump(tree):
        raise NotRenamed("it cannot be generated from its syntax tree")
    return generated


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that these nodes bind in their own scope."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.ExceptHandler(name=str(name)):
                found.add(name)
            case ast.alias():
                found.add((node.asname or node.name).partition(".")[0])
        found |= _bound(_inside(node))
    return found


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node that are evaluated in its own scope."""
    if isinstance(node, _FUNCTIONS):
        yield from (*node.args.defaults, *(default for default in node.args.kw_defaults if default))
        yield from getattr(node, "decorator_list", [])
    elif isinstance(node, ast.ClassDef):
        yield from (*node.bases, *node.keywords, *node.decorator_list)
    elif isinstance(node, _COMPREHENSIONS):
        for inner in ast.walk(node):  # := binds outside of it
            if isinstance(inner, ast.NamedExpr):
                yield inner.target
    else:
        yield from ast.iter_child_nodes(node)


class SourceText:
    """A source with replacements of parts of it, by their place in bytes."""

    def __init__(self, source: str) -> None:
        self._bytes = source.removeprefix("\ufeff").encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):  # as Python's parser does: str splits at more
            self._starts.append(self._starts[-1] + len(line))
        self.edits: list[tuple[int, int, str]] = []

    def replace(self, node: ast.expr | ast.alias, new: str) -> None:
        begin, end = self._range(node)
        self.edits.append((begin, end, new))

    def replace_name(self, line: int, old: str, new: str) -> None:
        """Replace the first such word in a line."""
        begin, end = self._starts[line - 1], self._starts[line]
        if found := re.search(rb"\b%s\b" % old.encode(), self._bytes[begin:end]):
            self.edits.append((begin + found.start(), begin + found.end(), new))

    def replace_in_braces(self, node: ast.expr, names: Mapping[str, str]) -> None:
        """Replace names in the braces of an f-string."""
        begin, end = self._range(node)
        words = re.compile(rf"(?<![\w.\"'])(?:{'|'.join(map(re.escape, names))})\b")

        def inner(found: re.Match[str]) -> str:
            return words.sub(lambda word: names[word[0]], found[0])

        self.edits.append(
            (begin, end, re.sub(r"(?<!\{)\{(?!\{)[^{}]*\}", inner, self._bytes[begin:end].decode()))
        )

    def edited(self) -> str:
        """Return the source with all replacements."""
        text = self._bytes
        for begin, end, new in sorted(set(self.edits), reverse=True):
            text = text[:begin] + new.encode() + text[end:]
        return text.decode()

    def _range(self, node: ast.expr | ast.alias) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = self._starts[node.lineno - 1] + node.col_offset
        return begin, self._starts[node.end_lineno - 1] + node.end_col_offset


class _Renaming(ast.NodeVisitor):
    """Renames a tree in place, and its text."""

    def __init__(self, names: Mapping[str, str], text: SourceText) -> None:
        self._names, self._text = names, text
        self._local: list[set[str]] = []  # names of the functions around

    def visit_Name(self, node: ast.Name) -> None:
        if (new := self._new(node.id)) is not None:
            self._text.replace(node, new)
            node.id = new

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        before = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        edits = list(self._text.edits)  # before Python 3.12 nodes do not know where in the string they are
        self.generic_visit(node)
        changed = before - {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        self._text.edits[:] = edits
        if changed:
            self._text.replace_in_braces(node, {name: self._names[name] for name in changed})

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._definition(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._definition(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self._within(_arguments(node), [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if (new := self._new(node.name)) is not None:
            self._text.replace_name(node.lineno, node.name, new)
            node.name = new
        for outside in (*node.bases, *node.keywords, *node.decorator_list):
            self.visit(outside)
        # Functions in a class do not see its names: only what stands in its body itself does.
        own = _bound(node.body) & self._names.keys()
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._definition(statement, is_method=True)
                continue
            used = {inner.id for inner in ast.walk(statement) if isinstance(inner, ast.Name)}
            if own & used:
                raise NotRenamed(f"the class {node.name} has a name of its own, {min(own & used)}, too")
            self.visit(statement)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node, [node.elt])

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node, [node.elt])

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node, [node.elt])

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node, [node.key, node.value])

    def visit_Global(self, node: ast.Global) -> None:
        for number, name in enumerate(node.names):
            if name in self._names:
                self._text.replace_name(node.lineno, name, self._names[name])
                node.names[number] = self._names[name]

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name and (new := self._new(node.name)) is not None:
            self._text.replace_name(node.lineno, node.name, new)
            node.name = new
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        name = (node.asname or node.name).partition(".")[0]
        if (new := self._new(name)) is not None:
            if node.asname is None and "." in node.name:
                raise NotRenamed(f"it imports {node.name} without as")
            node.asname = new
            self._text.replace(node, f"{node.name} as {new}")

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool = False) -> None:
        if not is_method and (new := self._new(node.name)) is not None:
            self._text.replace_name(node.lineno, node.name, new)
            node.name = new
        given = node.args
        arguments = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
        annotations = [argument.annotation for argument in arguments if argument and argument.annotation]
        outside = (*given.defaults, *filter(None, given.kw_defaults), *annotations, *node.decorator_list)
        for each in (*outside, *filter(None, [node.returns])):
            self.visit(each)
        declared = {name for each in _scope(node.body) if isinstance(each, ast.Global) for name in each.names}
        self._within((_arguments(node) | _bound(node.body)) - declared, node.body)

    def _comprehension(self, node: ast.expr, results: Sequence[ast.expr]) -> None:
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        self.visit(generators[0].iter)
        targets = _bound([each.target for each in generators])
        rest = [each.iter for each in generators[1:]] + [test for each in generators for test in each.ifs]
        self._within(targets, [*(each.target for each in generators), *rest, *results])

    def _within(self, names: set[str], nodes: Iterable[ast.AST]) -> None:
        self._local.append(names)
        for node in nodes:
            self.visit(node)
        self._local.pop()

    def _new(self, name: str) -> str | None:
        """Return the new name; None for one that a function around has, or that stays."""
        return None if any(name in local for local in self._local) else self._names.get(name)


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    given = node.args
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    return {argument.arg for argument in every if argument is not None}


def _scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _scope(ast.iter_child_nodes(node))
