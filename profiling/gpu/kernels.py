"""Ownership of a kernel by its name: the candidate's own, or a library's that torch called."""

import ast
import re
from collections.abc import Iterator

from kernelwright.kernelbench.parsing import parsed

# What stands between `__global__` and the name, and holds parentheses of its own.
_BOUNDS = re.compile(r"__(?:launch_bounds|cluster_dims|maxnreg)__\s*\([^)]*\)")
_GLOBAL = re.compile(r"__global__\b[\s\w]*?\b(\w+)\s*\(")
# Of the Itanium C++ ABI, of a function that may be in a namespace or have internal linkage.
_MANGLED = re.compile(r"_ZN?L?(?=\d)")
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
# Of torch, of what it calls, and of what torch.compile writes. Hopper's cuBLAS calls its kernels nvjet.
_LIBRARY = re.compile(
    r"\bat::|at_cuda_detail|\bc10::|cublas|cudnn|cutlass|\bcask|xmma|nvjet|gemm|gemv|splitK|cufft|curand"
    r"|cusparse|cusolver|magma|\bthrust::|\bcub::|flash_fwd|fmha_|nchwToNhwc|nhwcToNchw|convolve|winograd|nccl"
    r"|^(?:ampere|volta|turing|hopper|sm\d\d)_|triton_(?:poi|red|per|tem|for|unk|mm|bmm)_|^Mem(?:cpy|set)\b",
    re.IGNORECASE,
)


def declared(source: str) -> frozenset[str]:
    """Return the kernels defined in a candidate's file: CUDA's in its strings, and Triton's."""
    return frozenset((*_GLOBAL.findall(_BOUNDS.sub(" ", source)), *_of_triton(source)))


def _of_triton(source: str) -> Iterator[str]:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
            yield node.name


def _is_jit(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called) in ("triton.jit", "jit")


def base_name(name: str) -> str:
    """Return a kernel's name without its type, namespaces, template arguments and parameters.

    Also of a mangled name: "_Z7row_maxIfLi4EEvPKT_PS0_" is "row_max".
    """
    if (mangled := _MANGLED.match(name)) is not None:
        return _last_part(name[mangled.end() :])
    plain = re.split(r"[<(]", _UNNAMED.sub("", name).strip(), maxsplit=1)[0]
    return re.split(r"::|\s", plain.strip())[-1]


def _last_part(mangled: str) -> str:
    """Return the last of the names that a mangled name begins with: "4mine3maxE" is "max"."""
    last, rest = mangled, mangled
    while (length := re.match(r"\d+", rest)) is not None:
        end = length.end() + int(length[0])
        last, rest = rest[length.end() : end], rest[end:]
    return last


def is_own(name: str, own: frozenset[str]) -> bool:
    """Return True if a kernel is the candidate's: in `own` (see `declared`), or of no known library."""
    base = base_name(name)
    if base in own or any(base.startswith(f"{each}_") for each in own):  # Triton's have suffixes at times
        return True
    return _LIBRARY.search(name) is None
