# ruff: noqa: E501 - a table of patterns
"""What g++ cannot read of CUDA C++ is rewritten, line by line; what cannot be emulated is refused.

The text is looked at without its comments and strings, and changed in place, so that lines stay where they
are and messages name those of the source.
"""

import re
from dataclasses import dataclass

_NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\\n])+'", re.DOTALL)
_DYNAMIC = re.compile(r"\bextern\s+__shared__\s+([^;=]*?)\b(\w+)\s*\[\s*\]\s*;")
_SHARED = re.compile(r"(?<!extern )\b__shared__\s+([^;]*);")
_SMALL = re.compile(
    r"\b(?:char|uchar\d?|char\d|short\d?|ushort\d?|u?int(?:8|16)_t|bool|__?half2?|half2?|\w*bfloat16\d?)\b"
)
_UNSUPPORTED = (
    (re.compile(r"\basm\b(?:\s+volatile)?\s*\("), "inline PTX"),
    (re.compile(r"\b(?:nvcuda\s*::\s*)?wmma\s*::|\bmma_sync\s*\(|#\s*include\s*<mma\.h>"), "wmma"),
    (re.compile(r"\b__pipeline_\w+|\bmemcpy_async\b|#\s*include\s*<cuda/\w+>|\bcuda\s*::\s*\w+"), "asynchronous copies and libcu++"),
    (re.compile(r"#\s*include\s*<cub/|\bcub\s*::"), "CUB"),
    (re.compile(r"#\s*include\s*[<\"](?:thrust|cutlass|cute)/|\b(?:thrust|cutlass|cute)\s*::"), "Thrust and CUTLASS"),
    (re.compile(r"<<<"), "launches from CUDA source"),
    (re.compile(r"\bgrid\s*\.\s*sync\s*\(|\bthis_multi_grid\b|\bcluster_group\b|\bthis_cluster\b"), "barriers between blocks"),
    (re.compile(r"\btex[123]D\w*\s*[<(]|\bcudaTextureObject_t\b|\bcudaSurfaceObject_t\b"), "textures and surfaces"),
    (re.compile(r"\b(?:clock|clock64|__nanosleep|globaltimer)\s*\("), "clocks"),
    (re.compile(r"\b__dp2a\w*|\b__v(?!absdiffu4)\w+[24]\s*\("), "SIMD in a word"),
)  # fmt: skip


class Unsupported(Exception):  # noqa: N818 - a property of the source, not a fault
    """Something of CUDA that the emulator has not; `line` of the source, from 1."""

    def __init__(self, construct: str, line: int) -> None:
        super().__init__(f"line {line}: {construct} cannot be emulated")
        self.construct, self.line = construct, line


@dataclass(frozen=True)
class Translated:
    source: str
    kernels: tuple[str, ...]  # extern "C" ones
    granule: int  # bytes of shared memory that two threads never share one of


def translate(source: str, kernels: tuple[str, ...]) -> Translated:
    """C++ for g++, with the same lines. `kernels`: those that are to be called. Raises Unsupported."""
    bare = blanked(source)
    for pattern, construct in _UNSUPPORTED:
        if (found := pattern.search(bare)) is not None:
            raise Unsupported(construct, bare.count("\n", 0, found.start()) + 1)
    dynamic, small = False, False
    edits: list[tuple[int, int, str]] = []
    for found in _DYNAMIC.finditer(bare):
        small |= _SMALL.search(found[1]) is not None
        declared = source[found.start() : found.end()]
        inside = re.sub(r"\bextern\s+__shared__", "extern __thread", declared)
        edits.append((found.start(), found.end(), inside[:-1] + ' __asm__("kw_dynamic_shared");'))
        dynamic = True
    for number, found in enumerate(_SHARED.finditer(bare)):
        small |= _SMALL.search(found[1]) is not None
        names = _names(found[1])
        # So that the compiler must take it for something that others see.
        shown = "".join(
            f" [[maybe_unused]] auto* volatile kw_seen_{number}_{name} = &{name};" for name in names
        )
        edits.append((found.end(), found.end(), shown))
    text = source
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    lines = ['#include "simt.h"', "#line 1", text, "", *(_entry(kernel) for kernel in kernels)]
    lines.append("static thread_local char kw_local_probe;")
    lines.append('extern "C" void* kw_local() { return &kw_local_probe; }')
    if dynamic:
        lines.append('extern "C" { __thread __attribute__((aligned(1024))) char kw_dynamic_shared[233472]; }')
    return Translated("\n".join(lines) + "\n", kernels, 1 if small else 4)


def _entry(kernel: str) -> str:
    return f'extern "C" __tsan_exempt void kw_call_{kernel}(void** given) {{ kw::call(&{kernel}, given); }}'


def _names(declaration: str) -> list[str]:
    """Of the variables in "float a[4], b"."""
    bare = re.sub(r"\[[^\]]*\]", "", re.sub(r"\([^)]*\)", "", declaration))
    while (less := re.sub(r"<[^<>]*>", "", bare)) != bare:
        bare = less
    return [piece.split("=")[0].split()[-1].lstrip("*&") for piece in bare.split(",")]


def blanked(source: str) -> str:
    """The source with spaces for comments and strings, each line as long as before."""
    return _NOISE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)
