"""Operator families of a task's reference, read off its source without running it."""

import ast
from collections.abc import Iterator
from functools import cache

from kernelwright.kernelbench.parsing import parsed
from kernelwright.kernelbench.records import Task

# By the first fragment that is found in the name of a module, function or method.
_FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("attention",)),
    ("convolution", ("conv",)),
    ("recurrence", ("lstm", "gru", "rnn", "cumsum", "cumprod", "logcumsumexp", "cummax")),
    ("normalization", ("layer_norm", "layernorm", "batch_norm", "batchnorm", "group_norm", "groupnorm",
                       "instance_norm", "instancenorm", "rms_norm", "rmsnorm", "normalize")),
    ("softmax", ("softmax", "softmin", "logsumexp")),
    ("pooling", ("pool",)),
    ("loss", ("loss", "cross_entropy", "kl_div", "nll")),
    ("embedding", ("embedding", "gather", "scatter", "index_select", "index_add", "take_along")),
    ("product", ("linear", "matmul", "bmm", "einsum", "addmm", "baddbmm", "tensordot", "mm", "outer")),
    ("sorting", ("argmax", "argmin", "argsort", "topk", "sort", "median", "kthvalue")),
)  # fmt: skip
_REDUCTIONS = frozenset(
    (
        "sum",
        "vector_norm",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "prod",
        "var",
        "std",
        "var_mean",
        "aminmax",
    )
)
FAMILIES = (*(family for family, _ in _FAMILIES), "reduction", "pointwise")  # all that there are
_WHOLE = frozenset(("mm", "outer", "sort", "median", "nll"))  # fragments of many other names


_INPUTS = frozenset(("get_inputs", "get_init_inputs"))


@cache
def _families(source: str) -> frozenset[str]:
    names, reduced = set(), set()
    for node in _work(parsed(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names.add(node.func.attr.lower())
            reduced.add(node.func.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names.add(node.func.id.lower())
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            names.add("matmul")
    found = {family for name in names if (family := _family_of(name)) is not None}
    found |= {"reduction"} if reduced & _REDUCTIONS else set()
    return frozenset(found or {"pointwise"})


def _work(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those of functions that make inputs, and of weight initialization."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef) and child.name in _INPUTS:
            continue
        if isinstance(child, ast.Attribute) and child.attr == "init":
            continue
        yield child
        yield from _work(child)


def _family_of(name: str) -> str | None:
    matches = (
        family
        for family, fragments in _FAMILIES
        if any(name == part if part in _WHOLE else part in name for part in fragments)
    )
    return next(matches, None)


def operator_families(task: Task) -> frozenset[str]:
    """Return the families of a task's operators, such as convolution; "pointwise" if there are no others."""
    return _families(task.source)
