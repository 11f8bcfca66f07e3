"""The gradient of a task as a task: a `Model` whose forward is the vector-Jacobian product, in ATen calls.

Traced from torch.func.vjp of the reference by make_fx, so that it is exactly what autograd would do, and a
coder can write a kernel for it.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry


class NoGradient(Exception):  # noqa: N818 - what was found out
    """A reference whose gradient cannot be written as code; `str()` gives the reason."""


@dataclass(frozen=True)
class Gradient:
    """A gradient: `lines` of a function body over `takes`, which returns one per differentiated argument.

    `takes`: the gradients of the outputs, then `uses`: names of the forward's arguments, outputs and `saves`,
    where `saves` are returned after the outputs by the function body `forward` over the forward's arguments.
    Of a loss, "unit" is the way on which the forward computes the gradients, which wait for a factor.
    `products`: of the lines that have a FLOP formula, 0 for those of the forward, which are computed again.
    """

    takes: tuple[str, ...]
    uses: tuple[str, ...]
    lines: tuple[str, ...]
    way: str  # "recompute", "saved" where it takes outputs, "activations" where it takes `saves`, too; "unit"
    products: Mapping[str, int] = field(default_factory=dict)  # FLOPs by the name of the result
    saves: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()

    @property
    def operations(self) -> int:
        return sum("torch.ops" in line for line in self.lines)


def gradients(
    model: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    weights: Sequence[str],
    names: Sequence[str],
    outputs: Sequence[str],
    differentiated: Sequence[str],
) -> list[Gradient]:
    """Return the gradients of a model: by recomputation, then cheaper ones from saved tensors.

    `names`: of inputs and weights, as the function is to call them; `weights`: as the model calls them;
    `differentiated`: the names among them whose gradients are computed. Raises NoGradient.
    """
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    arguments = [*inputs, *(held[name].detach() for name in weights)]
    places = [place for place, name in enumerate(names) if name in differentiated]

    def forward(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        named = dict(zip(weights, given[len(inputs) :], strict=True))
        found = torch.func.functional_call(model, named, given[: len(inputs)])
        return found if isinstance(found, tuple) else (found,)

    def both(grads: list[torch.Tensor], *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def of(*varied: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
            whole = list(given)
            for place, value in zip(places, varied, strict=True):
                whole[place] = value
            found = forward(*whole)
            return tuple(f for f in found if f.dtype.is_floating_point), found

        _, pull, every = torch.func.vjp(of, *(given[place] for place in places), has_aux=True)
        return (*every, *(grad.contiguous() for grad in pull(tuple(grads))))

    try:
        with torch.no_grad():
            made = forward(*arguments)
            grads = [torch.ones_like(each) for each in made if each.dtype.is_floating_point]
            # Views stay views: without them each would be a copy, for up to twice the time.
            graph = make_fx(torch.func.functionalize(both, remove="mutations"))(grads, *arguments).graph
    except Exception as error:
        raise NoGradient(
            f"torch.func.vjp cannot be traced ({type(error).__name__}: {error})".split("\n")[0]
        ) from error
    if any(node.op == "get_attr" for node in graph.nodes):
        raise NoGradient("its gradient holds constant tensors")
    of_outputs = [
        unlike(f"grad_{name}", names)
        for name, each in zip(outputs, made, strict=True)
        if each.dtype.is_floating_point
    ]
    joint = _Joint(graph, of_outputs, names, outputs)
    found = [joint.recomputing()]
    for way in (joint.from_outputs(), joint.from_activations()):
        if way.operations < found[-1].operations:
            found.append(way)
    if joint.has_loss_of_product:
        found.append(joint.from_unit())
    return found


def unlike(name: str, taken: Sequence[str]) -> str:
    """Return the name with as many underscores appended as it takes to differ from all in `taken`."""
    while name in taken:
        name += "_"
    return name


class _Joint:
    """The joint graph of forward and backward, and functions extracted from it.

    It takes `grads` and `names`, and returns `outputs`, then gradients.
    """

    def __init__(
        self, graph: fx.Graph, grads: Sequence[str], names: Sequence[str], outputs: Sequence[str]
    ) -> None:
        for node in graph.nodes:  # the derivative of a square has a first power
            if node.target is torch.ops.aten.pow.Tensor_Scalar and node.args[1] == 1:
                node.replace_all_uses_with(node.args[0])
            _name_dtype_and_device(node)
        self._graph = graph
        self._grads, self._names, self._outputs = tuple(grads), tuple(names), tuple(outputs)
        self._given = [node for node in graph.nodes if node.op == "placeholder"]
        flat = list(graph.output_node().args[0])
        self._made: list[Any] = flat[: len(outputs)]
        self._wanted: list[Any] = flat[len(outputs) :]

    def recomputing(self) -> Gradient:
        return self._gradient("recompute", {})

    def from_outputs(self) -> Gradient:
        return self._gradient("saved", self._by_output())

    def from_activations(self) -> Gradient:
        """Return the gradient that takes saved results of the forward.

        Saved are results that are costly to compute and cheap to read: products, and tensors of at most an
        eighth of the size of those they are computed from.
        """
        known = self._by_output()
        shared = {_base(node) for node in self._made}
        worth = [n for n in self._of_forward() if _is_worth_saving(n) and n not in known and n not in shared]
        taken = (*self._grads, *self._names, *self._outputs)
        called = {node: unlike(node.name, taken) for node in worth}
        used = self._gradient("activations", known | called).uses
        kept_nodes = [node for node in worth if called[node] in used]
        saves = {node: unlike(f"saved_{place}", taken) for place, node in enumerate(kept_nodes)}
        _, lines, _ = self._function(self._names, [*self._made, *saves], {})
        kept = tuple(saves.values())
        return replace(self._gradient("activations", known | saves), saves=kept, forward=lines)

    @property
    def has_loss_of_product(self) -> bool:
        """Return True if one number is returned, a product is computed for it, and half floats are no risk.

        The gradients of a loss in float16 may underflow before the factor, a scale, that is to prevent it.
        """
        if len(self._made) != 1 or len(self._grads) != 1 or self._made[0].meta["val"].dim():
            return False
        if any(node.meta["val"].dtype is torch.float16 for node in (*self._made, *self._wanted)):
            return False
        forward = (node for node in self._of_forward() if node.target is not operator.getitem)
        return any(getattr(node.target, "_overloadpacket", None) in flop_registry for node in forward)

    def from_unit(self) -> Gradient:
        """Return the gradient of a loss whose forward has computed it, but for the factor that comes in.

        Nothing large is kept from the forward, or computed again: both are next to each other.
        """
        taken = (*self._grads, *self._names, *self._outputs)
        saves = tuple(unlike(f"saved_{place}", taken) for place in range(len(self._wanted)))
        _, lines, _ = self._function(self._names, [*self._made, *self._wanted], {}, ones=True)
        (grad,) = self._grads
        names = [unlike(f"scaled_{place}", (*taken, *saves)) for place in range(len(saves))]
        scaled = [
            f"{name} = torch.ops.aten.mul.Tensor({saved}, {grad})"
            for name, saved in zip(names, saves, strict=True)
        ]
        returned = f"return ({', '.join(names)}{',' * (len(names) == 1)})"
        return Gradient((grad, *saves), saves, (*scaled, returned), "unit", {}, saves, lines)

    def _gradient(self, way: str, given: Mapping[fx.Node, str]) -> Gradient:
        takes, lines, products = self._function((*self._grads, *self._names), self._wanted, given)
        uses = tuple(name for name in takes if name not in self._grads)
        return Gradient((*self._grads, *uses), uses, lines, way, products)

    def _by_output(self) -> dict[fx.Node, str]:
        pairs = zip(self._made, self._outputs, strict=True)
        return {node: name for node, name in pairs if node.op != "placeholder"}

    def _of_forward(self) -> list[fx.Node]:
        """Return the nodes on the way to outputs, and further results of the same operators, in order."""
        needed: set[fx.Node] = set(self._made)
        for node in reversed(self._graph.nodes):
            if node in needed:
                needed.update(node.all_input_nodes)
        return [n for n in self._graph.nodes if _computed(n) in needed and n.op == "call_function"]

    def _function(
        self,
        names: Sequence[str],
        returned: Sequence[Any],
        given: Mapping[fx.Node, str],
        ones: bool = False,
    ) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, int]]:
        """Return arguments, lines and products of a function of `names` and `given` computing `returned`.

        `ones`: the gradients that come in are 1.
        """
        graph = fx.Graph()
        values: dict[fx.Node, Any] = {}
        graph.graph_copy(self._graph, values)
        called = dict(zip((*self._grads, *self._names), (values[node] for node in self._given), strict=True))
        for node, name in given.items():
            with graph.inserting_before(next(iter(graph.nodes))):
                called[name] = graph.placeholder(name)
            values[node].replace_all_uses_with(called[name])
            values[node] = called[name]
        for name in self._grads if ones else ():
            node, before = called[name], self._given[self._grads.index(name)].meta["val"]
            with graph.inserting_after(list(called.values())[-1]):
                form = {"dtype": before.dtype, "device": before.device}
                one = graph.call_function(torch.ops.aten.full.default, (list(before.shape), 1.0), form)
            node.replace_all_uses_with(one)
        graph.output(tuple(values[each] for each in returned))
        graph.eliminate_dead_code()
        for name, node in called.items():
            node.name = node.target = name
        takes = tuple(name for name in (*names, *given.values()) if called[name].users)
        for node in called.values():
            if not node.users:
                graph.erase_node(node)
        return takes, _lines(graph), _products(graph, self._grads)


def _name_dtype_and_device(node: fx.Node) -> None:
    """Set dtype and device of a tensor made from none, which would otherwise take torch's defaults later."""
    value = node.meta.get("val")
    if node.op == "call_function" and not node.all_input_nodes and isinstance(value, torch.Tensor):
        node.kwargs = {**node.kwargs, "dtype": value.dtype, "device": value.device}


