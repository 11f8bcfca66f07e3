"""Similarity of two sources: the Jaccard index of their shingles, without own names and numbers.

A shingle is five tokens in a row, after Broder (1997). Comments, docstrings, layout, annotations, the names
of variables, and all numbers are ignored; called functions and operators count. The index is computed, not
estimated by MinHash: sources are compared with those of a few thousand tasks, not of a web crawl.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Self, TypeVar

import xxhash

from kernelwright.kernelbench.parsing import parsed

ALIKE = 0.8  # from which on two sources count as near-duplicates
_WIDTH = 5
_NATIVE = re.compile(r'extern\s+"C"|__global__|#include|#pragma')
_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*(?:[eE][+-]?\d+)?\w*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\S")
_DEFINED = re.compile(r"[\w>&*]\s+[*&]*(\w+)\s*\([^;{}()]*\)\s*\{")
# Of C++ and CUDA, that mean the same in every kernel.
_KEYWORDS = frozenset(
    "alignas auto bool break case char class const constexpr continue default delete do double else "
    "enum extern false float for goto half if inline int long namespace new nullptr operator private "
    "public register restrict return short signed sizeof static struct switch template this true "
    "typedef typename union unsigned using void volatile while std size_t int8_t int16_t int32_t "
    "int64_t uint8_t uint16_t uint32_t uint64_t __restrict__ __global__ __device__ __host__ "
    "__shared__ __constant__ __forceinline__ threadIdx blockIdx blockDim gridDim".split()
)
_NAME = "_"
_NUMBER = "0"
_BUILDERS = frozenset(("compile_cpp", "compile_cuda", "load_inline", "RawModule"))
_INPUTS = frozenset(("get_inputs", "get_init_inputs"))

Shingles = frozenset[int]
K = TypeVar("K")


@lru_cache(maxsize=4_000)
def shingles(source: str) -> Shingles:
    """Return the shingles of a candidate's source, or of any text."""
    return _shingled(list(_tokens(source)))


@lru_cache(maxsize=4_000)
def reference_shingles(source: str) -> Shingles:
    """Return the shingles of a task's reference: function bodies, without those that make inputs."""
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return shingles(source)
    bodies = [
        statement
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name not in _INPUTS
        for statement in node.body
        if not _is_super_init(statement)
    ]
    return _shingled(list(_of_tree(ast.Module(body=bodies, type_ignores=[]), _Own.of(tree))))


def likeness(one: Shingles, other: Shingles, at_least: float = 0.0) -> float:
    """Return the Jaccard index, from 0 to 1; 0.0 if it is below `at_least`, often without counting."""
    smaller, larger = sorted((len(one), len(other)))
    if larger == 0 or smaller < at_least * larger:
        return 0.0
    common = len(one & other)
    found = common / (smaller + larger - common)
    return found if found >= at_least else 0.0


def nearest(
    wanted: Shingles, others: Iterable[tuple[K, Shingles]], at_least: float = ALIKE
) -> list[tuple[K, float]]:
    """Return those at least this similar, the most similar first; equal ones in their order."""
    found = [(key, likeness(wanted, other, at_least)) for key, other in others]
    return sorted((pair for pair in found if pair[1] > 0), key=lambda pair: -pair[1])


def _shingled(tokens: list[str]) -> Shingles:
    width = min(_WIDTH, len(tokens))
    if width == 0:
        return frozenset()
    rows = (" ".join(tokens[i : i + width]) for i in range(len(tokens) - width + 1))
    return frozenset(xxhash.xxh64_intdigest(row.encode(errors="replace")) for row in rows)


def _tokens(source: str) -> Iterator[str]:
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _native_tokens(source)
    return _of_tree(tree, _Own.of(tree))


@dataclass(frozen=True)
class _Own:
    """Names that a file gives to its own variables, functions and classes."""

    names: frozenset[str]
    attributes: frozenset[str]  # of self
    libraries: frozenset[str]  # what holds kernels, whose functions are the file's own

    @classmethod
    def of(cls, tree: ast.AST) -> Self:
        names, attributes, libraries = set(), set(), set()
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                attributes.add(node.attr)
            if isinstance(node, ast.Assign) and _builds(node.value):
                libraries |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        return cls(frozenset(names), frozenset(attributes), frozenset(libraries))


def _builds(node: ast.expr) -> bool:
    """Return True if a call builds a library of kernels."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _BUILDERS


def _of_tree(tree: ast.Module, own: _Own) -> Iterator[str]:
    """Yield the tokens of Python, with strings that hold kernels replaced by the kernels' tokens."""
    plain = _Plain(own)
    text = ast.unparse(ast.fix_missing_locations(plain.visit(tree)))
    for token in _TOKEN.findall(text):
        if (kernel := plain.kernels.get(token.strip("'\""))) is not None:
            yield from _native_tokens(kernel)
        elif token[0].isdigit():
            yield _NUMBER
        else:
            yield token


def _native_tokens(text: str) -> Iterator[str]:
    """Yield tokens of C++ or CUDA; names are kept if called but not defined here, or in a directive."""
    text = _COMMENTS.sub(" ", text)
    defined = set(_DEFINED.findall(text))
    for line in text.splitlines():
        tokens = _TOKEN.findall(line)
        directive = bool(tokens) and tokens[0] == "#"
        for token, following in zip_longest(tokens, tokens[1:]):
            if token[0].isdigit():
                yield _NUMBER
            elif not (token[0].isalpha() or token[0] == "_") or directive or token in _KEYWORDS:
                yield token
            else:
                yield token if following in ("(", "::") and token not in defined else _NAME


def _is_super_init(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith("super(")


class _Plain(ast.NodeTransformer):
    """Transformer that removes what is ignored. `kernels`: their sources, by placeholder."""

    def __init__(self, own: _Own) -> None:
        self._own = own
        self.kernels: dict[str, str] = {}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(_NAME, node.ctx), node) if node.id in self._own.names else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        of = node.value.id if isinstance(node.value, ast.Name) else ""
        own = of in self._own.libraries or (of == "self" and node.attr in self._own.attributes)
        self.generic_visit(node)
        return ast.copy_location(ast.Attribute(node.value, _NAME, node.ctx), node) if own else node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.copy_location(ast.arg(_NAME, None), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node = ast.FunctionDef(**{**dict(ast.iter_fields(node)), "name": _NAME, "returns": None})
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node = ast.ClassDef(**{**dict(ast.iter_fields(node)), "name": _NAME})
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and _NATIVE.search(node.value):
            word = f"kernel_{len(self.kernels)}"
            self.kernels[word] = node.value
            return ast.copy_location(ast.Constant(word), node)
        return node
