"""Callables that baselines run in the model's place."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_WORD = 4  # bytes


class Graphed:
    """A model whose call was captured as a CUDA graph: inputs are copied in, outputs out."""

    def __init__(self, model: Any, arguments: list[Any]) -> None:
        leaves, self._spec = pytree.tree_flatten(arguments)
        self._inputs = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        still = pytree.tree_unflatten(self._inputs, self._spec)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # warm up, as capturing wants it
            for _ in range(3):
                model(*still)
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = model(*still)

    def __call__(self, *arguments: Any) -> Any:
        for mine, given in zip(self._inputs, pytree.tree_leaves(list(arguments)), strict=True):
            if isinstance(mine, torch.Tensor):
                mine.copy_(given)
        self._graph.replay()
        return pytree.tree_map_only(torch.Tensor, torch.clone, self._outputs)


class MemcpyBaseline:
    """Moves what a model must, and computes nothing: reads dense inputs and weights, writes all outputs.

    Outputs are copied from what is read as far as that goes; the rest of the longer side is summed up, or
    filled with zeros. All of it is torch's: its copies and sums are as fast as memory, and store through the
    caches, so that a kernel which stores past them may be faster. Weights are one tensor here, however many
    the model has.
    """

    def __init__(self, model: torch.nn.Module, arguments: list[Any]) -> None:
        self._outputs, self._spec = pytree.tree_flatten(model(*arguments))
        weights = _words([*model.parameters(), *model.buffers()])
        self._weights = [torch.cat(weights)] if weights else []

    def __call__(self, *arguments: Any) -> Any:
        made = [torch.empty_like(o) if isinstance(o, torch.Tensor) else o for o in self._outputs]
        sources = [*_words(pytree.tree_leaves(list(arguments))), *self._weights]
        targets = _words(made)
        while sources and targets:
            source, target = sources.pop(), targets.pop()
            common = min(source.numel(), target.numel())
            target[:common].copy_(source[:common])
            if source.numel() > common:
                sources.append(source[common:])
            if target.numel() > common:
                targets.append(target[common:])
        for source in sources:
            source.sum()
        for target in targets:
            target.zero_()
        return pytree.tree_unflatten(made, self._spec)


def _words(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the memory of dense tensors as vectors of words, but for odd bytes at its ends."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            order = sorted(range(value.dim()), key=lambda axis: -value.stride(axis))
            lying = value.detach().permute(order)
            if lying.is_contiguous() and not lying.is_conj():
                octets = lying.reshape(-1).view(torch.uint8)
                octets = octets[-octets.storage_offset() % _WORD :]
                if octets.numel() >= _WORD:
                    found.append(octets[: octets.numel() // _WORD * _WORD].view(torch.float32))
    return found