def _is_worth_saving(node: fx.Node) -> bool:
    value, computed = node.meta.get("val"), _computed(node)
    if not isinstance(value, torch.Tensor) or _is_view(node):
        return False
    if getattr(computed.target, "_overloadpacket", None) in flop_registry:
        return True
    read = [each.meta.get("val") for each in computed.all_input_nodes]
    return any(isinstance(each, torch.Tensor) and 8 * value.numel() <= each.numel() for each in read)


def _computed(node: fx.Node) -> Any:
    """Return the operator that computes this node, which may be one of its several results."""
    return node.args[0] if node.target is operator.getitem else node


def _is_view(node: fx.Node) -> bool:
    target = _computed(node).target
    return isinstance(target, torch._ops.OpOverload) and target.is_view


def _products(graph: fx.Graph, grads: Sequence[str]) -> dict[str, int]:
    """Return the FLOPs of the products that are computed from `grads`, 0 for others."""
    of_grads: set[fx.Node] = set()
    found = {}
    for node in graph.nodes:
        if node.name in grads or not of_grads.isdisjoint(node.all_input_nodes):
            of_grads.add(node)
        formula = flop_registry.get(getattr(node.target, "_overloadpacket", None))
        if formula is not None:
            args, named = tree_map_only(fx.Node, lambda each: each.meta.get("val"), (node.args, node.kwargs))
            found[node.name] = int(formula(*args, **named, out_val=node.meta.get("val")))
            found[node.name] *= node in of_grads
    return found


def _base(node: fx.Node) -> fx.Node:
    """Return the node that owns this node's memory."""
    while _is_view(node):
        node = _computed(node).all_input_nodes[0]
    return node


def _lines(graph: fx.Graph) -> tuple[str, ...]:
    """Return the body of the function that fx would generate, without the statements that free variables."""
    code = graph.python_code("self").src
    body = code[code.index(":\n") + 2 :]
    lines = [
        re.sub(r";(?:\s*\w+\s*=)+\s*None$", "", line.strip().partition("  # ")[0].rstrip())
        for line in body.splitlines()
    ]
    lines = [re.sub(r"(?<![\w.])(inf\b|nan\b)", r"torch.\1", line) for line in lines]
    # A constant is made where the first argument is, on whatever device that may be.
    first = next(node.name for node in graph.nodes if node.op == "placeholder")
    lines = [re.sub(r"(?<![\w.])device\([^()]*\)", f"{first}.device", line) for line in lines]
    return tuple(line for line in lines if line and not line.endswith("= None"))
