"""The Python side of a candidate: torch calls and kernel launches in order."""

from __future__ import annotations

import keyword
import math
import re

from agent.builtin.graph import Arg, DType, Input, Node, Ref
from agent.builtin.program import Program, View

# ATen operators with a call of the same argument order that reads better.
CALLS = {
    **{
        n: f"F.{n}"
        for n in [
            "linear",
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
        ]
    },
    **{n: f"torch.{n}" for n in ("matmul mm bmm addmm baddbmm cat stack cumsum cumprod einsum").split()},
}
# Operators whose result is new memory that nobody else holds.
FRESH = set(CALLS) | {"max_pool2d", "avg_pool2d", "avg_pool3d", "max_pool3d", "_scaled_dot_product_attention"}
SAME = {"clone", "alias", "detach", "lift_fresh_copy", "dropout"}
METHODS = {"unsqueeze", "expand", "permute", "transpose", "t", "select"}


class Host:
    """Collects the lines of `forward` and the names that values have in it."""

    def __init__(self, program: Program, taken: set[str]) -> None:
        self.program = program
        self.lines: list[str] = []
        self.names: dict[str, str] = {}
        self.taken = {"self", "torch", "F", "nn", "lib", "jit", "checked", *taken}
        self.inputs = {i.name: i for i in program.graph.inputs}
        self.constants: list[tuple[str, str]] = []

    def fresh(self, name: str) -> str:
        text = re.sub(r"\W", "_", name)
        while text in self.taken or keyword.iskeyword(text):
            text += "_"
        self.taken.add(text)
        return text

    def start(self, used: set[str]) -> None:
        """Checks of the arguments, named constants for their shapes."""
        for name, value in self.program.graph.fixed.items():
            self.lines.append(f"if {name} != {value}:")
            self.lines.append(f'    raise ValueError("these kernels are built for {name}={value}")')
        for item in self.program.graph.inputs:
            if item.kind != "user":
                continue
            self.taken.add(item.target)
            self.names[item.name] = item.target
            constant = f"{item.target.upper()}_SHAPE"
            self.constants.append((constant, repr(item.meta.shape)))
            target = item.target if item.name in used else "_"
            check = f'checked("{item.target}", {item.target}, {constant}, torch.{item.meta.dtype})'
            self.lines.append(f"{target} = {check}" if target != "_" else check)

    def value(self, name: str) -> str:
        """The Python name of a graph value, made on first use."""
        if name in self.names:
            return self.names[name]
        if name in self.inputs:
            text = attribute(self.inputs[name])
            self.names[name] = text
            return text
        view = self.program.views.get(name)
        if isinstance(view, View) and view.base != name and view.base not in self.inputs and self.whole(view):
            source = self.value(view.base)
            if view.shape == self.program.shapes[view.base]:
                return source
            self.names[name] = self.fresh(name)
            self.lines.append(f"{self.names[name]} = {source}.view({view.shape!r})")
            return self.names[name]
        node = self.program.view_nodes[name]
        short = node.op.split(".")[1]
        if short in SAME:
            source = node.args[0]
            assert isinstance(source, Ref)
            if short != "clone" or source.ref not in self.inputs:
                self.names[name] = self.value(source.ref)
                return self.names[name]
        text = self.call(node)
        self.names[name] = self.fresh(name)
        self.lines.append(f"{self.names[name]} = {text}")
        return self.names[name]

    def whole(self, view: View) -> bool:
        return view.linear and view.numel == math.prod(self.program.shapes[view.base])

    def call(self, node: Node) -> str:
        """The torch call of a node."""
        if node.op == "getitem":
            source, index = node.args
            assert isinstance(source, Ref)
            return f"{self.value(source.ref)}[{index}]"
        _, short, overload = node.op.split(".")
        if short in METHODS and isinstance(node.args[0], Ref):
            rest = ", ".join(self.argument(a) for a in node.args[1:])
            return f"{self.value(node.args[0].ref)}.{short}({rest})"
        if short in ("view", "_unsafe_view", "reshape") and isinstance(node.args[0], Ref):
            sizes = node.args[1]
            assert isinstance(sizes, tuple)
            return f"{self.value(node.args[0].ref)}.reshape({', '.join(map(str, sizes))})"
        function = CALLS.get(short) or f"torch.ops.aten.{short}.{overload}"
        arguments = [self.argument(a) for a in node.args]
        arguments += [f"{k}={self.argument(a)}" for k, a in node.kwargs.items()]
        return f"{function}({', '.join(arguments)})"

    def argument(self, arg: Arg) -> str:
        if isinstance(arg, Ref):
            return self.value(arg.ref)
        if isinstance(arg, DType):
            return f"torch.{arg.dtype}"
        if isinstance(arg, tuple):
            return "[" + ", ".join(self.argument(a) for a in arg) + "]"
        if isinstance(arg, float) and (arg != arg or arg in (float("inf"), -float("inf"))):
            return f'float("{arg}")'
        return repr(arg)

    def library(self, name: str, node: Node) -> None:
        call = self.call(node)
        self.names[name] = self.fresh(name)
        contiguous = all(meta.contiguous for meta in node.outputs)
        self.lines.append(f"{self.names[name]} = {call}{'' if contiguous else '.contiguous()'}")

    def allocate(self, name: str) -> str:
        shape = self.program.shapes[name]
        self.names[name] = self.fresh(name)
        dtype = self.program.dtypes[name]
        suffix = "" if dtype == "float32" else f", dtype=torch.{dtype}"
        self.lines.append(f"{self.names[name]} = torch.empty({shape!r}{suffix})")
        return self.names[name]

    def finish(self) -> None:
        graph = self.program.graph
        for mutation in graph.mutations:
            target = _attribute(mutation.buffer)
            self.lines.append(f"{target}.copy_({self.value(mutation.value)})")
        texts = [self.value(name) for name in graph.outputs]
        if graph.structure == "tensor":
            self.lines.append(f"return {texts[0]}")
        elif graph.structure == "tuple":
            self.lines.append(f"return {', '.join(texts)}{',' if len(texts) == 1 else ''}")
        else:
            self.lines.append(f"return [{', '.join(texts)}]")


def attribute(item: Input) -> str:
    """How `forward` reads a parameter, buffer or constant."""
    if item.kind == "literal":
        return f"self.{item.target}"
    return _attribute(item.target)


def _attribute(dotted: str) -> str:
    text = "self"
    for part in dotted.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text


def needed_in_python(program: Program) -> set[str]:
    """Bases that torch calls, results and buffer updates read."""
    found: set[str] = set()
    names = [*program.graph.outputs, *(m.value for m in program.graph.mutations)]
    from agent.builtin.program import Library

    for statement in program.statements:
        if isinstance(statement, Library):
            names += statement.node.inputs
    for name in names:
        view = program.views.get(name)
        if isinstance(view, View):
            found.add(view.base)
        elif view is None:
            found.add(name)
    return found
