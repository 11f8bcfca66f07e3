"""CUDA and C++ sources in one Python file, as torch's `load_inline` builds them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from kernelwright.kernelbench.errors import UsageError

_HEADER = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*\n?', re.MULTILINE)
_CUDA = (".cu",)
_CPP = (".cpp", ".cc", ".cxx", ".c")
BUILT = (*_CUDA, *_CPP)


def extension_text(
    sources: Mapping[str, str],
    symbol: str,
    name: str,
    where: str,
    cuda_flags: Sequence[str] = (),
    link_flags: Sequence[str] = (),
) -> str:
    """Return statements that bind `extension`, a module with the function `symbol`, to these sources.

    `sources`: texts by their paths; headers among them are written into the files that include them. Raises
    UsageError where no source binds the function and none declares it.
    """
    if any("tvm/ffi" in text for text in sources.values()):
        raise UsageError(
            f"{where} is bound by TVM FFI, which is not supported", "bind it with PYBIND11_MODULE instead"
        )
    cuda = [_with_headers(path, sources, set()) for path in sources if path.endswith(_CUDA)]
    cpp = [_with_headers(path, sources, set()) for path in sources if path.endswith(_CPP)]
    if not cuda and not cpp:
        raise UsageError(f"{where} has no .cu or .cpp file", f"give one of {', '.join(BUILT)}")
    functions = ""
    if not any("PYBIND11_MODULE" in text or "TORCH_LIBRARY" in text for text in (*cuda, *cpp)):
        declared = next((found for text in (*cuda, *cpp) if (found := _declaration(symbol, text))), "")
        if not declared:
            raise UsageError(
                f"{where} defines no function {symbol}", "name the function that its entry point is"
            )
        cpp.insert(0, f"#include <torch/extension.h>\n{declared};\n")
        functions = f'    functions=["{symbol}"],\n'
    text = "from torch.utils.cpp_extension import load_inline\n\n"
    names = []
    for kind, texts in (("CUDA", cuda), ("CPP", cpp)):
        for number, each in enumerate(texts, start=1):
            names.append((kind, f"{kind}_SOURCE_{number}"))
            text += f"{names[-1][1]} = {_literal(each)}\n"
    lists = {kind: ", ".join(own for k, own in names if k == kind) for kind in ("CUDA", "CPP")}
    own_name = "extension_" + re.sub(r"\W", "_", name)
    text += f'\nextension = load_inline(\n    name="{own_name}",\n'
    text += f"    cpp_sources=[{lists['CPP']}],\n"
    text += f"    cuda_sources=[{lists['CUDA']}],\n" if cuda else ""
    text += functions
    if cuda_flags and cuda:
        text += f"    extra_cuda_cflags={list(cuda_flags)!r},\n"
    if link_flags:
        text += f"    extra_ldflags={list(link_flags)!r},\n"
    return f"{text})"


def _with_headers(path: str, sources: Mapping[str, str], seen: set[str]) -> str:
    """Return a source with those of its headers that are sources, too, each once."""

    def included(found: re.Match[str]) -> str:
        beside = str(PurePosixPath(path).parent / found[1])
        header = next((each for each in (beside, found[1]) if each in sources), None)
        if header is None:  # it is torch's, or CUDA's
            return found[0]
        if header in seen:
            return ""
        seen.add(header)
        return _with_headers(header, sources, seen).replace("#pragma once", "") + "\n"

    return _HEADER.sub(included, sources[path])


def _declaration(symbol: str, text: str) -> str:
    found = re.search(
        rf"^[ \t]*([\w:<>,&* \t]+?\b{re.escape(symbol)}\s*\([^;{{}}]*\))\s*\{{", text, re.MULTILINE
    )
    return " ".join(found[1].split()) if found else ""


def _literal(text: str) -> str:
    """Return a raw string of several lines, where the text can be one."""
    if "'''" in text or text.endswith(("\\", "'")) or "\r" in text:
        return repr(text)
    return f"r'''{text}'''"
