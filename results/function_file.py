"""A file that defines the function of a seed again, by the best kernel beside it.

    def softmax(x, axis=-1, block=1024): ...     # the seed, softmax.py:softmax
    best/file_softmax.py                         # the best kernel, a ModelNew
    best/file_softmax.function.py                # def softmax(x, axis=-1, block=1024), which calls it

Arguments that the task does not give have to be left at their defaults: for others no kernel was verified.
"""

import ast

from kernelwright.kernelbench.functions import wrapped_function
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.kernelbench.sources import number_of_inputs
from kernelwright.kernelbench.sources.formats.carrying import CarriedCode, carried

_FILE = '''"""The function {name}, by the kernel in {slug}.py beside this file."""

import functools
import importlib.util
from pathlib import Path

import torch
{imports}
_spec = importlib.util.spec_from_file_location("{slug}", Path(__file__).with_name("{slug}.py"))
_kernel = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_kernel)
{code}

@functools.cache
def _module(device):
    with torch.device(device):
        module = _kernel.ModelNew(**_INIT) if isinstance(_INIT, dict) else _kernel.ModelNew(*_INIT)
    if next(module.parameters(), None) is not None:
        raise TypeError("{slug}.py has weights of its own: load them into its ModelNew, and call that")
    return module.to(device)


def _called(*inputs):
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    return _module(tensors[0].device if tensors else torch.get_default_device())(*inputs)


def {name}({signature}):
    """Return what the kernel makes of the inputs of the task {task}."""
{held}    return _called({inputs})
'''
_HELD = """\
    if {name} != {default}:
        raise ValueError("{name} has to be " + repr({default}) + ", with which the kernel was verified")
"""


def function_text(seed: Candidate, task: Task) -> str | None:
    """Return the file for a task whose seed was a function; None for other seeds."""
    function = wrapped_function(seed.source)
    if function is None:
        return None
    arguments = function.args
    plain = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    given = number_of_inputs(task.source, task.id)
    passed = plain[:given]
    inputs = [*passed, f"*{arguments.vararg.arg}"] if arguments.vararg is not None else passed
    defaults = dict(zip(plain[::-1], arguments.defaults[::-1], strict=False))
    held = {name: defaults[name] for name in plain[len(passed) :] if name in defaults}
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    held |= {each.arg: default for each, default in pairs if default is not None}
    init, ours = carried(task.source, task.id, ["get_init_inputs"]), _defaults(seed.source, arguments)
    imports = dict.fromkeys(line for line in (*init.imports, *ours.imports) if "__future__" not in line)
    drawn = "_INIT = get_init_inputs()" if "get_init_inputs" in init.names else "_INIT = []"
    code = "\n\n\n".join(filter(None, [init.code, drawn, ours.code]))
    return _FILE.format(
        name=function.name,
        slug=task.slug,
        task=task.id,
        imports="".join(f"{line}\n" for line in imports if line != "import torch"),
        code=f"\n\n{code}\n",
        signature=ast.unparse(_bare(arguments)),
        held="".join(_HELD.format(name=name, default=ast.unparse(value)) for name, value in held.items()),
        inputs=", ".join(inputs),
    )


def _defaults(source: str, arguments: ast.arguments) -> CarriedCode:
    """Return what the defaults of a signature need of their file."""
    values = [each for each in (*arguments.defaults, *arguments.kw_defaults) if each is not None]
    names = {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}
    return carried(source, "the seed", sorted(names))


def _bare(arguments: ast.arguments) -> ast.arguments:
    """Return a signature without its annotations, which may name what this file does not have."""
    copy = ast.parse(f"def f({ast.unparse(arguments)}): ...").body[0]
    assert isinstance(copy, ast.FunctionDef)
    for node in ast.walk(copy.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    return copy.args
