"""The Python side of a candidate: torch calls and kernel launches in order."""

from __future__ import annotations

import keyword
import math
import re
import textwrap
from collections.abc import Sequence, Set
from types import MappingProxyType

from kernelwright.agent.builtin.codegen.naming import unique
from kernelwright.agent.builtin.ir.graph import ROW_BLOCKS, SUBMODULE, Arg, DType, Input, Meta, Node, Ref
from kernelwright.agent.builtin.ir.library import CALLS, FUNCTIONAL
from kernelwright.agent.builtin.ir.names import attribute, number
from kernelwright.agent.builtin.ir.program import Program, View
from kernelwright.agent.builtin.ir.text import HALVES
from kernelwright.kernelbench.free_sizes.size import Limits, is_free

SAME = {"clone", "alias", "detach", "lift_fresh_copy", "dropout"}
_LONGEST_LIST = 80  # characters of a line
METHODS = {"unsqueeze", "expand", "permute", "transpose", "t", "select", "contiguous"}
BLOCK = "block_of_rows"  # a function of the file, that a loop calls
CPU = '"cpu"'  # a device, as candidates name it


class HostCode:
    """Collects the lines of `forward` and the names that values have in it."""

    def __init__(self, program: Program, taken: set[str], placement: str = CPU, inner: bool = False) -> None:
        """Begin the host code of a file.

        `taken`: names of the file, to which those used here are added; `placement`: the device of new
        tensors, which are never left to torch's default, for a caller may have set another; `inner`: another
        function of the file is the caller, so that nothing is checked.
        """
        self.program = program
        self.inner = inner
        self.placement = placement
        self.lines: list[str] = []
        self.names: dict[str, str] = {}
        self.taken = taken
        taken |= {"self", "torch", "F", "nn", "lib", "jit", "checked", "indices", "number"}
        self.inputs = {i.name: i for i in program.graph.inputs}
        self.nodes = {n.name: n for n in program.graph.nodes}
        self.taken_apart = {name for n in program.graph.nodes if n.op == "getitem" for name in n.inputs}
        self.metas = program.graph.metas()
        self.constants: list[tuple[str, str]] = []
        self.called: set[str] = set()  # of "checked", "indices" and "F"
        self.lists: dict[str, int] = {}  # lists of tensors, with how many they hold

    def fresh(self, name: str) -> str:
        text = re.sub(r"\W", "_", name)
        while text in self.taken or keyword.iskeyword(text):
            text += "_"
        self.taken.add(text)
        return text

    def start(self, part: bool = False, limits: Limits = MappingProxyType({})) -> None:
        """Write checks of the arguments; constants for their shapes, and for tensors the forward writes out.

        Of a part that is called with other arguments than it was traced with, the module's own forward runs.
        """
        graph = self.program.graph
        wrong, refused, taken = [], [], []
        for name, value in graph.fixed.items():
            wrong.append(f"{name} != {value}")
            refused.append(f"if {name} != {value}:")
            refused.append(f'    raise ValueError("these kernels are built for {name}={value}")')
        self.taken |= set(graph.free)
        known: set[str] = set()  # the free sizes that a line above has read
        users = [item for item in graph.inputs if item.kind == "user"]
        for item in sorted(users, key=lambda item: not _holds_names(item.meta.shape)):
            name, dtype = item.target, f"torch.{item.meta.dtype}"
            self.taken.add(name)
            self.names[item.name] = name
            shape, lengths = _as_checked(item.meta.shape, known)
            named = shape.count('"') // 2
            if not known & set(re.findall(r"\w+", shape)):
                constant = self.fresh(f"{name.upper()}_SHAPE")
                self.constants.append((constant, shape))
                shape = constant
            wrong.append(f"{name}.shape != {shape} or {name}.dtype != {dtype}")
            lying = f"{name}.permute({_listed(item.order)})" if item.order else name
            refused.append(f'{name} = checked("{lying}", {lying}, {shape}, {dtype})')
            taken.append(f"{name} = {name}.contiguous()")
            if lengths:
                read = ", ".join(f"{name}.shape[{axis}]" for axis in lengths.values())
                refused.append(f"{', '.join(lengths)} = {read}")
                known |= lengths.keys()
            if len(lengths) < named:  # one is the length of two axes
                refused.append(f'{name} = checked("{name}", {name}, {item.meta.shape!r}, {dtype})')
        for name, (least, most) in limits.items():
            outside = f"not {least} <= {name} <= {most}" if most is not None else f"{name} < {least}"
            said = f"from {least} to {most}" if most is not None else f"at least {least}"
            refused.append(f"if {outside}:")
            refused.append(f'    raise ValueError(f"{name} must be {said}, got {{{name}}}")')
        if part:
            given = ", ".join(("self", *graph.arguments))
            self.lines += [f"if {' or '.join(wrong)}:", f"    return type(self).forward({given})", *taken]
        elif self.inner:
            self.lines += [line for line in refused if "checked(" not in line]
            self.constants.clear()
        else:
            self.lines += refused
            self.called |= {"checked"} if taken else set()
        for item in graph.inputs:
            if item.kind == "literal" and len(item.values) != 1:
                self.names[item.name] = self.literal(item)

    def literal(self, item: Input) -> str:
        """Return the name of a tensor that the forward writes out."""
        name = self.fresh(item.target.upper())
        values = ", ".join(number(v) for v in item.values)
        tensor = f"torch.tensor([{values}], dtype=torch.{item.meta.dtype}, device={CPU})"
        self.constants.append((name, f"{tensor}.reshape({item.meta.shape!r})"))
        if self.placement == CPU:
            return name
        moved = self.fresh(item.target)
        self.lines.append(f"{moved} = {name}.to({self.placement})")
        return moved

    def value(self, name: str) -> str:
        """Python name of a graph value, defined on first use."""
        if name in self.names:
            return self.names[name]
        if name in self.inputs and self.inputs[name].kind == "literal":
            self.names[name] = self.literal(self.inputs[name])
            return self.names[name]
        if name in self.inputs:
            text = attribute(self.inputs[name].target)
            self.names[name] = text
            if not self.inputs[name].meta.contiguous:
                self.names[name] = self.fresh(name)
                self.lines.append(f"{self.names[name]} = {text}.contiguous()")
            return self.names[name]
        view = self.program.views.get(name)
        if isinstance(view, View) and view.base != name and view.base not in self.inputs and self.whole(view):
            source = self.value(view.base)
            if view.shape == self.program.shapes[view.base]:
                return source
            self.names[name] = self.fresh(name)
            self.lines.append(f"{self.names[name]} = {source}.view({view.shape!r})")
            return self.names[name]
        node = self.program.view_nodes[name]
        short = node.operator
        if short in SAME:
            original = node.args[0]
            assert isinstance(original, Ref)
            if short != "clone" or not self.is_of_an_input(original.ref):
                self.names[name] = self.value(original.ref)
                return self.names[name]
        text = self.call(node)
        self.names[name] = self.fresh(name)
        self.lines.append(f"{self.names[name]} = {text}")
        return self.names[name]

    def is_of_an_input(self, name: str) -> bool:
        """Return True for an input, and for a view of one: of its memory."""
        view = self.program.views.get(name)
        return name in self.inputs or (isinstance(view, View) and view.base in self.inputs)

    def whole(self, view: View) -> bool:
        return view.linear and view.numel == math.prod(self.program.shapes[view.base])

    def call(self, node: Node) -> str:
        """Return the torch call of a node."""
        if node.op == SUBMODULE:
            return self.submodule(node)
        if node.op == "getitem":
            source, index = node.args
            assert isinstance(source, Ref) and isinstance(index, int)
            return self.item(source.ref, index, node.meta)
        if node.op == "indices":
            self.called.add("indices")
            return f"indices({', '.join(self.argument(a) for a in node.args)})"
        _, short, overload = node.op.split(".")
        if short in METHODS and isinstance(node.args[0], Ref):
            plain = node.args[1] if short == "permute" else node.args[1:]
            rest = ", ".join(self.argument(a) for a in (plain if isinstance(plain, tuple) else (plain,)))
            return f"{self.value(node.args[0].ref)}.{short}({rest})"
        if short in ("view", "_unsafe_view", "reshape") and isinstance(node.args[0], Ref):
            sizes = node.args[1]
            assert isinstance(sizes, tuple)
            return f"{self.value(node.args[0].ref)}.reshape({_listed(sizes)})"  # type: ignore[arg-type]
        function = CALLS.get(short) or f"torch.ops.aten.{short}.{overload}"
        self.called |= {"F"} if short in FUNCTIONAL else set()
        named = {k: a for k, a in node.kwargs.items() if node.inputs or k != "dtype" or a is not None}
        if not node.inputs:  # it makes a tensor, of torch's default dtype and device where none is named
            named.setdefault("dtype", DType(dtype=node.meta.dtype))
        arguments = [self.argument(a) for a in node.args]
        arguments += [f"{k}={self.argument(a)}" for k, a in named.items()]
        if not node.inputs:
            arguments.append(f"device={self.placement}")
        return f"{function}({', '.join(arguments)})"

    def argument(self, arg: Arg) -> str:
        if isinstance(arg, Ref):
            return self.value(arg.ref)
        if isinstance(arg, DType):
            return f"torch.{arg.dtype}"
        if isinstance(arg, tuple):
            return "[" + ", ".join(self.argument(a) for a in arg) + "]"
        return number(arg) if isinstance(arg, float) else repr(arg)

    def item(self, name: str, index: int, meta: Meta) -> str:
        """One of several results."""
        node, text = self.nodes[name], self.value(name)
        if node.op != SUBMODULE:
            return f"{text}[{index}]"
        _, places, _ = node.args
        assert isinstance(places, tuple)
        text += str(places[index])
        self.called.add("checked")
        return f'checked("{text}", {text}, {meta.shape!r}, torch.{meta.dtype})'

    def is_checked(self, node: Node) -> bool:
        """Return True for a result of a submodule, which `checked` makes contiguous."""
        return node.op == "getitem" and any(self.nodes[name].op == SUBMODULE for name in node.inputs)

    def submodule(self, node: Node) -> str:
        """Return the call of a submodule that is left to torch."""
        text, _, tensors = node.args
        assert isinstance(text, str) and isinstance(tensors, tuple)
        return text.format(*(self.as_in_the_reference(t.ref) for t in tensors if isinstance(t, Ref)))

    def as_in_the_reference(self, name: str) -> str:
        """Return a value that lies in memory as it does there: code that is not known may ask for that."""
        text, view, meta = self.value(name), self.program.views.get(name), self.metas[name]
        if meta.contiguous:
            return text if isinstance(view, View) and view.linear else f"{text}.contiguous()"
        if (isinstance(view, View) and view.strides == meta.strides) or 0 in meta.strides:
            return text
        return f"{text}.new_empty_strided({meta.shape!r}, {meta.strides!r}).copy_({text})"

    def library(self, name: str, node: Node, order: tuple[int, ...] = ()) -> None:
        if node.op == ROW_BLOCKS:
            self.row_blocks(node)
            return
        if node.op == "getitem" and name in self.names:  # of a loop
            return
        call = self.call(node)
        if node.op == SUBMODULE:
            path = call.partition("(")[0].removeprefix("self.")
            if name in self.taken_apart:
                self.names[name] = unique(re.sub(r"\W+", "_", path).strip("_"), self.taken)
                call = f"{self.names[name]} = {call}"
            self.lines.append(call)
            return
        self.names[name] = self.fresh(name)
        if order:
            self.lines.append(f"{self.names[name]} = {call}.permute({_listed(order)}).contiguous()")
            return
        contiguous = len(node.outputs) > 1 or node.meta.contiguous or self.is_checked(node)
        self.lines.append(f"{self.names[name]} = {call}{'' if contiguous else '.contiguous()'}")

    def row_blocks(self, node: Node) -> None:
        """Write a loop over blocks of rows, and name its results."""
        by_rows, whole, kinds, step, rows = node.args
        assert isinstance(by_rows, tuple) and isinstance(whole, tuple) and isinstance(kinds, tuple)
        results = self.items_of(node.name)
        first, last = self.fresh("first"), self.fresh("last")
        given = [f"{self.argument(ref)}[{first}:{last}]" for ref in by_rows]
        given += [self.argument(ref) for ref in whole]
        made, added = [], []
        for name, kind in zip(results, kinds, strict=True):
            meta = self.metas[name]
            total = self.names[name] = self.fresh(name)
            dtype = meta.dtype if kind == "rows" or meta.dtype not in HALVES else "float32"
            new = "empty" if kind == "rows" else "zeros"
            self.lines.append(
                f"{total} = torch.{new}({meta.shape!r}, dtype=torch.{dtype}, device={self.placement})"
            )
            if kind == "into":  # the function adds to it
                given.append(total)
                made.append("_")
                continue
            part = self.fresh(f"{name}_part")
            made.append(part)
            added.append(f"{total}[{first}:{last}] = {part}" if kind == "rows" else f"{total} += {part}")
        self.lines.append(f"for {first} in range(0, {rows}, {step}):")
        body = [f"{last} = min({first} + {step}, {rows})"]
        body.append(f"{', '.join(made)}{',' * (len(made) == 1)} = {BLOCK}({', '.join(given)})")
        self.lines += [f"    {line}" for line in (*body, *added)]
        for name, kind in zip(results, kinds, strict=True):
            if kind == "sum" and self.metas[name].dtype in HALVES:
                total = self.names[name]
                self.lines.append(f"{total} = {total}.to(torch.{self.metas[name].dtype})")

    def items_of(self, name: str) -> list[str]:
        """Return the names of a call's results, in their order."""
        found: dict[int, str] = {}
        for node in self.program.graph.nodes:
            if node.op == "getitem" and name in node.inputs and isinstance(node.args[1], int):
                found[node.args[1]] = node.name
        return [found[place] for place in sorted(found)]

    def allocated(self, name: str) -> str:
        """Name of a new tensor, allocated when it is first asked for."""
        if name not in self.names:
            self.names[name] = self.fresh(name)
            self.lines.append(f"{self.names[name]} = {self.new(name)}")
        return self.names[name]

    def allocated_each(self, names: Sequence[str]) -> str:
        """Return the name of a list of new tensors."""
        each = self.fresh(f"{names[0]}_each")
        self.lines.append(f"{each} = [{self.new(names[0])} for _ in range({len(names)})]")
        self.lists[each] = len(names)
        self.names.update((name, f"{each}[{number}]") for number, name in enumerate(names))
        return each

    def new(self, name: str) -> str:
        shape, dtype = self.program.shapes[name], self.program.dtypes[name]
        return f"torch.empty({shape!r}, dtype=torch.{dtype}, device={self.placement})"

    def listed(self, values: Sequence[str]) -> str:
        """Return a list of values, which has a name where it is long."""
        whole = values[0].removesuffix("[0]") if values else ""
        if values and all(value == f"{whole}[{number}]" for number, value in enumerate(values)):
            if self.lists.get(whole) == len(values):
                return whole
            return f"[{whole}[number] for number in range({len(values)})]"
        text = f"[{', '.join(values)}]"
        if len(text) <= _LONGEST_LIST:
            return text
        name = self.fresh("each")
        lines = textwrap.wrap(text[1:-1], _LONGEST_LIST, initial_indent="    ", subsequent_indent="    ")
        self.lines += [f"{name} = [", *lines, "]"]
        return name

    def finish(self) -> None:
        graph = self.program.graph
        for mutation in graph.mutations:
            target = attribute(mutation.buffer)
            self.lines.append(f"{target}.copy_({self.value(mutation.value)})")
        texts = [self.value(name) for name in graph.outputs]
        if graph.structure == "tensor":
            self.lines.append(f"return {texts[0]}")
        elif graph.structure == "list":
            self.lines.append(f"return {self.listed(texts)}")
        elif len(texts) == 1:
            self.lines.append(f"return {texts[0]},")
        else:
            whole = self.listed(texts)
            written_out = texts and whole == f"[{', '.join(texts)}]"
            self.lines.append(f"return {whole[1:-1]}" if written_out else f"return tuple({whole})")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(repr, numbers))


def _holds_names(shape: Sequence[int]) -> bool:
    """Return True if the free sizes of a shape are each the length of an axis of it."""
    return all(repr(size).isidentifier() for size in shape if is_free(size))


def _as_checked(shape: Sequence[int], known: Set[str]) -> tuple[str, dict[str, int]]:
    """Return a shape as text, new free sizes in quotes; and the axes that these are the lengths of."""
    words: list[str] = []
    lengths: dict[str, int] = {}
    for axis, size in enumerate(shape):
        text = repr(size)
        if text.isidentifier() and text not in known:
            lengths.setdefault(text, axis)
            text = f'"{text}"'
        words.append(text)
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})", lengths


def device(program: Program) -> str:
    """Device of the first input, or else of the first weight; the CPU where there is neither."""
    for item in program.graph.inputs:
        if item.kind == "user":
            return f"{item.target}.device"
    held = [item for item in program.graph.inputs if item.kind in ("parameter", "buffer", "constant")]
    return f"{attribute(held[0].target)}.device" if held else CPU
