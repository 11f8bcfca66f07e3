"""The GPU kernels that a candidate file defines, read from its text without running it.

    @triton.jit
    def scale(x, y, n, BLOCK: tl.constexpr): ...     # a Triton kernel, unless another one calls it

    SOURCE = r"__global__ void scale(...) {...}"      # a CUDA kernel

Functions called only by device code, or passed to a kernel as an argument, are helpers, not kernels.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kernelwright.kernelbench.emulate.translation import global_functions
from kernelwright.kernelbench.parsing import parsed
from kernelwright.kernelbench.records import Language

# Ways to make kernels that neither the emulator nor Triton's interpreter runs: a module, what of it shows
# that kernels are made (any use where there is nothing), and what they are called.
_OTHERS = (
    ("numba.cuda", ("jit",), "numba.cuda"),
    ("cupy", ("RawKernel", "RawModule", "ElementwiseKernel", "ReductionKernel", "fuse"), "CuPy"),
    ("cupyx", ("jit",), "CuPy"),
    ("torch.cuda._compile_kernel", (), "torch.cuda._compile_kernel"),
    ("pycuda", (), "PyCUDA"),
    ("cuda", (), "CUDA Python"),
    ("tilelang", (), "TileLang"),
    ("cutlass", (), "CUTLASS's Python DSL"),
    ("warp", (), "Warp"),
    ("taichi", (), "Taichi"),
    ("helion", (), "Helion"),
    ("jax", (), "JAX"),
    ("triton.experimental.gluon", (), "Gluon"),
)
_INSTALLED_AS = {"CuPy": "cupy-cuda12x or cupy-cuda13x, matching the driver", "numba.cuda": "numba-cuda"}
_CALLS = {  # by whose names a file is told that defines no kernel that can be seen
    "cuda": {"compile_cuda", "RawModule", "RawKernel", "cuda_sources"},
    "cpp": {"compile_cpp", "load_inline", "cpp_sources"},
}
_HOLE = "kw_hole"  # for what an f-string puts in


@dataclass(frozen=True)
class SourceKernel:
    """A kernel in a candidate's file. `line`: from 1."""

    name: str
    line: int
    language: Language

    def __str__(self) -> str:
        return f"{self.name} (line {self.line})"


class KernelFile:
    """A candidate's file. Raises SyntaxError, ValueError or RecursionError if it is not Python."""

    def __init__(self, source: str) -> None:
        self._tree = parsed(source)
        self._nodes = list(ast.walk(self._tree))
        self._modules = dict(_imports(self._nodes))  # name in the file -> what it stands for

    @property
    def kernels(self) -> tuple[SourceKernel, ...]:
        """Kernels, each once, in the order of the file."""
        found = sorted([*self._of_triton, *self._of_cuda], key=lambda kernel: kernel.line)
        return tuple({kernel.name: kernel for kernel in reversed(found)}.values())[::-1]

    @property
    def language(self) -> Language:
        if self._jitted:
            return "triton"
        if self._of_cuda or self.unemulated:
            return "cuda"
        for language in ("cuda", "cpp"):
            if self._words & _CALLS[language]:
                return "cuda" if language == "cuda" else "cpp"
        if "triton.jit" in self._used:  # made in a way that is not seen here
            return "triton"
        loads = "torch.utils.cpp_extension.load" in self._used or "CDLL" in self._words
        return "cpp" if loads else "torch"

    @cached_property
    def unemulated(self) -> str:
        """Framework of kernels that cannot be emulated without a GPU, such as "numba.cuda"; else ""."""
        if self._jitted or (self._of_cuda and self._words & (_CALLS["cpp"] | {"compile_cuda", "load"})):
            return ""
        for module, makers, name in _OTHERS:
            used = any(whole == module or whole.startswith(f"{module}.") for whole in self._used)
            if used and (not makers or self._words & set(makers)):
                return name
        return ""

    @cached_property
    def _used(self) -> set[str]:
        """Dotted names of imports, and of attributes of imports."""
        attributes = (self._whole(node) for node in self._nodes if isinstance(node, ast.Attribute))
        return {*self._modules.values(), *attributes}

    @cached_property
    def _words(self) -> set[str]:
        """Names, attributes and names of arguments."""
        found = set()
        for node in self._nodes:
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                    found.add(name)
                case ast.alias(name=name):
                    found.add(name.rpartition(".")[2])
        return found

    @cached_property
    def _jitted(self) -> dict[str, ast.FunctionDef]:
        """Triton functions by name."""
        defined = [node for node in self._nodes if isinstance(node, ast.FunctionDef)]
        given = {
            node.args[0].id
            for node in self._nodes
            if isinstance(node, ast.Call) and self._is_jit(node.func) and node.args
            if isinstance(node.args[0], ast.Name)
        }
        return {
            node.name: node
            for node in defined
            if node.name in given or any(self._is_jit(each) for each in node.decorator_list)
        }

    def _is_jit(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            return self._is_jit(node.func)
        return self._whole(node) in ("triton.jit", "triton.runtime.jit.jit", "triton.runtime.jit.JITFunction")

    def _whole(self, node: ast.expr) -> str:
        """Return the dotted name of an attribute of an import; a name that begins with a dot is none."""
        if isinstance(node, ast.Attribute):
            return f"{self._whole(node.value)}.{node.attr}"
        return self._modules.get(node.id, "") if isinstance(node, ast.Name) else ""

    @cached_property
    def _of_triton(self) -> list[SourceKernel]:
        helpers = {
            word.id
            for name, function in self._jitted.items()
            for word in ast.walk(function)
            if isinstance(word, ast.Name) and word.id in self._jitted and word.id != name
        }
        launched, given = set(), set()  # kernels[grid](..., helper)
        for node in self._nodes:
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                launched.add(node.value.id)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                given |= {value.id for value in values if isinstance(value, ast.Name)}
        return [
            SourceKernel(name, function.lineno, "triton")
            for name, function in self._jitted.items()
            if name not in helpers and (name in launched or name not in given)
        ]

    @cached_property
    def _of_cuda(self) -> list[SourceKernel]:
        found = []
        for line, text in self._strings():
            for name, at in global_functions(text):
                if _HOLE not in name:
                    found.append(SourceKernel(name, line + at - 1, "cuda"))
        return found

    def _strings(self) -> Iterator[tuple[int, str]]:
        """Yield strings that may be sources, each with its line: no docstrings; f-strings with holes."""
        said = {
            id(node.value) for node in self._nodes if isinstance(node, ast.Expr)
        }  # for whoever reads the file
        parts = {id(part) for node in self._nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in self._nodes:
            if id(node) in said | parts:
                continue
            text = ""
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(p.value) if isinstance(p, ast.Constant) else _HOLE for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            if "__global__" in text:
                yield getattr(node, "lineno", 1), text


def kernel_file(source: str) -> KernelFile | None:
    """Parse a file; None if the source is not Python."""
    try:
        return KernelFile(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def not_emulated(made_by: str) -> str:
    """Return the reason kernels that are `made_by` another framework are not checked without a GPU."""
    fix = _INSTALLED_AS.get(made_by)
    there = f"; on a GPU: pip install {fix}" if fix else ""
    return f"not checked: {made_by} kernels cannot be emulated, only Triton's and CUDA C++{there}"


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, alias.name if alias.asname else first
                if not alias.asname and "." in alias.name:
                    yield f"import {alias.name}", alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
