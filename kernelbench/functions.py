"""Functions that compute what a reference does, as files with a ModelNew that calls them."""

import ast
import re

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.parsing import parsed


def with_module(source: str, function: str | None, name: str) -> str:
    """Return the text of a file with a ModelNew that calls a function of it, if it has no ModelNew.

    Without a `function` it is the one that the file has beside its kernels; a file with none, or with
    several, comes back as it is. Raises UsageError if it has no such function, or is no Python.
    """
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if function is None:
            return source  # a build error, of which the evaluator says more
        raise UsageError(f"{name} is no Python", "give a Python file") from None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if function is not None:
        if function not in [node.name for node in functions]:
            names = ", ".join(node.name for node in functions) or "none"
            raise UsageError(f"{name} defines no function {function}", f"its functions are: {names}")
        chosen = function
    else:
        public = [node.name for node in functions if not node.decorator_list and node.name[0] != "_"]
        if "ModelNew" in source or len(public) != 1:
            return source
        [chosen] = public
    return f"{source.rstrip()}\n{_MODULE.format(function=chosen)}"


_MODULE = """

import torch as _torch


class ModelNew(_torch.nn.Module):
    \"\"\"Module that calls `{function}`, as the reference's forward is called.\"\"\"

    def __init__(self, *arguments, **keywords):
        super().__init__()

    def forward(self, *inputs, **keywords):
        return {function}(*inputs, **keywords)
"""


def wrapped_function(source: str) -> ast.FunctionDef | None:
    """Return the function that `with_module` gave a ModelNew; None for other files."""
    called = re.search(r"return (\w+)\(\*inputs, \*\*keywords\)\n\Z", source)
    if called is None or not source.endswith(_MODULE.format(function=called[1])):
        return None
    body = parsed(source).body
    return [node for node in body if isinstance(node, ast.FunctionDef) and node.name == called[1]][-1]
