"""Kernels of a PTX file as basic blocks.

https://docs.nvidia.com/cuda/parallel-thread-execution
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ENTRY = re.compile(r"\.entry\s+(?P<name>[\w$]+)\s*\((?P<parameters>[^)]*)\)[^{;]*\{")
_PARAMETER = re.compile(r"\.param\s+(?P<attributes>[^,]*?)(?P<name>[\w$]+)(?:\[\d+\])?\s*(?:,|$)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LABEL = re.compile(r"\s*(?P<name>[\w$]+):(?!:)")
_GUARD = re.compile(r"@(?P<negated>!?)(?P<name>%[\w$.]+)\s+")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{}\[\]()]+")
_ENDS = ("bra", "ret", "exit", "trap", "brx")
_NO_CODE = (".reg", ".loc", ".pragma", ".shared", ".local", ".file", ".section", ".branchtargets", ".param")


@dataclass(frozen=True)
class PtxInstruction:
    opcode: str  # with its modifiers: ld.global.v4.b32
    operands: tuple[str, ...]
    guard: str = ""  # the register of its predicate
    negated: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.opcode.split("."))

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class PtxBlock:
    """Instructions that run one after the other. `after`: numbers of the blocks that may follow.

    Where the last instruction branches, that is the target, and if it has a guard, the next block.
    """

    instructions: tuple[PtxInstruction, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class PtxKernel:
    """`parameters`: their names; `pointers`: in the text, arrays of shared or local memory by name."""

    name: str
    parameters: tuple[str, ...]
    blocks: tuple[PtxBlock, ...]


def kernels(text: str) -> dict[str, PtxKernel]:
    """Return the kernels of a PTX file by name."""
    text = _COMMENT.sub(" ", text)
    found = {}
    for entry in _ENTRY.finditer(text):
        body = text[entry.end() : _closing(text, entry.end())]
        parameters = tuple(match["name"] for match in _PARAMETER.finditer(entry["parameters"]))
        found[entry["name"]] = PtxKernel(entry["name"], parameters, tuple(_blocks(body)))
    return found


def _closing(text: str, at: int) -> int:
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return match.start()
    return len(text)


def _blocks(body: str) -> Iterator[PtxBlock]:
    pieces: list[list[PtxInstruction]] = [[]]
    labels: dict[str, int] = {}
    items = list(_items(body))
    targets = {word for item in items if not isinstance(item, str) for word in item.operands}
    for item in items:
        if isinstance(item, str) and item not in targets:
            continue  # of debugging information
        if isinstance(item, str):
            if pieces[-1]:
                pieces.append([])
            labels[item] = len(pieces) - 1
            continue
        pieces[-1].append(item)
        if item.name in _ENDS:
            pieces.append([])
    for number, piece in enumerate(pieces):
        last = piece[-1] if piece else None
        following = (number + 1,) if number + 1 < len(pieces) else ()
        if last is None or last.name not in _ENDS:
            yield PtxBlock(tuple(piece), following)
            continue
        goes_to = tuple(labels[word] for word in last.operands if last.name == "bra" and word in labels)
        yield PtxBlock(tuple(piece), goes_to + (following if last.guard else ()))


def _items(body: str) -> Iterator[PtxInstruction | str]:
    """Yield instructions, and labels as strings."""
    for statement in body.split(";"):
        text = statement
        while True:
            text = text.lstrip(" \t\n{}")
            # Directives that end with the line, not with a semicolon.
            if text.startswith((".loc", ".pragma", ".file")) and "\n" in text:
                text = text.partition("\n")[2]
            elif (label := _LABEL.match(text)) is not None:
                yield label["name"]
                text = text[label.end() :]
            else:
                break
        if text and not text.startswith(_NO_CODE):
            yield _instruction(text.strip())


def _instruction(text: str) -> PtxInstruction:
    guard = _GUARD.match(text)
    if guard is not None:
        text = text[guard.end() :]
    opcode, _, rest = text.partition(" ") if " " in text else (text, "", "")
    if "\t" in opcode or "\n" in opcode:
        opcode, _, more = re.sub(r"\s", " ", text).partition(" ")
        rest = more
    operands = tuple(found.strip() for found in _OPERAND.findall(rest) if found.strip())
    return PtxInstruction(opcode, operands, guard["name"] if guard else "", bool(guard and guard["negated"]))
