"""torch/extension.h as a precompiled header: made once per torch, compiler and flags, in the build cache.

Reading torch's headers is most of what `load_inline` takes. GCC uses a precompiled header only under the
code-changing flags it was made with, so there is one for each such set of flags, 0.8 GB each; the
three used last are kept.
"""

from pathlib import Path

from kernelbench.jit import compiler
from kernelbench.jit.cache import BuildCache, content_key

KEEP = 3
TIMEOUT_S = 300.0
_HEADER = "torch_extension.h"


def header_words(
    words: tuple[str, ...], options: tuple[str, ...], torch_version: str, cache: BuildCache
) -> tuple[str, ...]:
    """Compiler words that include torch/extension.h, precompiled.

    `options` are all of the later compilation that come before its own macros; -D and -U flags among
    them are left out: GCC itself checks that they do not touch the header, else it reads it afresh.
    """
    kept = tuple(o for o in options if not o.startswith(("-D", "-U", "-W")) or o.startswith("-DTORCH_API"))
    headers = BuildCache(cache.folder / "headers")
    key = content_key("torch/extension.h", torch_version, "\n".join(kept), compiler.identity(words))

    def make(workspace: Path) -> None:
        (workspace / _HEADER).write_text("#pragma GCC system_header\n#include <torch/extension.h>\n")
        arguments = ("-w", "-x", "c++-header", _HEADER, "-o", f"{_HEADER}.gch")
        compiler.run((*words, *kept, *arguments), workspace, TIMEOUT_S)
        headers.trim(KEEP - 1)

    entry = headers.get_or_build(key, make, wait_s=TIMEOUT_S + 10)
    headers.touch(entry)
    return ("-include", str(entry / _HEADER))
