"""Definitions of a module and of the modules beside it, carried over into one file.

    utils.py:      def scaled(x): ...            # and ten functions that compare tensors
    reference.py:  from utils import scaled
                   def ref_kernel(data): return scaled(data)

The file of `ref_kernel` has the functions `scaled` and `ref_kernel`, with their decorators and comments, and
the imports of both; nothing else of either module.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources.assignments import module_scope, parse

_HAND = "copy what it needs into one file"


@dataclass(frozen=True)
class CarriedCode:
    """Statements of one file: its imports, a line each, and all else."""

    imports: tuple[str, ...]
    code: str
    names: frozenset[str]  # that the statements bind

    def without(self, imports: Collection[str]) -> tuple[str, ...]:
        """Return the imports but for these."""
        return tuple(line for line in self.imports if line not in imports)


@dataclass(frozen=True)
class _Statement:
    text: str
    binds: frozenset[str]
    uses: frozenset[str]
    is_import: bool = False
    module: str = ""  # another module of the project that it imports from
    original: str = ""  # the name there
    has_effect: bool = False  # it binds nothing, and changes something


@dataclass
class _Carrier:
    modules: Mapping[str, str]  # dotted name -> source
    parsed: dict[str, list[_Statement]] = field(default_factory=dict)
    kept: dict[str, set[int]] = field(default_factory=dict)
    needed: dict[str, dict[str, None]] = field(default_factory=dict)  # by a module, of other modules
    aliases: dict[str, str] = field(default_factory=dict)  # name -> the name that it has elsewhere
    underway: set[tuple[str, str]] = field(default_factory=set)

    def statements(self, module: str) -> list[_Statement]:
        if module not in self.parsed:
            source = self.modules[module]
            tree = parse(source, module)
            self.parsed[module] = [
                each for node in tree.body for each in _split(node, source, module, self.modules)
            ]
        return self.parsed[module]

    def keep(self, module: str, places: Collection[int]) -> None:
        """Keep statements with all that they use. What another module has of that comes before them."""
        mine = self.kept.setdefault(module, set())
        new = [place for place in places if place not in mine]
        mine.update(new)
        statements = self.statements(module)
        if new and not any(statements[place].has_effect for place in mine):
            self.keep(module, [place for place, each in enumerate(statements) if each.has_effect])
        for place in new:
            for name in sorted(statements[place].uses):
                self.need(module, name)

    def need(self, module: str, name: str) -> bool:
        """Keep what binds a name in a module; say whether anything does."""
        if (module, name) in self.underway:
            return True
        statements = self.statements(module)
        found = [place for place, each in enumerate(statements) if name in each.binds]
        local = [statements[place] for place in found if statements[place].module]
        if not found:
            stars = [(place, each.module) for place, each in enumerate(statements) if "*" in each.binds]
            if any(star and self._of(module, star, name) for _, star in stars):
                return True
            self.keep(module, [place for place, star in stars if not star])
            return False
        self.underway.add((module, name))
        for each in local:
            if not each.original:
                raise UsageError(
                    f"{module} imports {each.module} as a whole", f"import names: from {each.module} import …"
                )
            if not self._of(module, each.module, each.original):
                raise UsageError(
                    f"{module} imports {each.original} from {each.module}, which has no such name", _HAND
                )
            if each.original != name:
                self.aliases[name] = each.original
        self.keep(module, [place for place in found if not statements[place].module])
        return True

    def order(self, module: str) -> list[str]:
        """Return the modules of which something is kept, each after those that it needs."""
        found: dict[str, None] = {}

        def visit(each: str, above: frozenset[str]) -> None:
            for other in self.needed.get(each, ()):
                if other not in above:
                    visit(other, above | {other})
            found.setdefault(each)

        visit(module, frozenset({module}))
        return list(found)

    def kept_of(self, module: str) -> list[_Statement]:
        """Return what is kept of a module, in its order."""
        return [self.statements(module)[place] for place in sorted(self.kept.get(module, ()))]

    def _of(self, module: str, other: str, name: str) -> bool:
        self.needed.setdefault(module, {}).setdefault(other)
        return self.need(other, name)


def carried(
    source: str, where: str, roots: Collection[str] | None = None, modules: Mapping[str, str] | None = None
) -> CarriedCode:
    """Return what a module defines, or what its `roots` need, and what these need of other `modules`.

    `modules`: sources of the modules beside it, by the names that it imports them by. Raises UsageError where
    two of them have one name for two things, TaskError for one that is not Python.
    """
    carrier = _Carrier({**(modules or {}), where: source})
    if roots is None:
        everything = [place for place, each in enumerate(carrier.statements(where)) if not each.module]
        carrier.keep(where, everything)
    else:
        for name in roots:
            carrier.need(where, name)
    imports: dict[str, None] = {}
    code: list[str] = []
    owner: dict[str, str] = {}
    for module in carrier.order(where):
        if module == where:
            code += [f"{name} = {original}" for name, original in carrier.aliases.items()]
        for each in carrier.kept_of(module):
            for name in each.binds:
                package = each.text.startswith(f"import {name}.")  # which binds what `import package` does
                text = f"import {name}" if package else each.text
                if owner.setdefault(name, text if each.is_import else module) not in (module, text):
                    raise UsageError(
                        f"{where} and a module beside it both define {name}", "rename one of them"
                    )
            if each.is_import:
                imports.setdefault(each.text)
            else:
                code.append(each.text)
    return CarriedCode(tuple(imports), _joined(code), frozenset({*owner, *carrier.aliases}))


def _joined(statements: list[str]) -> str:
    """Return statements with two empty lines around each definition."""
    text = ""
    blank = True
    for statement in statements:
        long = statement.lstrip("# ").startswith(("def ", "class ", "@", "async ")) or "\ndef " in statement
        long = long or "\nclass " in statement or "\n@" in statement
        text += ("" if not text else "\n\n\n" if long or blank else "\n") + statement
        blank = long
    return text


def _split(node: ast.stmt, source: str, module: str, modules: Mapping[str, str]) -> Iterator[_Statement]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            text = f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
            binds = frozenset({alias.asname or alias.name.partition(".")[0]})
            yield _Statement(text, binds, frozenset(), True, alias.name if alias.name in modules else "")
        return
    if isinstance(node, ast.ImportFrom):
        if node.module == "__future__":
            text = f"from __future__ import {', '.join(alias.name for alias in node.names)}"
            yield _Statement(text, frozenset(), frozenset(), True, has_effect=True)
            return
        package = module.rpartition(".")[0] if node.level else ""
        dotted = ".".join(filter(None, [package, node.module]))
        for alias in node.names:
            text = f"from {'.' * node.level}{node.module or ''} import {alias.name}"
            text += f" as {alias.asname}" if alias.asname else ""
            local = dotted if dotted in modules else ""
            original = alias.name if local else ""
            yield _Statement(
                text, frozenset({alias.asname or alias.name}), frozenset(), True, local, original
            )
        return
    if _is_docstring(node) or _is_main(node):
        return
    uses = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    scope = module_scope(ast.Module(body=[node], type_ignores=[]))
    binds = frozenset({*scope.assignments, *scope.definitions, *scope.imported, *scope.rebound})
    effect = not binds and not isinstance(node, ast.Pass)
    yield _Statement(_text(node, source), binds, frozenset(uses) - binds, has_effect=effect)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in {
        each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)
    }


def _text(node: ast.stmt, source: str) -> str:
    """Return the lines of a statement, with its decorators and the comments right above it."""
    lines = source.splitlines()
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)]) - 1
    assert node.end_lineno is not None
    rest = lines[node.end_lineno - 1].encode()[node.end_col_offset :].strip()
    if node.col_offset or rest.startswith(b";"):  # it shares its line with another
        return ast.get_source_segment(source, node) or ast.unparse(node)
    while first and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(line.rstrip() for line in lines[first : node.end_lineno])
