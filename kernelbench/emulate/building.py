"""Compiles translated CUDA C++, and what runs it, with g++; both are kept by content."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelbench.emulate.translation import Translated, translate
from kernelbench.jit import compiler
from kernelbench.jit.cache import BuildCache, content_key

SOURCE_NAME = "kernel.cu"  # as messages call it
_FOLDER = Path(__file__).parent
_INCLUDE = _FOLDER / "include"
_LIBRARY = "kernel.so"
_COMMON = ("-std=gnu++17", "-fPIC", "-ffixed-r15", "-g1", "-w", "-pthread")
_KERNEL = (
    *_COMMON, "-x", "c++", "-O2", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=fast", "-fno-math-errno",
    "-fno-strict-aliasing", "-fno-delete-null-pointer-checks", "-fno-gnu-unique",
    # Every access is to be seen, one at a time, in the order of the source.
    "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0",
    "-fno-tree-vectorize", "-fno-tree-loop-distribute-patterns", "-fno-ipa-reference-addressable",
    "-fno-tree-tail-merge", "-fno-crossjumping", "-fno-code-hoisting",
)  # fmt: skip
_LINK = ("-shared", "-Wl,-Bsymbolic")


@dataclass(frozen=True)
class Built:
    library: Path
    runtime: Path
    translated: Translated


def build(
    source: str, kernels: tuple[str, ...], defines: Sequence[str], cache: BuildCache, timeout_s: float
) -> Built:
    """Raises Unsupported, BuildError, MissingPrerequisite. `defines`: -D options."""
    translated = translate(source, kernels)
    words = compiler.command()
    headers = "\n".join(path.read_text() for path in sorted(_INCLUDE.rglob("*.h")))
    options = (*_KERNEL, "-I", str(_INCLUDE), *defines)
    key = content_key("emulated", translated.source, "\n".join(options), headers, compiler.identity(words))

    def make(workspace: Path) -> None:
        (workspace / SOURCE_NAME).write_text(translated.source, errors="surrogateescape")
        started = time.monotonic()
        compiler.run((*words, *options, "-c", SOURCE_NAME, "-o", "kernel.o"), workspace, timeout_s)
        left = max(1.0, timeout_s - (time.monotonic() - started))
        compiler.run((*words, *_LINK, "kernel.o", "-o", _LIBRARY), workspace, left)
        (workspace / "kernel.o").unlink()

    library = cache.get_or_build(key, make, wait_s=timeout_s + 10) / _LIBRARY
    return Built(library, _runtime(cache, timeout_s), translated)


def _runtime(cache: BuildCache, timeout_s: float) -> Path:
    source, words = (_FOLDER / "simt.cpp").read_text(), compiler.command()
    options = (*_COMMON, "-O2", *_LINK)
    key = content_key("emulator", source, "\n".join(options), compiler.identity(words))

    def make(workspace: Path) -> None:
        (workspace / "simt.cpp").write_text(source)
        compiler.run((*words, *options, "simt.cpp", "-o", "simt.so"), workspace, timeout_s)

    return cache.get_or_build(key, make, wait_s=timeout_s + 10) / "simt.so"
