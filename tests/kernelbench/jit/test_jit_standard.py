"""Precompiled standard headers: taken where a builder has them, and nothing comes out otherwise."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.jit import library, standard
from kernelwright.kernelbench.jit.cache import BuildCache
from kernelwright.kernelbench.jit.precompiled import WISH, write_wish

pytestmark = pytest.mark.builds

SOURCE = """
// a comment
#if defined(__AVX2__)
#pragma GCC target("prefer-vector-width=256")
#endif
#include <cmath>
#include <algorithm>  // min

extern "C" void f(const float* x, float* y) { *y = std::min(std::exp(*x), 2.0f); }
"""

OF_MATH = tuple(
    sorted(
        {"algorithm", "cmath", "cstdint", "cstring", "limits"}
        | ({"immintrin.h"} if os.uname().machine == "x86_64" else set())
    )
)


@pytest.mark.parametrize(
    ("begin", "names"),
    [
        ("", ("algorithm", "cmath")),
        ("/* one line */\n#pragma once\n", ("algorithm", "cmath")),
        ("#include <immintrin.h>\n", ("algorithm", "cmath", "immintrin.h")),
        ("#include <immintrin.h>\n#include <unheard_of>\n", ("immintrin.h",)),
        ("#include <map>\n#include <kernelwright/math.h>\n", (*OF_MATH, "map")),
        ("#ifdef X\n#include <kernelwright/math.h>\n#endif\n", ()),
        ("#define NAN 0\n", ()),
        ('#pragma GCC optimize("O0")\n', ()),
        ("/* #include <map>\n*/\n", ()),
        ("int x;\n", ()),
        ("#ifdef X\n#include <map>\n#endif\n", ()),
        ("#ifdef X\n#else\n", ()),
        ('#include "cmath"\n', ()),
    ],
)
def test_only_headers_that_nothing_before_them_may_change_are_taken(
    begin: str, names: tuple[str, ...]
) -> None:
    assert standard.names_in(begin + SOURCE) == names


def test_a_builder_takes_the_header_it_wished_for(
    wrapper: Callable[[str], Path], cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = wrapper('echo "$@" >> $D/log') / "log"
    trusted = BuildCache(tmp_path / "trusted")
    monkeypatch.setenv("KERNELWRIGHT_HEADERS", str(trusted.folder / "headers"))
    plain, _ = library.build(SOURCE, ["-DN=1", "-O2"], BuildCache(), 60)
    assert "-include" not in log.read_text()
    wish = json.loads((cache_folder / WISH).read_text())
    assert wish == {"flags": ["-O2"], "standard": ["algorithm", "cmath"]}

    library.make_header(wish["standard"], wish["flags"], trusted)
    log.unlink()
    quick, _ = library.build(SOURCE, ["-DN=1", "-O2"], BuildCache(tmp_path / "other"), 60)
    compiled = log.read_text().splitlines()[0].split()
    assert header_is_taken(compiled, tmp_path)
    assert code_of(quick) == code_of(plain)
    with pytest.raises(jit.BuildError) as caught:
        jit.compile_cpp(SOURCE.replace("*y =", "*z ="), ["-O2"])
    assert caught.value.lines == (9,)


def test_a_macro_that_touches_the_header_has_it_read_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = BuildCache(tmp_path / "trusted")
    monkeypatch.setenv("KERNELWRIGHT_HEADERS", str(trusted.folder / "headers"))
    library.make_header(["cmath", "cassert", "cmath"], [], trusted)
    source = '#include <cmath>\n#include <cassert>\nextern "C" void f(float* y) { assert(false); *y = 1; }'
    y = torch.zeros(1)
    jit.compile_cpp(source, ["-DNDEBUG"]).f(y)
    assert y.item() == 1


def test_torchs_header_is_wished_for_before_standard_ones(cache_folder: Path) -> None:
    cache_folder.mkdir()
    write_wish(BuildCache(), ["-O2"])
    write_wish(BuildCache(), [], ["cmath"])
    assert json.loads((cache_folder / WISH).read_text()) == {"flags": ["-O2"], "standard": []}


def test_a_header_that_is_gone_again_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = BuildCache(tmp_path / "trusted")
    library.make_header(["algorithm", "cmath"], [], trusted)
    monkeypatch.setenv("KERNELWRIGHT_HEADERS", str(trusted.folder / "headers"))
    words = standard.words
    monkeypatch.setattr(standard, "words", lambda *given: taken_away(words(*given)))
    assert jit.compile_cpp(SOURCE).f is not None


def taken_away(words: tuple[str, ...]) -> tuple[str, ...]:
    shutil.rmtree(Path(words[-1]).parent)
    return words


def test_nothing_else_is_made_a_header(tmp_path: Path) -> None:
    with pytest.raises(jit.BuildError, match="not standard headers: /etc/passwd"):
        library.make_header(["cmath", "/etc/passwd"], [], BuildCache(tmp_path))


def header_is_taken(words: list[str], folder: Path) -> bool:
    """GCC's -H marks a precompiled header that it accepts with an exclamation mark."""
    (folder / "kernel.cpp").write_text(SOURCE)
    words = [word for word in words if word not in ("-o", "kernel.o", "-c")]
    done = subprocess.run(
        ["g++", *words, "-fsyntax-only", "-H", "-Winvalid-pch"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    return any(line.startswith("! ") and line.endswith("standard.h.gch") for line in done.stderr.splitlines())


def code_of(path: Path) -> str:
    done = subprocess.run(["objdump", "-d", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.partition("\n\n")[2]
