"""What kinds of operators a task's reference is made of, read off its source without running it."""

import ast
from functools import cache

from kernelbench.records import Task

# By the first fragment that is found in the name of a module, function or method.
_FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("attention",)),
    ("convolution", ("conv",)),
    ("recurrence", ("lstm", "gru", "rnn", "cumsum", "cumprod", "logcumsumexp", "cummax")),
    ("normalization", ("norm", "instance_norm")),
    ("softmax", ("softmax", "softmin", "logsumexp")),
    ("pooling", ("pool",)),
    ("loss", ("loss", "cross_entropy", "kl_div", "nll")),
    ("embedding", ("embedding", "gather", "scatter", "index_select", "index_add", "take_along")),
    ("product", ("linear", "matmul", "bmm", "einsum", "addmm", "baddbmm", "tensordot", "mm", "outer")),
    ("sorting", ("argmax", "argmin", "topk", "sort", "median", "kthvalue")),
)  # fmt: skip
_REDUCTIONS = frozenset(
    ("sum", "mean", "amax", "amin", "max", "min", "prod", "var", "std", "var_mean", "aminmax")
)
_WHOLE = frozenset(("mm", "outer", "sort", "median", "nll"))  # fragments of many other names


@cache
def _families(source: str) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            names.add(name.lower())
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            names.add("matmul")
    found = {family for name in names if (family := _family_of(name)) is not None}
    return frozenset(found or {"pointwise"})


def _family_of(name: str) -> str | None:
    for family, fragments in _FAMILIES:
        if any(name == part if part in _WHOLE else part in name for part in fragments):
            return family
    return "reduction" if name in _REDUCTIONS else None


def operator_families(task: Task) -> frozenset[str]:
    """Of convolution, product, normalization, reduction, …; "pointwise" where it has none of these."""
    return _families(task.source)
