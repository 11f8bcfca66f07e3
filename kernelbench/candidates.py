"""Candidates from files: those that define ModelNew, and functions that compute the same.

    def softmax(x): ...           # kernel.py, beside its Triton kernels

is taken as `kernel.py`, or as `kernel.py:softmax` where the file has several functions. It becomes the text
of the file with a ModelNew that calls the function with the inputs of the task, in their order.
"""

import ast
import re
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.kernels import kernel_file
from kernelwright.kernelbench.parsing import parsed
from kernelwright.kernelbench.records import Candidate, Language, Task


def language_of(source: str) -> Language:
    """Return the language of a file's kernels; "torch" if there are none, or it is not Python."""
    file = kernel_file(source)
    return "torch" if file is None else file.language


def candidate_from_file(path: Path) -> Candidate:
    """Read a candidate: FILE.py, FILE.py:FUNCTION, or a file or folder in the format of another project.

    Raises UsageError if it cannot be read.
    """
    from kernelwright.kernelbench.sources.formats import candidate_text  # which needs the evaluator's modules

    file, function = _split(path)
    if function is None and (text := candidate_text(file)) is not None:
        return Candidate(source=text, language=language_of(text), author="file")
    try:
        source = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}", "give a Python file that defines ModelNew") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text", "give a Python file that defines ModelNew") from None
    source = with_module(source, function, str(file))
    return Candidate(source=source, language=language_of(source), author="file")


def _split(path: Path) -> tuple[Path, str | None]:
    """Return the file and the function of `FILE.py:FUNCTION`, or the file and None."""
    found = re.fullmatch(r"(.+\.py):([A-Za-z_]\w*)", str(path))
    return (Path(found[1]), found[2]) if found and not path.exists() else (path, None)


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


def reference_candidate(task: Task) -> Candidate:
    """Return the reference of a task as its own candidate, whose speedup over eager is 1."""
    source = task.source.replace("class Model(", "class ModelNew(").replace("super(Model,", "super(ModelNew,")
    return Candidate(source=source, language="torch", author="reference")
