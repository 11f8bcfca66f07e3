"""What the overrides of a package for torchtitan have in common."""

from collections.abc import Sequence
from typing import Any

import torch

from .kernel import Kernel
from .swap import fitting


def fitting_config(config: Any, kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """The names of those that were made for the layer of this config; why others were not is logged."""
    with torch.random.fork_rng(devices=[]):  # the model's weights are drawn afterwards, from the same numbers
        layer = config.build()
    return tuple(kernel.name for kernel in fitting(kernels, layer))
