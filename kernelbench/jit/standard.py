"""The standard headers that a `compile_cpp` source begins with, precompiled: they dominate build times.

Only if KERNELWRIGHT_HEADERS names a folder, in builders, which do not make them themselves (see
`jit.precompiled`): a single build is faster without. There is one header for each set of names and of
code-changing flags, 20 MB each. The generated code is the same.
"""

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kernelwright.kernelbench.jit import compiler
from kernelwright.kernelbench.jit.cache import BuildCache, content_key
from kernelwright.kernelbench.jit.errors import BuildError
from kernelwright.kernelbench.jit.precompiled import TIMEOUT_S, without_macros, write_wish

KEEP = 24
MATH_HEADER = Path(__file__).parent / "include" / "kernelwright" / "math.h"
HEADERS = frozenset(
    """algorithm array atomic bitset cassert cfloat chrono cinttypes climits cmath complex cstddef cstdint
    cstdio cstdlib cstring deque exception functional initializer_list iostream iterator limits list map
    memory mutex new numeric optional queue random ratio set sstream stdexcept string string_view thread tuple
    type_traits unordered_map unordered_set utility valarray variant vector
    assert.h float.h inttypes.h limits.h math.h stddef.h stdint.h stdio.h stdlib.h string.h
    immintrin.h omp.h x86intrin.h""".split()
)
_MATH = re.compile(r"\s*#\s*include\s*<kernelwright/math\.h>\s*(?://.*)?")
_INCLUDE = re.compile(r"\s*#\s*include\s*<([\w.]+)>\s*(?://.*)?")
# What changes nothing in the headers that come after it.
_HARMLESS = re.compile(
    r"\s*(?://.*)?|\s*#\s*pragma\s+(?:once|GCC\s+target\s*\(\s*\"prefer-vector-width=\w+\"\s*\))\s*"
    r"|\s*/\*(?:(?!\*/).)*\*/\s*"
)
_CONDITION = re.compile(r"\s*#\s*(?:if|ifdef|ifndef)\b.*")


def names_in(source: str) -> tuple[str, ...]:
    """Return the sorted standard headers `source` begins with, unless earlier lines might affect them."""
    names: set[str] = set()
    depth = 0
    for line in source.replace("\\\n", " ").split("\n"):
        include = _INCLUDE.fullmatch(line)
        if include is not None and not depth and include.group(1) in HEADERS:
            names.add(include.group(1))
        elif _MATH.fullmatch(line) and not depth:
            names |= _names_of_math()
        elif _CONDITION.fullmatch(line):
            depth += 1
        elif depth and line.strip().startswith("#endif"):
            depth -= 1
        elif not _HARMLESS.fullmatch(line):
            break
    return tuple(sorted(names))


@cache
def _names_of_math() -> frozenset[str]:
    """Return the standard headers that <kernelwright/math.h> includes on this machine."""
    found = set(_INCLUDE.findall(MATH_HEADER.read_text()))
    return frozenset(found if os.uname().machine == "x86_64" else found - {"immintrin.h"})


def words(
    source: str, command: tuple[str, ...], base: Sequence[str], flags: Sequence[str], cache: BuildCache
) -> tuple[str, ...]:
    """Return compiler words that put the headers before `source`; without a header none, but record a wish.

    `base` and `flags` are the options of the compilation, the latter of the candidate's choice.
    """
    shared = os.environ.get("KERNELWRIGHT_HEADERS")
    names = names_in(source)
    if not shared or not names:
        return ()
    entry = _headers(Path(shared)).entry(_key(names, command, (*base, *flags)))
    if not entry.is_dir():
        write_wish(cache, flags, names)
        return ()
    return ("-include", str(entry / "standard.h"))


def make(names: Sequence[str], options: Sequence[str], cache: BuildCache) -> None:
    """Make the header that `words` uses with these options. Raises BuildError."""
    names = sorted(set(names))
    if foreign := set(names) - HEADERS:
        raise BuildError(f"not standard headers: {', '.join(sorted(foreign))}")
    command = compiler.command()
    headers = _headers(cache.folder / "headers")

    def build(workspace: Path) -> None:
        lines = ["#pragma GCC system_header", *(f"#include <{name}>" for name in names), ""]
        (workspace / "standard.h").write_text("\n".join(lines))
        arguments = ("-w", "-x", "c++-header", "standard.h", "-o", "standard.h.gch")
        compiler.run((*command, *without_macros(options), *arguments), workspace, TIMEOUT_S)
        headers.trim(KEEP - 1)

    headers.get_or_build(_key(names, command, options), build, wait_s=TIMEOUT_S + 10)


def _headers(folder: Path) -> BuildCache:
    return BuildCache(folder / "standard")


def _key(names: Sequence[str], command: tuple[str, ...], options: Sequence[str]) -> str:
    return content_key("standard", *names, "\n".join(without_macros(options)), compiler.identity(command))
