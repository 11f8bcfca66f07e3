"""The GPU kernels that a candidate file defines, read from its text without running it.

    @triton.jit
    def scale(x, y, n, BLOCK: tl.constexpr): ...     # a Triton kernel, unless another one calls it

    SOURCE = r"__global__ void scale(...) {...}"      # a CUDA kernel

Functions called only by device code, or passed to a kernel as an argument, are helpers, not kernels.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kernelwright.kernelbench.emulate.translation import global_functions
from kernelwright.kernelbench.languages import LANGUAGES, OTHER_BUILDERS, SPECIAL, uses
from kernelwright.kernelbench.parsing import parsed
from kernelwright.kernelbench.records import Language

_CALLS = {  # by whose names a file is told that defines no kernel that can be seen
    "cuda": {"compile_cuda", "RawModule", "RawKernel", "cuda_sources"},
    "cpp": {"compile_cpp", "load_inline", "cpp_sources"},
}
_DECORATORS: dict[str, Language] = {name: row.id for row in LANGUAGES.values() for name in row.decorators}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
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
        found = sorted([*self._of_python, *self._of_cuda], key=lambda kernel: kernel.line)
        return tuple({kernel.name: kernel for kernel in reversed(found)}.values())[::-1]

    @cached_property
    def language(self) -> Language:
        sources = [_COMMENT.sub(" ", text) for _, text in self._strings if "include" in text]
        for row in SPECIAL:
            if row.made(self._used, sources):
                return row.id
        if any(made == "triton" for _, made in self._jitted.values()):
            return "triton"
        if self._of_cuda or self._other_builder:
            return "cuda"
        for language in ("cuda", "cpp"):
            if self._words & _CALLS[language]:
                return "cuda" if language == "cuda" else "cpp"
        if "triton.jit" in self._used:  # made in a way that is not seen here
            return "triton"
        for row in SPECIAL:
            if row.imported(self._used):
                return row.id
        loads = "torch.utils.cpp_extension.load" in self._used or "CDLL" in self._words
        return "cpp" if loads else "torch"

    @property
    def other_builder(self) -> str:
        """Builder of its CUDA C++, such as "PyCUDA", if that is not emulated; else ""."""
        return self._other_builder if self.language == "cuda" else ""

    @cached_property
    def _other_builder(self) -> str:
        if self._of_cuda and self._words & (_CALLS["cpp"] | {"compile_cuda", "load"}):
            return ""
        if any(row.imported(self._used) for row in SPECIAL):  # cutlass.cute, not cutlass
            return ""
        return next((name for module, name in OTHER_BUILDERS.items() if uses(module, self._used)), "")

    @cached_property
    def _used(self) -> set[str]:
        """Dotted names of imports, and of attributes of imports, where the file uses them."""
        read = (node for node in self._nodes if isinstance(getattr(node, "ctx", None), ast.Load))
        used = (self._whole(node) for node in read if isinstance(node, (ast.Name, ast.Attribute)))
        return {name for name in used if name and name[0] != "."}

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
    def _jitted(self) -> dict[str, tuple[ast.FunctionDef, Language]]:
        """Functions that are compiled for a GPU, and in which language, by name."""
        found: dict[str, tuple[ast.FunctionDef, Language]] = {}
        given = {
            node.args[0].id: made
            for node in self._nodes
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name)
            if (made := self._made_by(node.func)) is not None
        }
        for node in self._nodes:
            if isinstance(node, ast.FunctionDef):
                made = next(filter(None, map(self._made_by, node.decorator_list)), given.get(node.name))
                if made is not None:
                    found[node.name] = node, made
        return found

    def _made_by(self, node: ast.expr) -> Language | None:
        """Return the language of the kernels that a decorator makes; None if it makes none."""
        if isinstance(node, ast.Call):
            return self._made_by(node.func)
        return _DECORATORS.get(self._whole(node))

    def _whole(self, node: ast.expr) -> str:
        """Return the dotted name of an attribute of an import; a name that begins with a dot is none."""
        if isinstance(node, ast.Attribute):
            return f"{self._whole(node.value)}.{node.attr}"
        return self._modules.get(node.id, "") if isinstance(node, ast.Name) else ""

    @cached_property
    def _of_python(self) -> list[SourceKernel]:
        helpers = {
            word.id
            for name, (function, _) in self._jitted.items()
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
            SourceKernel(name, function.lineno, language)
            for name, (function, language) in self._jitted.items()
            if name not in helpers and (name in launched or name not in given)
        ]

    @cached_property
    def _of_cuda(self) -> list[SourceKernel]:
        found = []
        for line, text in self._strings:
            for name, at in global_functions(text) if "__global__" in text else ():
                if _HOLE not in name:
                    found.append(SourceKernel(name, line + at - 1, "cuda"))
        return found

    @cached_property
    def _strings(self) -> list[tuple[int, str]]:
        """Strings that may be sources, each with its line: no docstrings; f-strings with holes."""
        said = {
            id(node.value) for node in self._nodes if isinstance(node, ast.Expr)
        }  # for whoever reads the file
        parts = {id(part) for node in self._nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        found = []
        for node in self._nodes:
            if id(node) in said | parts:
                continue
            if isinstance(node, ast.JoinedStr):
                texts = (str(p.value) if isinstance(p, ast.Constant) else _HOLE for p in node.values)
                found.append((node.lineno, "".join(texts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((node.lineno, node.value))
        return found


def kernel_file(source: str) -> KernelFile | None:
    """Parse a file; None if the source is not Python."""
    try:
        return KernelFile(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
