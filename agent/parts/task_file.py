"""The file of a part: a task in KernelBench format, made of the reference's own text.

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Block(256, 8)

        def forward(self, x):
            return self.part(x)

Where it is not known how the submodule was constructed, it is taken out of the whole:
`self.part = Whole(1000, 256, 8).blocks[0]`.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.agent.builtin.frontend.reference import needed
from kernelwright.kernelbench.parsing import parsed

_INPUTS = ("get_inputs", "get_init_inputs")


@dataclass(frozen=True)
class PartModel:
    """`Model` of a part. `definitions`: the code that its constructor needs."""

    definitions: str
    part: str  # "Block(256, 8)"

    def source(self, title: str, arguments: Sequence[str], call: str, inputs: Sequence[str]) -> str:
        """Return the file. `call`: "({}, mask={})", with a place for each of the `arguments`."""
        torch = [] if re.search(r"^import torch$", self.definitions, re.MULTILINE) else ["import torch"]
        future = [line for line in self.definitions.splitlines() if line.startswith("from __future__")]
        rest = [line for line in self.definitions.splitlines() if not line.startswith("from __future__")]
        lines = [
            f'"""{title}"""',
            "",
            *future,
            *torch,
            *rest,
            "",
            "",
            "class Model(torch.nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            f"        self.part = {self.part}",
            "",
            f"    def forward(self, {', '.join(arguments)}):",
            f"        return self.part{call.format(*arguments)}",
            "",
            "",
            "def get_inputs():",
            f"    return [{', '.join(inputs)}]",
            "",
            "",
            "def get_init_inputs():",
            "    return []",
        ]
        return "\n".join(lines) + "\n"


def constructed(source: str, expression: str, names: set[str]) -> PartModel:
    """Return the model that constructs a submodule by itself. `names`: the classes that it needs."""
    return PartModel(needed(source, names), expression)


def taken_out(source: str, arguments: Sequence[str] | None, access: str) -> PartModel:
    """Return the model that constructs the whole and keeps a submodule.

    `arguments`: of the whole's constructor; None: as get_init_inputs gives them. `access`: ".blocks[0]"; of
    several consecutive ones ".blocks[0:3]".
    """
    tree = parsed(source)
    name = next(name for name in ("Whole", "WholeModel", "WholeReference") if name not in source)
    kept = [node for node in tree.body if not _is_docstring(node)]
    dropped = _INPUTS if arguments is not None else _INPUTS[:1]
    kept = [node for node in kept if not (isinstance(node, ast.FunctionDef) and node.name in dropped)]
    text = re.sub(r"\bModel\b", name, _text(source, tree, kept))
    text = re.sub(r"\bget_init_inputs\b", "whole_init_inputs", text)
    given = ", ".join(arguments) if arguments is not None else "*whole_init_inputs()"
    part = f"{name}({given}){access}"
    if access.endswith("]") and ":" in access:
        part = f"torch.nn.Sequential(*{part})"  # whose children are counted from 0
    return PartModel(text, part)


def _text(source: str, tree: ast.Module, kept: Sequence[ast.stmt]) -> str:
    """Return the source without the statements that are not kept; comments stay with what follows them."""
    lines = source.removeprefix("\ufeff").splitlines()
    for node in reversed(tree.body):
        if node not in kept:
            decorators = getattr(node, "decorator_list", [])
            start = decorators[0].lineno if decorators else node.lineno
            del lines[start - 1 : node.end_lineno]
    return re.sub(r"\n{3,}", "\n\n\n", "\n".join(lines).strip())


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
