"""Masks of attention that the graph makes of constants: which are causal, or those of a sliding window.

    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    mask = (place[:, None] >= place) & (place[:, None] - place < 256)        # place = torch.arange(tokens)

Such masks are evaluated here. A kernel then leaves out the keys that they hide, without reading a mask, and
torch's call may take its kernel for causal ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.agent.builtin.ir.graph import Arg, DType, Graph, Input, Node, Ref
from kernelwright.kernelbench.free_sizes.size import is_free

_MOST = 1 << 24  # elements of a mask that is evaluated: 4096 by 4096
_ABSORBS = 1e30  # what is added to scores, negative, hides a key from this size on
# Cheap operators without effects.
_EVALUATED = frozenset(
    "arange full ones zeros full_like ones_like zeros_like scalar_tensor tril triu le lt ge gt eq ne where "
    "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor "
    "masked_fill add sub mul neg abs unsqueeze squeeze expand view reshape unflatten flatten slice select "
    "transpose permute t _to_copy to alias clone detach lift_fresh_copy amax amin rsub".split()
)


@dataclass(frozen=True)
class Band:
    """Keys that a query sees: those of its number and below, of which it is the last `window`; 0: all."""

    window: int = 0


class ConstantMasks:
    """Masks of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = {node.name: node for node in graph.nodes}
        self._inputs = {item.name: item for item in graph.inputs}
        self._values: dict[str, torch.Tensor | None] = {}

    def band(self, name: str) -> Band | None:
        """Return the band that a mask leaves; None if it is another, or depends on the graph's inputs."""
        mask = self._value(name)
        if mask is None or mask.dim() < 2:
            return None
        kept = mask if mask.dtype == torch.bool else mask == 0
        if mask.dtype != torch.bool and not bool((kept | (mask <= -_ABSORBS)).all()):
            return None
        first = kept.reshape(-1, *kept.shape[-2:])[0]
        if not torch.equal(kept, first.expand_as(kept)):
            return None
        queries, keys = first.shape
        apart = torch.arange(keys) - torch.arange(queries)[:, None]
        if not bool(first.any(1).all()):  # a query without keys is a matter of its own
            return None
        last, least = int(apart[first].max()), int(apart[first].min())
        whole = least <= 1 - queries
        if last != 0 or not torch.equal(first, (apart <= 0) & (apart >= least)):
            return None
        return Band(0 if whole else 1 - least)

    def _value(self, name: str) -> torch.Tensor | None:
        """Evaluate a value; None where it is no constant, or large."""
        if name not in self._values:
            self._values[name] = None  # while it is evaluated, and where that fails
            if name in self._inputs:
                self._values[name] = _literal(self._inputs[name])
            elif name in self._nodes:
                self._values[name] = self._evaluated(self._nodes[name])
        return self._values[name]

    def _evaluated(self, node: Node) -> torch.Tensor | None:
        parts = node.op.split(".")
        if len(parts) != 3 or parts[1] not in _EVALUATED or len(node.outputs) != 1:
            return None
        if is_free(*node.meta.shape) or node.meta.numel > _MOST:
            return None
        if any(self._value(name) is None for name in node.inputs):
            return None
        values: Mapping[str, Any] = self._values

        def given(arg: Arg) -> Any:
            if isinstance(arg, Ref):
                return values[arg.ref]
            if isinstance(arg, DType):
                return getattr(torch, arg.dtype)
            return [given(each) for each in arg] if isinstance(arg, tuple) else arg

        operator = getattr(getattr(torch.ops.aten, parts[1]), parts[2])
        named = {key: given(arg) for key, arg in node.kwargs.items() if key not in ("device", "pin_memory")}
        found = operator(*map(given, node.args), **named)
        return found if isinstance(found, torch.Tensor) else None


def _literal(item: Input) -> torch.Tensor | None:
    if item.kind != "literal" or not item.values:
        return None
    return torch.tensor(item.values, dtype=getattr(torch, item.meta.dtype)).reshape(item.meta.shape)
