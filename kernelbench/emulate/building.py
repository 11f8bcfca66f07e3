"""Compiles translated CUDA C++, and what runs it, with g++; both are kept by content."""

import ctypes
import functools
import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelbench.emulate.translation import Translated, translate
from kernelbench.jit import compiler
from kernelbench.jit.cache import BuildCache, content_key

SOURCE_NAME = "kernel.cu"  # as messages call it
# Read now: where kernels run nothing of this may be read any more.
_FOLDER = Path(__file__).parent
_OWN, _RUNTIME = Path(__file__).read_text(), (_FOLDER / "simt.cpp").read_text()
_INCLUDE = _FOLDER / "include"
_HEADERS = {str(path.relative_to(_INCLUDE)): path.read_text() for path in sorted(_INCLUDE.rglob("*.h"))}
LIBRARY = "kernel.so"
OURS = "\n".join([_OWN, *_HEADERS.values()])  # what builds depend on
_COMMON = ("-std=gnu++17", "-fPIC", "-ffixed-r15", "-g1", "-w", "-pthread")
KERNEL_OPTIONS = (
    *_COMMON, "-x", "c++", "-O2", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=fast", "-fno-math-errno",
    "-fno-strict-aliasing", "-fno-delete-null-pointer-checks", "-fno-gnu-unique",
    # Every access is to be seen, one at a time, in the order of the source.
    "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0",
    "-fno-tree-vectorize", "-fno-tree-loop-distribute-patterns", "-fno-ipa-reference-addressable",
    "-fno-tree-tail-merge", "-fno-crossjumping", "-fno-code-hoisting",
)  # fmt: skip
LINK = ("-shared", "-Wl,-Bsymbolic")
_TLS = re.compile(
    r"^(?P<begin>[\da-f]{16}) .{7} \.t(?:bss|data)\S*\t(?P<size>[\da-f]+) +(?:\.\w+ +)?(?P<name>.+)$", re.M
)
_CALL = re.compile(
    r"^ *[\da-f]+:\t(?:[\da-f]{2} )+ *\t(?:notrack )?call.*(?:__tsan_|kw).*\n *(?P<next>[\da-f]+):", re.M
)
_NOTES = "notes.json"
_TIMEOUT_S = 120.0  # for what runs kernels to be built


@dataclass(frozen=True)
class Variable:
    """In shared memory: where it begins among what is thread-local, and how many bytes it has."""

    name: str
    begin: int
    size: int


@dataclass(frozen=True)
class Built:
    """`lines`: of the source, by the address, in the library, that a call returns to."""

    library: Path
    translated: Translated
    variables: tuple[Variable, ...]
    lines: dict[int, int]


def build(
    source: str, kernels: tuple[str, ...], defines: Sequence[str], cache: BuildCache, timeout_s: float
) -> Built:
    """Raises Unsupported, BuildError, MissingPrerequisite. `defines`: -D options."""
    translated = translate(source, kernels)
    words = compiler.command()
    options = (*KERNEL_OPTIONS, "-I", "include", *defines)
    key = content_key("emulated", OURS, translated.source, "\n".join(options), compiler.identity(words))

    def make(workspace: Path) -> None:
        write_headers(workspace / "include")
        (workspace / SOURCE_NAME).write_text(translated.source, errors="surrogateescape")
        started = time.monotonic()
        compiler.run((*words, *options, "-c", SOURCE_NAME, "-o", "kernel.o"), workspace, timeout_s)
        left = max(1.0, timeout_s - (time.monotonic() - started))
        compiler.run((*words, *LINK, "kernel.o", "-o", LIBRARY), workspace, left)
        (workspace / "kernel.o").unlink()
        shutil.rmtree(workspace / "include")
        take_notes(workspace, timeout_s)

    return kept(cache.get_or_build(key, make, wait_s=timeout_s + 10), translated)


def kept(folder: Path, translated: Translated) -> Built:
    """What was built in this folder of the cache."""
    notes = json.loads((folder / _NOTES).read_text())
    variables = tuple(Variable(*each) for each in notes["variables"])
    lines = {int(address): line for address, line in notes["lines"]}
    return Built(folder / LIBRARY, translated, variables, lines)


def write_headers(folder: Path) -> None:
    for name, text in _HEADERS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def take_notes(workspace: Path, timeout_s: float) -> None:
    (workspace / _NOTES).write_text(json.dumps(_notes(workspace, timeout_s)))


def _notes(workspace: Path, timeout_s: float) -> dict[str, object]:
    """What findings are put in words with, read now: where kernels run no other program may be started."""
    symbols = compiler.said(("objdump", "--syms", "--demangle", LIBRARY), workspace, timeout_s)
    variables = [
        (found["name"].rpartition("::")[2], int(found["begin"], 16), int(found["size"], 16))
        for found in _TLS.finditer(symbols)
        if not found["name"].startswith("kw_local") and "guard" not in found["name"]
    ]
    code = compiler.said(("objdump", "--disassemble", "--wide", LIBRARY), workspace, timeout_s)
    calls = [int(found["next"], 16) for found in _CALL.finditer(code)]
    (workspace / "addresses").write_text("".join(f"{address - 1:#x}\n" for address in calls))
    words = ("addr2line", "--inlines", "--addresses", "--exe", LIBRARY, "@addresses")
    told = compiler.said(words, workspace, timeout_s)
    (workspace / "addresses").unlink()
    lines: dict[int, int] = {}
    current = 0
    for text in told.splitlines():
        if text.startswith("0x"):
            current = int(text, 16) + 1
        elif (match := re.search(rf"{re.escape(SOURCE_NAME)}:(\d+)", text)) is not None:
            lines.setdefault(current, int(match[1]))  # the innermost that is the source's own
    return {"variables": variables, "lines": list(lines.items())}


@functools.cache
def runtime() -> ctypes.CDLL:
    """What runs kernels, built and loaded: by the fork server, where there is one, for all that it forks.

    Raises BuildError, MissingPrerequisite.
    """
    words = compiler.command()
    options = (*_COMMON, "-O2", *LINK)
    key = content_key("emulator", _RUNTIME, "\n".join(options), compiler.identity(words))

    def make(workspace: Path) -> None:
        (workspace / "simt.cpp").write_text(_RUNTIME)
        compiler.run((*words, *options, "simt.cpp", "-o", "simt.so"), workspace, _TIMEOUT_S)

    entry = BuildCache().get_or_build(key, make, wait_s=_TIMEOUT_S + 10)
    return ctypes.CDLL(str(entry / "simt.so"), mode=ctypes.RTLD_GLOBAL)
