"""Sizes of a task: a workload in its file, or given as `--size`.

    workload = [
        {"batch_size": 4, "length": 64, "weight": 3},
        {"batch_size": 1, "length": 100, "hidden": True},
    ]

A size gives values to constants of the file; `weight` is how often it is called, 1 by default, and a `hidden`
one is not shown to the coder. `--size batch_size=4,length=64,weight=3` and `--size
batch_size=1,length=100,hidden` say the same. The list is read, never run, and is no part of the task's text.
"""

import ast
import math
import re
import warnings
from collections.abc import Sequence

from kernelwright.kernelbench.errors import TaskError, UsageError
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.assignments import module_scope, parse
from kernelwright.kernelbench.sources.overrides import apply, line_starts, literal

_NAME = "workload"
_FORM = f'write it as {_NAME} = [{{"batch_size": 4}}, {{"batch_size": 1, "hidden": True}}]'
_FLAG = re.compile(r"(^|,)\s*hidden\s*(?=,|$)")
_WORD = "use constants with their values, e.g. --size batch_size=4,length=64,weight=3,hidden"


def from_size_words(words: Sequence[str]) -> tuple[Size, ...]:
    """Return the sizes of `["batch_size=4,weight=3", "batch_size=1,hidden"]`. Raises UsageError."""
    return tuple(_of_word(word) for word in words)


def of_file(source: str, where: str) -> tuple[str, tuple[Size, ...]]:
    """Return a task's text without its workload, and the sizes of that; none where it has one size.

    The text of a file without a workload is returned as it is. Raises TaskError for one that is not a
    written-out list of sizes.
    """
    tree = parse(source, where)
    if _NAME not in module_scope(tree).assignments:
        return source, ()
    found = [each for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign) and _binds(each)]
    if len(found) != 1 or len(module_scope(tree).assignments[_NAME]) != 1:
        raise TaskError(f"{where}: {_NAME} is not one statement of its own", _FORM)
    statement = found[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == _NAME and isinstance(node.ctx, ast.Load):
            raise TaskError(
                f"{where}: line {node.lineno} uses {_NAME}, which is read and not run",
                "use the constants that its sizes set",
            )
    value = statement.value
    if not isinstance(value, ast.List | ast.Tuple) or not value.elts:
        raise TaskError(f"{where}: {_NAME} is not a written-out list of sizes", _FORM)
    sizes = []
    for number, each in enumerate(value.elts, start=1):
        if not isinstance(each, ast.Dict):
            raise TaskError(f"{where}: size {number} of its {_NAME} is not a dictionary", _FORM)
        pairs = [
            (key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None, one)
            for key, one in zip(each.keys, each.values, strict=True)
        ]
        try:
            sizes.append(_size(pairs))
        except UsageError as error:
            raise TaskError(f"{where}: size {number} of its {_NAME}: {error.message}", error.fix) from error
    return _without(source, statement, where), tuple(sizes)


def workload_text(sizes: Sequence[Size]) -> str:
    """Return sizes as they are written in a file, see the module."""
    lines = []
    for size in sizes:
        words = [f'"{name}": {value}' for name, value in size.constants.items()]
        words += [f'"weight": {size.weight:g}'] if size.weight != 1 else []
        words += ['"hidden": True'] if size.hidden else []
        lines.append(f"    {{{', '.join(words)}}},\n")
    return f"{_NAME} = [\n{''.join(lines)}]"


def ordered(sizes: Sequence[Size], source: str, where: str) -> tuple[Size, ...]:
    """Return the sizes of a task with this text, a visible one first. Raises UsageError if they are none."""
    if not sizes:
        return ()
    for size in sizes:
        apply(source, size.constants, where)
    names = sizes[0].constants.keys()
    for number, size in enumerate(sizes, start=1):
        if (differ := size.constants.keys() ^ names) != set():
            name = sorted(differ)[0]
            lacks = number if name in names else 1
            raise UsageError(
                f"{where}: size {lacks} does not set {name}, which another does",
                "set the same constants in every size",
            )
    for number, size in enumerate(sizes, start=1):
        for other, before in enumerate(sizes[: number - 1], start=1):
            if before.constants == size.constants:
                raise UsageError(
                    f"{where}: sizes {other} and {number} are the same, {size}",
                    "leave one out and add up their weights",
                )
    first = next((size for size in sizes if not size.hidden), None)
    if first is None:
        raise UsageError(
            f"{where}: all of its sizes are hidden", "leave one visible, for the coder to write for"
        )
    return (first, *(size for size in sizes if size is not first))


def _of_word(word: str) -> Size:
    """Return the size that a word such as "batch_size=4,shape=(2, 3),hidden" describes, read as arguments."""
    arguments = _FLAG.sub(r"\1hidden=True", word)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            call = ast.parse(f"size({arguments})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"invalid --size {word!r}", _WORD) from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise UsageError(f"invalid --size {word!r}", _WORD)
    if call.args:
        raise UsageError(f"--size {word}: {ast.unparse(call.args[0])} has no value", _WORD)
    try:
        return _size([(each.arg, each.value) for each in call.keywords])
    except UsageError as error:
        raise UsageError(f"--size {word}: {error.message}", error.fix) from error


def _size(pairs: Sequence[tuple[str | None, ast.expr]]) -> Size:
    constants: dict[str, str] = {}
    weight, hidden = 1.0, False
    for name, node in pairs:
        if name is None:
            raise UsageError("a constant's name is not a written-out string", _FORM)
        if name in constants:
            raise UsageError(f"{name} is set twice", "set it once")
        text = literal(name, ast.unparse(node))
        value = ast.literal_eval(node)
        if name == "weight":
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise UsageError(f"invalid weight {text}", "use a number above 0: how often it is called")
            weight = float(value)
        elif name == "hidden":
            if not isinstance(value, bool):
                raise UsageError(
                    f"invalid hidden {text}",
                    "use True or False; a constant of this name cannot differ between sizes: rename it",
                )
            hidden = value
        else:
            constants[name] = text
    if not constants:
        raise UsageError("no constant is set", "set those that differ between sizes, e.g. batch_size=4")
    return Size(constants=constants, weight=weight, hidden=hidden)


def _binds(statement: ast.Assign | ast.AnnAssign) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == _NAME


def _without(source: str, statement: ast.stmt, where: str) -> str:
    """Return the text without the lines of a statement, which has them for itself."""
    assert statement.end_lineno is not None and statement.end_col_offset is not None
    encoded = source.encode()
    starts = [*line_starts(encoded), len(encoded)]
    begin, end = starts[statement.lineno - 1], starts[statement.end_lineno]
    rest = encoded[starts[statement.end_lineno - 1] + statement.end_col_offset : end].strip()
    if statement.col_offset or (rest and not rest.startswith(b"#")):
        raise TaskError(f"{where}: {_NAME} shares a line with other code", "put it on lines of its own")
    return (encoded[:begin] + encoded[end:]).decode()
