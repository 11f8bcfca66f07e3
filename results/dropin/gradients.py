"""The gradient of a task as a task: a `Model` whose forward is the vector-Jacobian product, in ATen calls.

Traced from torch.func.vjp of the reference by make_fx, so that it is exactly what autograd would do, and a
coder can write a kernel for it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx


class NoGradient(Exception):  # noqa: N818 - what was found out
    """The reference has no gradient that can be written down; `str()` says why."""


@dataclass(frozen=True)
class Gradient:
    """`lines`: of a function body over `takes`; it returns a gradient for each floating argument.

    `takes`: the gradients of the outputs, then `uses`: of the forward's arguments and outputs, by name.
    """

    takes: tuple[str, ...]
    uses: tuple[str, ...]
    lines: tuple[str, ...]
    way: str  # "recompute" or "saved": whether it computes outputs again, or takes them

    @property
    def operations(self) -> int:
        return sum("torch.ops" in line for line in self.lines)


def gradients(
    model: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    weights: Sequence[str],
    names: Sequence[str],
    outputs: Sequence[str],
) -> list[Gradient]:
    """By recomputation and, where that leaves less to compute, from saved outputs. Raises NoGradient.

    `names`: of inputs and weights, as the function is to call them; `weights`: as the model calls them.
    """
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    arguments = [*inputs, *(held[name].detach() for name in weights)]
    floating = [place for place, each in enumerate(arguments) if each.dtype.is_floating_point]

    def forward(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        named = dict(zip(weights, given[len(inputs) :], strict=True))
        found = torch.func.functional_call(model, named, given[: len(inputs)])
        return found if isinstance(found, tuple) else (found,)

    def both(grads: list[torch.Tensor], *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def of_floating(*varied: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
            whole = list(given)
            for place, value in zip(floating, varied, strict=True):
                whole[place] = value
            found = forward(*whole)
            return tuple(f for f in found if f.dtype.is_floating_point), found

        _, pull, every = torch.func.vjp(of_floating, *(given[place] for place in floating), has_aux=True)
        return (*every, *(grad.contiguous() for grad in pull(tuple(grads))))

    try:
        with torch.no_grad():
            made = forward(*arguments)
            grads = [torch.ones_like(each) for each in made if each.dtype.is_floating_point]
            # Views stay views: without them each would be a copy, for up to twice the time.
            graph = make_fx(torch.func.functionalize(both, remove="mutations"))(grads, *arguments)
    except Exception as error:
        raise NoGradient(
            f"torch.func.vjp cannot be traced ({type(error).__name__}: {error})".split("\n")[0]
        ) from error
    if any(node.op == "get_attr" for node in graph.graph.nodes):
        raise NoGradient("its gradient holds constant tensors")
    of_outputs = [
        f"grad_{name}" for name, each in zip(outputs, made, strict=True) if each.dtype.is_floating_point
    ]
    found = [_written(graph, of_outputs, names, outputs, saved) for saved in (False, True)]
    return found if found[1].operations < found[0].operations else found[:1]


def _written(
    traced: fx.GraphModule, grads: Sequence[str], names: Sequence[str], outputs: Sequence[str], saved: bool
) -> Gradient:
    graph = fx.Graph()
    values: dict[fx.Node, Any] = {}
    flat = list(graph.graph_copy(traced.graph, values))
    made, wanted = flat[: len(outputs)], flat[len(outputs) :]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    if saved:
        for name, node in zip(outputs, made, strict=True):
            with graph.inserting_before(next(iter(graph.nodes))):
                given = graph.placeholder(name)
            if node.op != "placeholder":
                node.replace_all_uses_with(given)
                wanted = [given if each is node else each for each in wanted]
            placeholders.append(given)
    graph.output(tuple(wanted))
    for node in graph.nodes:  # the derivative of a square has a first power
        if node.target is torch.ops.aten.pow.Tensor_Scalar and node.args[1] == 1:
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()
    called = [*grads, *names, *(outputs if saved else ())]
    for node, name in zip(placeholders, called, strict=True):
        node.name = node.target = name
    used = [
        (node, name) for node, name in zip(placeholders, called, strict=True) if node.users or name in grads
    ]
    for node in placeholders:
        if not node.users:
            graph.erase_node(node)
    lines = _lines(graph)
    return Gradient(
        takes=tuple(name for _, name in used),
        uses=tuple(name for _, name in used if name not in grads),
        lines=lines,
        way="saved" if saved else "recompute",
    )


def _lines(graph: fx.Graph) -> tuple[str, ...]:
    """The body of the function that fx would generate, without what frees variables."""
    code = graph.python_code("self").src
    body = code[code.index(":\n") + 2 :]
    lines = [
        re.sub(r";(?:\s*\w+\s*=)+\s*None$", "", line.strip().partition("  # ")[0].rstrip())
        for line in body.splitlines()
    ]
    return tuple(line for line in lines if line and not line.endswith("= None"))
