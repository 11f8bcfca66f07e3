"""Conversion of a model's reply to a candidate's source. Nothing of it is executed here.

Models fence their code, or do not; show drafts before the final file, or the file in pieces; talk before and
after; or return only the kernel whose host code they were shown.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelwright.agent.llm.model import ReplyUnusable
from kernelwright.kernelbench.parsing import parsed

MOST_CHARACTERS = 200_000  # of a candidate
_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)")
_PYTHON = ("", "python", "py", "python3")
_BEGINS = re.compile(r"(import|from|class|def|@|\"\"\"|#)")
_IMPORT = re.compile(r"^(import|from) ", re.MULTILINE)
_KERNEL = re.compile(r'extern\s+"C"|__global__|#include')


@dataclass(frozen=True)
class CodeBlock:
    language: str  # as the fence has it, in lower case
    text: str


def candidate_source(reply: str, parent: str | None = None) -> str:
    """Return the file in a reply that defines ModelNew.

    The last block that does, and imports what it needs, wins; else all Python blocks together; else the
    unfenced text. A reply with only kernels is put into `parent`, the file that the model was shown. Raises
    ReplyUnusable, worded for the model.
    """
    reply = reply.encode(errors="replace").decode().replace("\r\n", "\n")
    blocks = list(_blocks(reply))
    python = [block.text for block in blocks if block.language in _PYTHON]
    whole = [text for text in reversed(python) if "ModelNew" in text]
    importing = [text for text in whole if _IMPORT.search(text)]
    errors = []
    for text in [*importing, "\n\n".join(python), *whole, *_unfenced(reply, blocks)]:
        error = _what_is_wrong(text)
        if error is None:
            return _limited(text)
        errors.append(error)
    kernels = [block.text for block in blocks if _KERNEL.search(block.text) and "ModelNew" not in block.text]
    if not blocks and _KERNEL.search(reply):
        kernels = [reply]
    if kernels and not whole:
        return _limited(_spliced(kernels, parent))
    if not reply.strip():
        raise ReplyUnusable("the reply is empty")
    raise ReplyUnusable(next((error for error in errors if "line" in error), errors[0]))


def _blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the fenced blocks. One that is never closed goes to the end."""
    opened, language = "", ""
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if not opened and fence is not None:
            opened, language, lines = fence.group(1), fence.group(2).lower(), []
        elif opened and fence is not None and fence.group(1).startswith(opened) and not fence.group(2):
            yield CodeBlock(language, "\n".join(lines))
            opened = ""
        elif opened:
            lines.append(line)
    if opened:
        yield CodeBlock(language, "\n".join(lines))


def _unfenced(text: str, blocks: Sequence[CodeBlock]) -> Iterator[str]:
    """Yield the text from where a file could begin, if there are no blocks; prose after it is removed."""
    if blocks or "class ModelNew" not in text:
        return
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if _BEGINS.match(line)][:20]
    for start in starts:
        rest = lines[start:]
        yield "\n".join(rest)
        indented = [i for i, line in enumerate(rest) if line.startswith((" ", "\t"))]
        if indented:
            yield "\n".join(rest[: indented[-1] + 1])


def _what_is_wrong(text: str) -> str | None:
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = f"{error.msg} in line {error.lineno}" if isinstance(error, SyntaxError) else str(error)
        return f"the reply's code is not valid Python: {said}"
    if not any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body):
        return "the reply has no Python file that defines class ModelNew"
    return None


def _spliced(kernels: Sequence[str], parent: str | None) -> str:
    """Return the parent with its kernel sources, the longest strings with kernels, replaced in order."""
    if parent is None:
        raise ReplyUnusable("the reply has only kernels: give the whole Python file that defines ModelNew")
    try:
        tree = parsed(parent)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ReplyUnusable(
            "the reply has only kernels, and the last file was invalid: give the whole file"
        ) from None
    strings = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _KERNEL.search(node.value)
    ]
    if len(strings) != len(kernels):
        raise ReplyUnusable(
            f"the reply has {len(kernels)} kernel sources and the file {len(strings)}: give the whole file"
        )
    strings.sort(key=lambda node: (node.lineno, node.col_offset))
    lines = parent.encode().split(b"\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    source = parent.encode()
    for node, kernel in reversed(list(zip(strings, kernels, strict=True))):
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        source = source[:begin] + _literal(kernel).encode() + source[end:]
    error = _what_is_wrong(source.decode())
    if error is not None:
        raise ReplyUnusable(error)
    return source.decode()


def _literal(text: str) -> str:
    """Return a Python literal of the text, a readable one if possible."""
    raw = f'r"""\n{text}\n"""'
    try:
        found = [node.value for node in parsed(raw).body if isinstance(node, ast.Expr)]
    except (SyntaxError, ValueError):
        return repr(text)
    values = [node.value for node in found if isinstance(node, ast.Constant)]
    whole = len(values) == 1 and isinstance(values[0], str) and values[0].strip("\n") == text.strip("\n")
    return raw if whole else repr(text)


def _limited(source: str) -> str:
    if len(source) > MOST_CHARACTERS:
        raise ReplyUnusable(f"the file has {len(source)} characters; {MOST_CHARACTERS} are allowed")
    return source.strip("\n") + "\n"
