"""Common code of the overrides of a package for torchtitan."""

from collections.abc import Sequence
from typing import Any

import torch

from ..kernel import DropInKernel
from ..swap import fitting


def fitting_config(config: Any, kernels: Sequence[DropInKernel]) -> tuple[str, ...]:
    """Return the names of kernels made for the layer of this config; log the reasons others were not."""
    with torch.random.fork_rng(devices=[]):  # the model's weights are drawn afterwards, from the same numbers
        layer = config.build()
    return tuple(kernel.name for kernel in fitting(kernels, layer))
