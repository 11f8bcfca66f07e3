"""What the overrides of a package for torchtitan have in common."""

from collections.abc import Sequence
from typing import Any

import torch

from .kernel import Kernel
from .swap import why_not


def fitting(config: Any, kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """The names of those that compute what the layer of this config does; why others do not is logged."""
    with torch.random.fork_rng(devices=[]):  # the model's weights are drawn afterwards, from the same numbers
        layer = config.build()
    reasons = {kernel: why_not(kernel, layer) for kernel in kernels}
    for kernel, reason in reasons.items():
        if reason:
            kernel.say(reason)
    return tuple(kernel.name for kernel, reason in reasons.items() if not reason)
