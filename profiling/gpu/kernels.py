"""Ownership of a kernel by its name: the candidate's own, or a library's that torch called."""

import ast
import re
from collections.abc import Iterator

from kernelwright.kernelbench.parsing import parsed

# What stands between `__global__` and the name, and holds parentheses of its own.
_BOUNDS = re.compile(r"__(?:launch_bounds|cluster_dims|maxnreg)__\s*\([^)]*\)")
_GLOBAL = re.compile(r"__global__\b[\s\w]*?\b(\w+)\s*\(")
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
    """Return a kernel's name without its type, namespaces, template arguments and parameters."""
    plain = re.split(r"[<(]", _UNNAMED.sub("", name).strip(), maxsplit=1)[0]
    return re.split(r"::|\s", plain.strip())[-1]


def is_own(name: str, own: frozenset[str]) -> bool:
    """Return True if a kernel is the candidate's: in `own` (see `declared`), or of no known library."""
    base = base_name(name)
    if base in own or any(base.startswith(f"{each}_") for each in own):  # Triton's have suffixes at times
        return True
    return _LIBRARY.search(name) is None
