"""The graph the builtin coder works on: what a reference computes, as ATen operations on static shapes."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import ConfigDict
from typing_extensions import TypeAliasType

from kernelwright.kernelbench.free_sizes.size import FreeSize
from kernelwright.kernelbench.records import Record


class Ref(Record):
    """Another value of the graph, by name."""

    ref: str


class DType(Record):
    """A dtype as an argument: "float32", "int64", "bool"."""

    dtype: str


Arg = TypeAliasType("Arg", "bool | int | float | str | Ref | DType | tuple[Arg, ...] | None")


class Meta(Record):
    """Shape, dtype and strides (in elements) of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


SUBMODULE = "kernelwright.submodule.default"  # a call that is left to torch; args: see `submodules.py`
ROW_BLOCKS = "kernelwright.row_blocks.default"  # a loop over blocks of rows; args: see `row_blocks.py`
_RECURRENT = ("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")
# Operators that draw random numbers if this argument is not 0.
_DROPOUT = {"aten.scaled_dot_product_attention.default": 4, **dict.fromkeys(_RECURRENT, 5)}
_RANDOM = {"aten.rrelu_with_noise_functional.default"}

Structure: TypeAlias = Literal["tensor", "tuple", "list"]
Kind: TypeAlias = Literal["user", "parameter", "buffer", "constant", "literal"]


class Input(Record):
    """A tensor the graph starts from.

    `target` is the forward argument for a `user` input, the dotted attribute of the module for a
    parameter, buffer or constant attribute; a `literal` is a small tensor written in the forward itself.
    `order`: of the argument's axes as they lie in memory, which the shape here has; () for the usual order.
    """

    name: str
    kind: Kind
    target: str
    meta: Meta
    order: tuple[int, ...] = ()
    values: tuple[float, ...] = ()  # of a literal, flattened

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Node(Record):
    """One operation; `outputs` has several entries for an operation that returns a tuple."""

    name: str
    op: str  # "aten.add.Tensor", "getitem" of a tuple, `SUBMODULE` or `ROW_BLOCKS`
    args: tuple[Arg, ...]
    kwargs: dict[str, Arg]
    outputs: tuple[Meta, ...]

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    @property
    def meta(self) -> Meta:
        return self.outputs[0]

    @property
    def operator(self) -> str:
        """Name without namespace and overload: "add" of "aten.add.Tensor"."""
        return self.op.split(".")[1] if "." in self.op else self.op

    @property
    def in_turn(self) -> bool:
        """True if it must run in its turn whenever it occurs, because it draws random numbers."""
        if self.op in _DROPOUT:
            return len(self.args) > _DROPOUT[self.op] and self.args[_DROPOUT[self.op]] != 0
        return self.op == SUBMODULE or self.op in _RANDOM

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values it reads, in order, each once."""
        found: dict[str, None] = {}
        for arg in (*self.args, *self.kwargs.values()):
            for name in _refs(arg):
                found[name] = None
        return tuple(found)


class Mutation(Record):
    """A buffer that the forward overwrites with a value of the graph."""

    buffer: str  # dotted attribute
    value: str


class Graph(Record):
    """A traced reference; or, where its forward cannot be traced, parts of it that can."""

    arguments: tuple[str, ...]  # of forward, in order
    fixed: dict[str, str]  # arguments that are no tensors, with the literal the graph is specialised to
    constructor: tuple[str, ...]  # get_init_inputs() as Python literals, positional
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    mutations: tuple[Mutation, ...]
    outputs: tuple[str, ...]
    structure: Structure
    left: dict[str, str]  # submodules that are left to torch, with the reason; "" is the forward itself
    parts: dict[str, Graph]  # submodules, where the forward is left; else none

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    @classmethod
    def from_json(cls, text: str) -> Graph:
        return cls.model_validate_json(text)

    def to_json(self) -> str:
        return self.model_dump_json()

    @property
    def results(self) -> tuple[str, ...]:
        """The values that outlive the call: outputs, and what buffers become."""
        return *self.outputs, *(mutation.value for mutation in self.mutations)

    @property
    def free(self) -> tuple[str, ...]:
        """Names of the free sizes, in the order in which the inputs have them."""
        sizes = (size for item in self.inputs for size in item.meta.shape if isinstance(size, FreeSize))
        return tuple(dict.fromkeys(name for size in sizes for names in size.terms for name in names))

    def metas(self) -> dict[str, Meta]:
        """Meta of every value that is a single tensor."""
        found = {i.name: i.meta for i in self.inputs}
        found.update({n.name: n.meta for n in self.nodes if n.outputs})
        return found


def _refs(arg: Arg) -> tuple[str, ...]:
    if isinstance(arg, Ref):
        return (arg.ref,)
    if isinstance(arg, tuple):
        return tuple(name for item in arg for name in _refs(item))
    return ()
