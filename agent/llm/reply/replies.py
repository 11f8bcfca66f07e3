"""Conversion of a model's reply to a candidate's source. Nothing of it is executed here.

Models fence their code, or do not; show drafts before the final file, or the file in pieces; talk before and
after; change the file that they were shown; or return only the kernel whose host code they were shown.
"""

import ast
import builtins
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelwright.agent.llm.model import ReplyUnusable
from kernelwright.agent.llm.reply.edits import edited, hunks, is_diff, search_replace, unfenced_diff
from kernelwright.agent.llm.reply.fences import CodeBlock, blocks_of
from kernelwright.agent.llm.reply.thought import without_thought
from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.parsing import parsed
from kernelwright.kernelbench.sources.assignments import module_scope

MOST_CHARACTERS = 200_000  # of a candidate
_MOST_ANSWER = 500_000  # characters of a reply without its thought, all of which would be looked through
_PYTHON = re.compile(r"(|i?python[\d.]*|py3?|pycon|triton)")  # languages of fences
_BEGINS = re.compile(r"(import|from|class|def|@|\"\"\"|#)")
_STATEMENT = re.compile(r"^(import \w|from [\w.]+ import|def \w+\(|class \w+.*:)", re.MULTILINE)
_KERNEL = re.compile(r'extern\s+"C"|__global__|#include')
_KERNEL_BEGINS = re.compile(r"#|//|/\*|extern|__global__|template|static|using|namespace")
_TAG = re.compile(r"^[ \t]*</?(?:code|answer|file|python|solution|kernel)>[ \t]*$", re.MULTILINE)
_MOST_WORDS = 200  # characters of a reply without any code, that are quoted
_MOST_STARTS = 50  # lines at which an unfenced file could begin
_MOST_CUTS = 8  # of an unfenced file, to find where it ends
# What editors and web pages make of a file's characters, none of which Python reads.
_TYPED = str.maketrans(
    {"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " ", "\u202f": " "}
    | dict.fromkeys("\ufeff\u200b\u200c\u200d\u2060", "")
)


def candidate_source(reply: str, parent: str | None = None) -> str:
    """Return the file in a reply that defines ModelNew, by a class, a function or an assignment.

    What the model thought is left out. Then, whatever the fences say:

    1. the last whole file wins, that is valid Python that defines ModelNew and every name it uses; a file
       without kernels only if none has any; and the longest, where one could begin or end in several places;
    2. else the Python blocks together, or what a diff adds, if that is a whole file;
    3. else search/replace blocks and unified diffs change `parent`, the file that the model was shown;
    4. else kernels that are neither Python nor a diff replace those of `parent`.

    Raises ReplyUnusable, worded for the model.
    """
    reply = reply.encode(errors="replace").decode().replace("\r\n", "\n")
    answer, thought = without_thought(reply)
    if not answer.strip():
        raise ReplyUnusable("the reply has no answer after its thought" if thought else "the reply is empty")
    if len(answer) > _MOST_ANSWER:
        raise ReplyUnusable(f"the reply has more than {_MOST_ANSWER} characters: end after the file")
    edits, rest = search_replace(answer)
    blocks = list(blocks_of(rest))
    diffs = [block for block in blocks if is_diff(block)]
    blocks = [block for block in blocks if block not in diffs]
    edits += hunks("\n@@\n".join(block.text for block in diffs) or unfenced_diff(rest))
    files = list(_files(rest, blocks))
    for found in (files, _joined(blocks, files), (_File.read(edit.new) for edit in edits)):
        whole = [file for file in found if file.is_whole]
        if whole:
            of_kernels = [file for file in whole if len(whole) > 1 and language_of(file.source) != "torch"]
            return _limited((of_kernels or whole)[-1].source)
    broken = any(file.tree is None and "class ModelNew" in file.source for file in files)
    if edits and not broken:
        if parent is None:
            raise ReplyUnusable("the reply changes a file, but there is none yet: give the whole Python file")
        return _checked(edited(parent.removeprefix("\ufeff"), edits), "the changed file")
    kernels = _kernels(rest, blocks)
    if kernels and not any("ModelNew" in file.source for file in files):
        return _spliced(kernels, parent)
    raise ReplyUnusable(_fault(files) + ("" if blocks else _instead(rest)))


@dataclass(frozen=True)
class _File:
    """A text that may be a file: Python if it has a `tree`, else with the error of it."""

    source: str
    tree: ast.Module | None
    error: str = ""
    line: int = 0  # of the error

    @classmethod
    def read(cls, text: str) -> "_File":
        """Parse a text as it is, or if it is not Python without typographic characters."""
        text = text.removeprefix("\ufeff")
        try:
            return cls(text, parsed(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            typed = text.translate(_TYPED)
            if typed != text:
                return cls.read(typed)
            if isinstance(error, SyntaxError):
                return cls(text, None, f"{error.msg} in line {error.lineno}", error.lineno or 0)
            return cls(text, None, str(error) or type(error).__name__)

    @cached_property
    def defines_model(self) -> bool:
        return self.tree is not None and _defines(self.tree, "ModelNew")

    @cached_property
    def undefined(self) -> tuple[str, ...]:
        """Names that the file uses, but neither defines nor imports anywhere."""
        return _undefined(self.tree) if self.tree is not None else ()

    @property
    def is_whole(self) -> bool:
        return self.defines_model and not self.undefined


def _files(answer: str, blocks: Sequence[CodeBlock]) -> Iterator[_File]:
    """Yield what could be the file in an answer, in its order."""
    wrapped = [text for whole in (answer, *(block.text for block in blocks)) for text in _in_json(whole)]
    for text in wrapped:
        yield from map(_File.read, [block.text for block in blocks_of(text)] or [text])
    if not wrapped:
        yield from (_File.read(block.text) for block in blocks)
        if not any("ModelNew" in block.text for block in blocks):
            yield from _unfenced(answer)


def _in_json(text: str) -> Iterator[str]:
    """Yield the files in a JSON object that is the whole text, such as {"code": "import torch ..."}."""
    if not text.lstrip().startswith("{") or "ModelNew" not in text:
        return
    try:
        left = [json.loads(text, strict=False)]
    except (ValueError, RecursionError):
        return
    while left:
        match left.pop():
            case dict() as object_:
                left.extend(reversed(object_.values()))
            case list() as array:
                left.extend(reversed(array))
            case str() as string if "ModelNew" in string:
                yield string


def _unfenced(text: str) -> Iterator[_File]:
    """Yield the files of a text without fences, each from the first line where it could begin.

    It ends before the first line that makes it invalid, if that is not indented, as prose is not.
    """
    if "ModelNew" not in text:
        return
    lines = _TAG.sub("", text).split("\n")
    end = tried = 0
    for start in (i for i, line in enumerate(lines) if _BEGINS.match(line)):
        if start < end or tried == _MOST_STARTS:
            continue
        tried += 1
        file = _File.read("\n".join(lines[start:]))
        yield file
        end = start + (file.line - 1 if file.tree is None else len(lines))
        for _ in range(_MOST_CUTS):
            if file.line <= 1 or lines[start + file.line - 1][:1].isspace():
                break
            file = _File.read("\n".join(lines[start : start + file.line - 1]))
            yield file


def _joined(blocks: Sequence[CodeBlock], files: Sequence[_File]) -> Iterator[_File]:
    """Yield the Python blocks together: all, and those that are valid each."""
    texts = [block.text for block in blocks if _PYTHON.fullmatch(block.language)]
    valid = {file.source for file in files if file.tree is not None}
    for pieces in (texts, [text for text in texts if text in valid]):
        if len(pieces) > 1:
            yield _File.read("\n\n".join(pieces))


def _kernels(answer: str, blocks: Sequence[CodeBlock]) -> list[str]:
    """Return the kernel sources of an answer: what is neither Python nor meant to be."""
    if not blocks and _KERNEL_BEGINS.match(answer.lstrip()):
        blocks = [CodeBlock("", answer)]
    texts = [block.text for block in blocks if not _PYTHON.fullmatch(block.language) or not block.language]
    return [text for text in texts if _KERNEL.search(text) and not _STATEMENT.search(text)]


def _defines(tree: ast.Module, name: str) -> bool:
    """Return True if a module binds a name by more than an import."""
    scope = module_scope(tree)
    return name in scope.assignments or name in scope.definitions or name in scope.rebound


def _undefined(tree: ast.Module) -> tuple[str, ...]:
    """Return the names that are read, but bound nowhere in a module, whatever the scope."""
    bound = set(dir(builtins))
    read: dict[str, None] = {}
    annotations: set[int] = set()  # may name anything, since they need not be evaluated
    for node in ast.walk(tree):
        if id(node) in annotations:
            annotations.update(map(id, ast.iter_child_nodes(node)))
            continue
        for field in ("annotation", "returns"):
            annotations.add(id(getattr(node, field, None)))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read[node.id] = None
        elif isinstance(node, ast.Name):
            bound.add(node.id)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.partition(".")[0])
        else:  # functions, classes, arguments, handlers, patterns
            names = (getattr(node, field, None) for field in ("name", "arg", "rest"))
            bound.update(name for name in names if isinstance(name, str))
    dynamic = {"*"} & bound or {"globals", "exec", "setattr", "vars"} & read.keys()
    return () if dynamic else tuple(name for name in read if name not in bound and not name.startswith("__"))


def _fault(files: Sequence[_File]) -> str:
    """Return what is wrong with the file of a reply that has no whole one, by the last that seems meant."""
    meant = [file for file in files if "ModelNew" in file.source or file.tree is None] or list(files)
    partial = [file for file in files if file.defines_model]
    if partial:
        names = ", ".join(partial[-1].undefined[:5])
        return f"the file uses {names} without defining or importing it: give one whole Python file"
    broken = [file for file in meant if file.line and _STATEMENT.search(file.source)]
    if broken:
        return f"the reply's code is not valid Python: {broken[-1].error}"
    if any(file.tree is not None and _defines(file.tree, "Model") for file in files):
        return "the reply has no Python file that defines class ModelNew; it defines Model: call it ModelNew"
    return "the reply has no Python file that defines class ModelNew"


def _instead(answer: str) -> str:
    """Return the words that a model has in place of a file, such as a refusal; "" if they are many."""
    words = " ".join(answer.split())
    return f"; it says: {words}" if len(words) <= _MOST_WORDS else ""


def _checked(source: str, what: str) -> str:
    """Return a changed file. Raises ReplyUnusable if it is none any more."""
    file = _File.read(source)
    if file.tree is None:
        raise ReplyUnusable(f"{what} is not valid Python: {file.error}")
    if not file.defines_model:
        raise ReplyUnusable(f"{what} does not define ModelNew any more: give the whole file")
    return _limited(file.source)


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
    return _checked(source.decode(), "the file with these kernels")


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
