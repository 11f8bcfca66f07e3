"""Constants of a task set from outside: `--set batch_size=8` rewrites `batch_size = 64` in its text.

Only the value is rewritten, all other text stays byte for byte. A constant that is assigned several times is
rewritten everywhere. If names share one value, as in `height = width = 256`, the new one is put behind the
statement: `height = width = 256; height = 8`, so that `width` keeps its own. A computed constant (`out = 2 *
hidden`) loses its expression; one computed from an overridden constant follows it. Over several tasks, a
constant is set in those that have it; if none has it, that is an error.
"""

import ast
import difflib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources.assignments import (
    Assignment,
    ModuleScope,
    constants,
    module_scope,
    parse,
)

SHOWN = 12  # constants named in an error


def from_words(words: Iterable[str]) -> dict[str, str]:
    """Return `["batch_size=8", "dim=16"]` as a mapping; a later word wins over an earlier one."""
    overrides = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"invalid setting {word!r}", "use constant=value, e.g. batch_size=8")
        overrides[name.strip()] = value.strip()
    return overrides


def literal(name: str, value: str) -> str:
    """Return the value as one line of Python that can stand anywhere in an expression list."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "8if" would warn before it is refused
            tree = ast.parse(value.strip(), mode="eval")
        ast.literal_eval(tree)
        return ast.unparse(tree)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"{name}={value} is not a Python literal",
            f"give a number, bool, tuple, list or quoted string: {name}=8, {name}=(2, 3), {name}='\"text\"'",
        ) from error


def apply(source: str, overrides: Mapping[str, str], where: str = "the task") -> str:
    """Return the source with its constants set.

    Raises `UsageError` if a value is not a literal or the source lacks a constant.
    """
    if not overrides:
        return source
    scope = module_scope(parse(source, where))
    settable = scope.settable()
    encoded = source.encode()
    starts = line_starts(encoded)
    edits: set[tuple[int, int, str]] = set()  # start byte, end byte, new text
    for name, value in overrides.items():
        text = literal(name, value)
        if name not in settable:
            raise _no_such_constant(name, source, scope, where)
        edits.update(_edit(assignment, text, starts) for assignment in settable[name])
    for start, end, text in sorted(edits, reverse=True):
        encoded = encoded[:start] + text.encode() + encoded[end:]
    return encoded.decode()


def distribute(sources: Sequence[str], overrides: Mapping[str, str], where: str) -> list[dict[str, str]]:
    """Return for each source the overrides whose constant it has, as literals in canonical form.

    Raises `UsageError` if a value is not a literal or no source has the constant.
    """
    literals = {name: literal(name, value) for name, value in overrides.items()}
    if not literals:
        return [{} for _ in sources]
    scopes = [module_scope(parse(source, where)) for source in sources]
    settable = [scope.settable() for scope in scopes]
    for name in literals:
        if not any(name in names for names in settable):
            if len(sources) == 1:
                raise _no_such_constant(name, sources[0], scopes[0], where)
            raise _none_has(name, settable, where)
    return [{name: text for name, text in literals.items() if name in names} for names in settable]


def line_starts(encoded: bytes) -> list[int]:
    """Return the byte at which each line begins."""
    # The tokenizer's own line ends; str.splitlines knows more of them (form feed, U+2028).
    return [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", encoded))]


def _edit(assignment: Assignment, text: str, starts: list[int]) -> tuple[int, int, str]:
    def end_of(node: ast.stmt | ast.expr) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return starts[node.end_lineno - 1] + node.end_col_offset

    if assignment.shared:
        end = end_of(assignment.statement)
        return end, end, f"; {assignment.name} = {text}"
    value = assignment.value
    return starts[value.lineno - 1] + value.col_offset, end_of(value), text


def _no_such_constant(name: str, source: str, scope: ModuleScope, where: str) -> UsageError:
    values = constants(source, where)
    if name in scope.rebound and name in scope.assignments:
        return UsageError(
            f"{name} cannot be set in {where}: line {scope.rebound[name]} changes it again",
            f"give {name} its value in one assignment",
        )
    if not values:
        return UsageError(f"{where} has no constant {name}", "it has no constants: remove the setting")
    near = difflib.get_close_matches(name, values, n=1)
    named = ", ".join(f"{other}={value}" for other, value in values.items())
    return UsageError(
        f"{where} has no constant {name}",
        (f"did you mean {near[0]}? " if near else "") + f"it has {named}",
    )


def _none_has(name: str, settable: Sequence[Mapping[str, object]], where: str) -> UsageError:
    counts: dict[str, int] = {}
    for names in settable:
        for other in names:
            counts[other] = counts.get(other, 0) + 1
    common = sorted(counts, key=lambda other: (-counts[other], other))
    near = difflib.get_close_matches(name, common, n=1)
    named = ", ".join(f"{other} ({counts[other]})" for other in common[:SHOWN])
    if not common:
        return UsageError(
            f"none of {where} has a constant {name}", "they have no constants: remove the setting"
        )
    return UsageError(
        f"none of {where} has a constant {name}",
        (f"did you mean {near[0]}? " if near else "")
        + f"they have (in how many tasks) {named}{', …' if len(common) > SHOWN else ''}",
    )
