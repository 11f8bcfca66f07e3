"""Build of translated CUDA C++, and of its runtime, with g++; both are cached by content."""

import ctypes
import functools
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.emulate.translation import Translated, global_functions, translate
from kernelwright.kernelbench.jit import compiler
from kernelwright.kernelbench.jit.cache import BuildCache, content_key

SOURCE_NAME, _HOST_NAME = "kernel.cu", "main.cpp"  # as messages call it, and what load_inline has before it
_WHOLE = "whole.cpp"  # with ours
# Read now: where kernels run nothing of this may be read any more.
_FOLDER = Path(__file__).parent
_OWN, _RUNTIME = Path(__file__).read_text(), (_FOLDER / "simt.cpp").read_text()
_INCLUDE = _FOLDER / "include"
_HEADERS = {str(path.relative_to(_INCLUDE)): path.read_text() for path in sorted(_INCLUDE.rglob("*.h"))}
LIBRARY = "kernel.so"
OURS = "\n".join([_OWN, *_HEADERS.values()])  # what builds depend on
# DWARF 4: of 5, binutils 2.40 takes the files that `#line` names for each other.
_COMMON = ("-std=gnu++17", "-fPIC", "-ffixed-r15", "-g1", "-gdwarf-4", "-w", "-pthread")
KERNEL_OPTIONS = (
    *_COMMON, "-O2", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=fast", "-fno-math-errno",
    "-fno-strict-aliasing", "-fno-delete-null-pointer-checks", "-fno-gnu-unique",
    # Every access is to be seen, one at a time, in the order of the source.
    "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0",
    "--param", "tsan-distinguish-volatile=1", "-fno-optimize-sibling-calls", "-fno-tree-sra",
    "-fno-tree-vectorize", "-fno-tree-loop-distribute-patterns", "-fno-ipa-reference-addressable",
    "-fno-tree-tail-merge", "-fno-crossjumping", "-fno-code-hoisting",
    "-fsplit-stack",  # which looks, at the beginning of a function, whether its stack is at an end
)  # fmt: skip
LINK = ("-shared", "-Wl,-Bsymbolic")
_VARIABLE = re.compile(
    r"^(?P<begin>[\da-f]{16}) .{6}[ O] \.(?P<section>t?bss|t?data)\S*\t(?P<size>[\da-f]+) +"
    r"(?:\.\w+ +)?(?P<name>.+)$",
    re.M,
)
# A variable, as assembly has it.
_LABEL = re.compile(r"^(?P<size>\t\.size\t(?P<name>\S+), \d+\n)(?=(?P=name):\n)", re.M)
# Bytes between two of them: times the largest alignment, and of passes over the banks of shared memory.
_APART = 1024
_CALL = re.compile(
    r"^ *[\da-f]+:\t(?:[\da-f]{2} )+ *\t(?:notrack )?call.*(?:__tsan_|kw).*\n *(?P<next>[\da-f]+):", re.M
)
_NO_VARIABLE = re.compile(r"kw_(?:local|launcher)|guard variable|TLS init")
_FUNCTION = re.compile(r"^(?P<begin>[\da-f]{16}) .{6}F \S+\t[\da-f]+ +(?:\.\w+ +)?(?P<name>.+)$", re.M)
_NOTES = "notes.json"
_TIMEOUT_S = 120.0  # for what runs kernels to be built


@dataclass(frozen=True)
class Variable:
    """A variable of shared memory, with its offset among thread-locals and its size in bytes.

    Or a global variable, with its offset in the library.
    """

    name: str
    begin: int
    size: int
    function: str  # in which it is declared, "" if in none


@dataclass(frozen=True)
class Built:
    """A built source. `lines`: source line by the address, in the library, that a call returns to."""

    library: Path
    translated: Translated
    variables: tuple[Variable, ...]  # of shared memory
    globals: tuple[Variable, ...]  # __device__ and __constant__ ones, in order
    lines: dict[int, int]
    kernels: dict[int, str]  # the names of `__global__` functions, by where they begin in the library
    local: int  # where kw_local begins


def build(
    source: str, kernels: tuple[str, ...], extra: Sequence[str], cache: BuildCache, timeout_s: float
) -> Built:
    """Build a source. `extra`: options of g++. Raises Unsupported, BuildError, MissingPrerequisite."""
    translated = translate(source, kernels)
    words = compiler.command()
    options = (*KERNEL_OPTIONS, "-x", "c++", *extra)
    key = content_key("emulated", OURS, translated.source, "\n".join(options), compiler.identity(words))

    def make(workspace: Path) -> None:
        write_source(workspace, translated.source)
        started = time.monotonic()
        include = _headers(workspace, cache, timeout_s)
        make_object((*words, *options, "-I", str(include)), workspace, timeout_s)
        left = max(1.0, timeout_s - (time.monotonic() - started))
        compiler.run((*words, *LINK, "kernel.o", "-o", LIBRARY), workspace, left)
        (workspace / "kernel.o").unlink()
        shutil.rmtree(workspace / "include", ignore_errors=True)
        take_notes(workspace, translated, timeout_s)

    return kept(cache.get_or_build(key, make, wait_s=timeout_s + 10), translated)


