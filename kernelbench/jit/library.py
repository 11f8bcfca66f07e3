"""`compile_cpp`: C++ source with extern "C" functions -> a library whose functions take tensors."""

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.jit import compiler, flags, openmp, standard
from kernelwright.kernelbench.jit.cache import BuildCache, content_key
from kernelwright.kernelbench.jit.errors import BuildError
from kernelwright.kernelbench.jit.signature import Signature, parse

SOURCE_NAME = "kernel.cpp"
LIBRARY_NAME = "kernel.so"
FLAGS_NAME = "flags.txt"  # beside them in the cache: those of the candidate's choice, one a line

# Without -fno-gnu-unique the template statics of two candidates are one object; without -Bsymbolic a
# kernel's call to its own `softmax` may land in another library's.
_BASE = (*flags.DEFAULT, "-fPIC", "-fno-gnu-unique")
_COMPILE = ("-MMD", "-MF", "includes.d", "-c", SOURCE_NAME, "-o", "kernel.o")
_OURS = ("-isystem", str(standard.MATH_HEADER.parents[1]))
_LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs", "kernel.o", "-o", LIBRARY_NAME)


class NotLoaded(BuildError):  # noqa: N818 - what happened
    """A library that was built but cannot be loaded."""


class CppLibrary:
    """A loaded shared object; each of its extern "C" functions is an attribute (see `dir(lib)`)."""

    def __init__(self, path: Path, signatures: dict[str, Signature]) -> None:
        from kernelwright.kernelbench.jit.callplan import bind, typed

        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise NotLoaded(f"the built library cannot be loaded: {error}") from error
        self._path = path
        # A declaration is not a definition: only what the library exports is there to be called.
        self._functions = {
            name: bind(s, typed(loaded[name], s)) for name, s in signatures.items() if hasattr(loaded, name)
        }
        if not self._functions:
            raise BuildError('the library exports no extern "C" function')
        self.__dict__.update(self._functions)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(
            f'no extern "C" function {name!r}; available: {", ".join(sorted(self._functions))}'
        )

    def __repr__(self) -> str:
        return f"CppLibrary({self._path}: {', '.join(sorted(self._functions))})"


def path_of(library: CppLibrary) -> Path:
    """Return the path of a library's shared object."""
    return library._path


def compile_cpp(source: str, flags: Sequence[str] = (), *, timeout_s: float = 120.0) -> CppLibrary:
    """Build `source` with g++ (or CXX), unless that was done before, and load it.

    `flags` come after the defaults `-O3 -march=native -fopenmp -std=c++17 -fno-math-errno -fno-trapping-math`
    and must be on the allowlist of `jit.flags`. Only headers of the compiler itself may be included, and
    <kernelwright/math.h>, whose `kw::exp_f32`, `kw::sigmoid_f32` and the like vectorize. Raises
    BuildError (source, flags, cache folder, `timeout_s` over) and MissingPrerequisite (no compiler).
    """
    cache = BuildCache()
    path, signatures = build(source, flags, cache, timeout_s)
    try:
        return CppLibrary(path, signatures)
    except NotLoaded:  # the disk may have lost what is in it; a source at fault fails once more
        cache.discard(path.parent)
    path, signatures = build(source, flags, cache, timeout_s)
    return CppLibrary(path, signatures)


def build(
    source: str, extra: Sequence[str], cache: BuildCache, timeout_s: float
) -> tuple[Path, dict[str, Signature]]:
    """Return the path of the finished library and the signatures of its functions; does not load it."""
    if not isinstance(source, str):
        raise BuildError(f"source must be a string of C++, got {type(source).__name__}")
    chosen = flags.check(extra)
    signatures = parse(source, flags.defines(chosen))
    if not signatures:
        raise BuildError('the source has no extern "C" function to call')
    words = compiler.command()
    options = (*_BASE, *chosen)
    link = (*_LINK, *openmp.link_words())
    key = content_key(
        "c++",
        source,
        standard.MATH_HEADER.read_text(),
        "\n".join((*options, *_COMPILE, *link)),
        compiler.identity(words),
    )

    def make(workspace: Path) -> None:
        (workspace / SOURCE_NAME).write_text(source, errors="surrogateescape")
        (workspace / FLAGS_NAME).write_text("\n".join(chosen))
        started = time.monotonic()
        header = standard.words(source, words, _BASE, chosen, cache)
        try:
            compiler.run((*words, *options, *_OURS, *header, *_COMPILE), workspace, timeout_s)
        except BuildError as error:
            if not (header and header[-1] in error.stderr):  # it may just have been removed
                raise
            compiler.run((*words, *options, *_OURS, *_COMPILE), workspace, timeout_s)
        _refuse_foreign_headers(workspace / "includes.d", known=(SOURCE_NAME, *header[1:]))
        # Apart from the compilation, because `-ffast-math` at the link makes GCC 12 and older flush
        # denormals to zero in the process that loads the library, torch's own arithmetic included.
        compiler.run((*words, *link), workspace, max(1.0, timeout_s - (time.monotonic() - started)))
        (workspace / "kernel.o").unlink()

    return cache.get_or_build(key, make, wait_s=timeout_s + 10) / LIBRARY_NAME, signatures


def options_of(entry: Path) -> tuple[str, ...]:
    """Return the compiler options of the build in this folder of a cache. Raises OSError, BuildError."""
    return (*_BASE, *_OURS, *flags.check((entry / FLAGS_NAME).read_text().splitlines()))


def make_header(names: Sequence[str], extra: Sequence[str], cache: BuildCache) -> None:
    """Make the precompiled header that `build` uses for sources that begin with these. Raises BuildError."""
    standard.make(names, (*_BASE, *flags.check(extra)), cache)


def _refuse_foreign_headers(dependencies: Path, known: Sequence[str]) -> None:
    """Raise BuildError if a file was included that the key does not cover."""
    _, _, listed = dependencies.read_text().replace("\\\n", " ").partition(":")
    foreign = [name for name in listed.split() if name not in known]
    if foreign:
        raise BuildError(f"only the compiler's own headers may be included, not {', '.join(foreign)}")
