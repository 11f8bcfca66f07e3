"""Random tensors for inputs, from a seed, fast: every timed call gets inputs never seen before.

torch draws 16 million normals in about 130 ms, and integers slower still, which is several times what many
tasks take. With a C++ compiler the three distributions that matter are drawn by `draws.cpp` instead.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernelwright.kernelbench.evaluator.memory.native import library
from kernelwright.kernelbench.jit import CppLibrary

CPU = torch.device("cpu")

_LARGE = 1 << 15
_MOST_BELOW = 1 << 24  # of 2^32: no integer is more likely than another by more than 0.4%


class Draws:
    """A stream of random float32 and index tensors that depends on `seed` alone."""

    def __init__(self, seed: int, into: Sequence[torch.Tensor] = (), device: torch.device = CPU) -> None:
        """Large results are drawn into the first unused tensor of `into` that has their shape."""
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._into = list(into)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Draw uniform numbers in [0, 1)."""
        return self.fill_uniform(self._memory(shape))

    def normal(self, *shape: int) -> torch.Tensor:
        """Draw normal numbers of mean 0 and variance 1."""
        return self.fill_normal(self._memory(shape))

    def below(self, limit: int, *shape: int) -> torch.Tensor:
        """Integers (int64) in [0, limit)."""
        native = self._library()
        if native is None or prod(shape) < _LARGE or not 0 < limit <= _MOST_BELOW:
            return torch.randint(limit, shape, generator=self._generator, device=self._device)
        drawn = torch.empty(shape, dtype=torch.int64)
        native.fill_below(drawn, drawn.numel(), limit, self._native_seed())
        return drawn

    def fill_uniform(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` itself, filled in place; of any floating dtype and layout."""
        done = self._native("fill_uniform", tensor)
        return tensor if done else tensor.uniform_(generator=self._generator)

    def fill_normal(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` itself, filled in place; of any floating dtype and layout."""
        done = self._native("fill_normal", tensor)
        return tensor if done else tensor.normal_(generator=self._generator)

    def _native(self, name: str, tensor: torch.Tensor) -> bool:
        native = self._library()
        fits = tensor.numel() >= _LARGE and tensor.dtype is torch.float32 and tensor.is_contiguous()
        if native is None or not fits:
            return False
        getattr(native, name)(tensor, tensor.numel(), self._native_seed())
        return True

    def _library(self) -> CppLibrary | None:
        return library("draws") if self._device.type == "cpu" else None

    def _native_seed(self) -> int:
        return int(torch.randint(-(1 << 63), (1 << 63) - 1, (), generator=self._generator))

    def _memory(self, shape: tuple[int, ...]) -> torch.Tensor:
        if prod(shape) >= _LARGE:
            for position, tensor in enumerate(self._into):
                if tensor.shape == shape and tensor.dtype is torch.float32 and tensor.is_contiguous():
                    return self._into.pop(position)
        return torch.empty(shape, device=self._device)


class FastDraws(TorchFunctionMode):
    """Within it, large torch.rand, randn (and *_like) and randint are served by `Draws`; the rest as ever."""

    def __init__(self, seed: int, into: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self.draws = Draws(seed, into)
        self.served = {
            torch.rand: self.draws.uniform,
            torch.randn: self.draws.normal,
            torch.rand_like: self.draws.uniform,
            torch.randn_like: self.draws.normal,
            torch.randint: self._integers,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        draw = self.served.get(func)
        if draw is None or kwargs or not args:
            return func(*args, **(kwargs or {}))
        first = args[0]
        if func is torch.randint:
            return draw(*args)
        if isinstance(first, torch.Tensor):
            if len(args) > 1 or first.dtype is not torch.float32 or not first.is_contiguous():
                return func(*args)
            return draw(*first.shape)
        return draw(*(first if len(args) == 1 and not isinstance(first, int) else args))

    def _integers(self, *args: Any) -> torch.Tensor:
        """Integers as of torch.randint(high, size) or torch.randint(low, high, size)."""
        *low, high, size = args
        least = low[0] if low else 0
        drawn = self.draws.below(high - least, *size)
        return drawn.add_(least) if least else drawn
