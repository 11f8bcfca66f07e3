"""The usual part of torch/extension.h for `load_inline` sources, as a precompiled header in the cache.

Reading torch's headers is nearly all of the time that `load_inline` takes; most of them are the C++ frontend
(nn, optim, data, jit), which a kernel does not use. So the header is made without it, and a source that names
it is compiled against the whole torch/extension.h. There is one header for each set of code-changing flags,
0.6 GB each; the three used last are kept, as far as that is known.

If KERNELWRIGHT_HEADERS names a folder, headers are only taken from it: a builder of one candidate must not
make what others are built with. It leaves a wish, and the evaluator makes the header.
"""

import json
import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kernelwright.kernelbench.jit import compiler
from kernelwright.kernelbench.jit.cache import BuildCache, content_key
from kernelwright.kernelbench.jit.errors import BuildError

KEEP = 3
TIMEOUT_S = 300.0
WISH = "header-wanted.json"  # in the build cache: the header that a builder lacked

# Some of what torch/all.h brings along, and what sources use without including it.
_HEADER = """#pragma GCC system_header
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <future>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>
#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/fft.h>
#include <torch/special.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
"""
_NOT_OF_HEADERS = ("-D", "-U", "-W")
_STANDS_FOR = ("torch/extension.h", "torch/torch.h", "torch/all.h", "torch/python.h")

_FRONTEND = re.compile(
    r"\b(nn|optim|data|jit|serialize|nested|python|sparse|linalg|mps|xpu)\s*::|\btorch::(save|load|pickle_)|"
    r"#\s*include\s*[<\"]torch/(?!extension\.h|torch\.h|all\.h|types\.h|csrc/utils/pybind\.h)"
)
_LACKING = re.compile(
    r"error: .*(not a member of|not been declared|not declared|not name a|incomplete type|No such file)"
    r".*(torch|std\b|pybind11)|error: .*torch.*(not been declared|not name a|incomplete type)"
)


def suffices(source: str) -> bool:
    """Return True if a source seems not to need torch's C++ frontend."""
    return not _FRONTEND.search(source)


def may_be_lacking(stderr: str) -> bool:
    """Return True if compiler errors may come from what this header leaves out."""
    return bool(_LACKING.search(stderr))


def words(
    command: tuple[str, ...],
    base: tuple[str, ...],
    flags: Sequence[str],
    torch_version: str,
    cache: BuildCache,
    wish: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Return compiler words that put the header before a source; the header is made if missing and allowed.

    `base` and `flags` are the options of the later compilation. Its -D, -U and -W flags are left out: GCC
    itself checks that a macro does not affect a precompiled header, and otherwise reads the plain one.
    `wish`: flags reported to the maker of headers instead of `flags`. Raises BuildError.
    """
    kept = without_macros((*base, *flags))
    shared = os.environ.get("KERNELWRIGHT_HEADERS")
    headers = BuildCache(Path(shared) if shared else cache.folder / "headers")
    key = content_key(_HEADER, torch_version, "\n".join(kept), compiler.identity(command))

    def make(workspace: Path) -> None:
        (workspace / "compact.h").write_text(_HEADER)
        (workspace / "empty" / "torch").mkdir(parents=True)
        for name in _STANDS_FOR:
            (workspace / "empty" / name).write_text("#pragma once\n")
        arguments = ("-w", "-x", "c++-header", "compact.h", "-o", "compact.h.gch")
        compiler.run((*command, *kept, *arguments), workspace, TIMEOUT_S)
        headers.trim(KEEP - 1)

    entry = headers.entry(key)
    if not shared:
        headers.get_or_build(key, make, wait_s=TIMEOUT_S + 10)
        headers.touch(entry)
    elif not entry.is_dir():
        write_wish(cache, flags if wish is None else wish)
        raise BuildError("the precompiled header for these flags does not exist yet")
    return ("-include", str(entry / "compact.h"), "-I", str(entry / "empty"))


def without_macros(options: Sequence[str]) -> tuple[str, ...]:
    """Return the options that decide whether GCC can use a precompiled header."""
    return tuple(o for o in options if o == "-DTORCH_API_INCLUDE_EXTENSION_H" or o[:2] not in _NOT_OF_HEADERS)


def write_wish(cache: BuildCache, flags: Sequence[str], standard: Sequence[str] = ()) -> None:
    """Record the header that this builder lacked, with these flags: torch's, or of `standard` headers."""
    quoted = [shlex.quote(flag) for flag in flags if flag[:2] not in _NOT_OF_HEADERS]
    wish = cache.folder / WISH
    with suppress(OSError):
        if not (standard and wish.exists()):  # torch's comes first: without it nothing is built
            wish.write_text(json.dumps({"flags": quoted, "standard": list(standard)}))