def kept(folder: Path, translated: Translated) -> Built:
    """Load the build in this folder of the cache."""
    notes = json.loads((folder / _NOTES).read_text())
    variables = tuple(Variable(*each) for each in notes["variables"])
    globals_ = tuple(Variable(*each) for each in notes["globals"])
    lines = {int(address): line for address, line in notes["lines"]}
    kernels = dict(notes["kernels"])
    return Built(folder / LIBRARY, translated, variables, globals_, lines, kernels, notes["local"])


def _headers(workspace: Path, cache: BuildCache, timeout_s: float) -> Path:
    """Return the folder of our headers, precompiled: most of a build goes into reading them.

    A builder of one candidate, which makes nothing that others are built with, reads the plain headers.
    """
    if "KERNELWRIGHT_HEADERS" in os.environ:
        write_headers(workspace / "include")
        return Path("include")
    words = (*compiler.command(), *KERNEL_OPTIONS)
    key = content_key("emulator's headers", OURS, "\n".join(KERNEL_OPTIONS), compiler.identity(words[:1]))

    def make(folder: Path) -> None:
        write_headers(folder)
        compiler.run((*words, "-x", "c++-header", "simt.h", "-o", "simt.h.gch"), folder, timeout_s)

    return cache.get_or_build(key, make, wait_s=timeout_s + 10)


def write_headers(folder: Path) -> None:
    for name, text in _HEADERS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_source(workspace: Path, text: str) -> None:
    """Write the source; each part, from its `#line 1` on, also gets a file, whose lines errors show."""
    ours, *parts = text.split("#line 1\n", 2)
    whole = [ours]
    for name, part in zip((_HOST_NAME, SOURCE_NAME)[-len(parts) :], parts, strict=True):
        (workspace / name).write_text(part, errors="surrogateescape")
        whole.append(f'#line 1 "{name}"\n{part}')
    (workspace / _WHOLE).write_text("".join(whole), errors="surrogateescape")


def make_object(words: Sequence[str], workspace: Path, timeout_s: float) -> None:
    """Compile the source to kernel.o, with padding after variables so that overruns hit no other.

    Functions call our handler at the end of their stack instead of libgcc's.
    """
    compiler.run((*words, "-S", _WHOLE, "-o", "kernel.s"), workspace, timeout_s)
    assembly = workspace / "kernel.s"
    text = assembly.read_text(errors="surrogateescape")
    text = _LABEL.sub(rf"\g<size>\t.zero\t{_APART}\n", text)
    text = text.replace("__morestack", "kw_morestack")
    assembly.write_text(text, errors="surrogateescape")
    compiler.run((words[0], "-c", "kernel.s", "-o", "kernel.o"), workspace, timeout_s)
    assembly.unlink()


def take_notes(workspace: Path, translated: Translated, timeout_s: float) -> None:
    (workspace / _NOTES).write_text(json.dumps(_notes(workspace, translated, timeout_s)))


def _notes(workspace: Path, translated: Translated, timeout_s: float) -> dict[str, object]:
    """Return the data that findings are worded with; where kernels run no program may be started."""
    symbols = compiler.output_of(("objdump", "--syms", "--demangle", LIBRARY), workspace, timeout_s)
    variables: dict[bool, list[tuple[str, int, int, str]]] = {False: [], True: []}
    for found in _VARIABLE.finditer(symbols):
        if (size := int(found["size"], 16)) and not _NO_VARIABLE.match(found["name"]):
            function, _, name = found["name"].rpartition("::")
            place = (name, int(found["begin"], 16), size, function.partition("(")[0])
            variables[found["section"].startswith("t")].append(place)
    code = compiler.output_of(("objdump", "--disassemble", "--wide", LIBRARY), workspace, timeout_s)
    calls = [int(found["next"], 16) for found in _CALL.finditer(code)]
    (workspace / "addresses").write_text("".join(f"{address - 1:#x}\n" for address in calls))
    words = ("addr2line", "--inlines", "--addresses", "--exe", LIBRARY, "@addresses")
    told = compiler.output_of(words, workspace, timeout_s)
    (workspace / "addresses").unlink()
    lines: dict[int, int] = {}
    current = 0
    for text in told.splitlines():
        if text.startswith("0x"):
            current = int(text, 16) + 1
        elif (match := re.search(rf"{re.escape(SOURCE_NAME)}:(\d+)", text)) is not None:
            lines.setdefault(current, int(match[1]))  # the innermost that is the source's own
    in_order = sorted(variables[False], key=lambda variable: variable[1])
    functions = [(int(found["begin"], 16), bare_name(found["name"])) for found in _FUNCTION.finditer(symbols)]
    named = {name for name, _ in global_functions(translated.source)}
    return {
        "variables": variables[True],
        "globals": in_order,
        "lines": list(lines.items()),
        "kernels": [(begin, name) for begin, name in functions if name in named],
        "local": next(begin for begin, name in functions if name == "kw_local"),
    }


def bare_name(function: str) -> str:
    """Return the bare name of a function: "scale" for "void ns::scale<float, 4>(float*)"."""
    without = function.partition("(anonymous namespace)::")[2] or function
    while (less := re.sub(r"<[^<>]*>", "", without)) != without:
        without = less
    return without.partition("(")[0].split()[-1].rpartition("::")[2] if without.strip() else ""


@functools.cache
def runtime() -> ctypes.CDLL:
    """Build and load the runtime of kernels: in the fork server, if any, for all its forks.

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
