"""Device code of a CUDA source: its kernels without the host code around them, which NVRTC cannot read.

Textual: at the top level, functions that are not device code are removed, and everything that names torch's
libraries; lines keep their numbers, so that messages refer to those of the source.
"""

import re
from collections.abc import Iterator

_NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\\n])+'", re.DOTALL)
_INCLUDE = re.compile(r"[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]")
_OF_CUDA = re.compile(r"(?:cuda|cooperative_groups|math_constants|mma|vector_types|curand|cub/|cuda/)")
_OF_DEVICE = re.compile(r"\b__(?:global|device|constant|shared)__\b")
_OF_HOST = re.compile(r"\b(?:torch|at|c10|std|pybind11)\s*::|\b(?:PYBIND11_\w+|TORCH_\w+|AT_\w+)\b|<<<")
_FUNCTION = re.compile(r"\)\s*(?:const|noexcept|override|->[^{;]*)*\s*$")
_SCOPE = re.compile(r"^\s*(?:(?:inline\s+)?namespace\b[^;{}()]*|extern\s*\"C\"\s*)$")


def device_code(source: str) -> str:
    """Return the source with only device code; removed text leaves its line breaks."""
    bare = _NOISE.sub(lambda found: re.sub(r'[^\n"]', " ", found[0]), source)
    text = list(source)
    for begin, end in _left_out(source, bare, 0, len(bare)):
        text[begin:end] = [c if c == "\n" else " " for c in text[begin:end]]
    return "".join(text)


def _left_out(source: str, bare: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    for start, stop, body in _pieces(bare, begin, end):
        head = source[start : body or stop]
        if body is not None and _SCOPE.match(head):
            yield from _left_out(source, bare, body + 1, stop - 1)
        elif _is_of_host(head, bare[start:stop], body is not None):
            yield start, stop


def _is_of_host(head: str, piece: str, has_body: bool) -> bool:
    stripped = head.lstrip()
    if stripped.startswith("#"):
        found = _INCLUDE.match(stripped)
        return found is not None and not _OF_CUDA.match(found[1])
    if _OF_DEVICE.search(head):
        return False
    if _OF_HOST.search(piece):
        return True
    declares = re.search(r"\b(?:struct|class|enum|union|typedef|using|constexpr|template)\b|=", head)
    return bool(_FUNCTION.search(head)) and (has_body or not declares) and "constexpr" not in head


def _pieces(bare: str, begin: int, end: int) -> Iterator[tuple[int, int, int | None]]:
    """Yield the pieces at this level: begin and end, and the outermost brace if there is one."""
    at = begin
    while at < end:
        while at < end and bare[at].isspace():
            at += 1
        start, body, depth = at, None, 0
        if at < end and bare[at] == "#":
            while at < end and (bare[at] != "\n" or bare[at - 1] == "\\"):
                at += 1
            yield start, at, None
            continue
        while at < end:
            c = bare[at]
            if c in "({[":
                if c == "{" and depth == 0 and body is None:
                    body = at
                depth += 1
            elif c in ")}]":
                depth -= 1
                if c == "}" and depth == 0 and not _goes_on(bare, at + 1, bare[start:body]):
                    at += 1
                    break
            elif c == ";" and depth == 0:
                at += 1
                break
            at += 1
        if start < at:
            yield start, at, body


def _goes_on(bare: str, at: int, head: str) -> bool:
    """Return True if a declaration with braces ends with a semicolon: a type's, or a value's."""
    return bare[at:].lstrip()[:1] in (";", ",") or (
        re.search(r"\b(?:struct|class|enum|union)\b|=\s*$", head) is not None and ")" not in head
    )
