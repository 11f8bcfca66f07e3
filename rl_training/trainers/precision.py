"""Precision of training, and of the policy's weights.

An update moves a weight by about the learning rate. bfloat16 has 8 bits: an update of less than 1/512 of the
weight is rounded away, and the policy does not change. So trained weights are always float32: all weights, or
the adapters, whose base does not change and may be bfloat16.
"""

from typing import Literal

Precision = Literal["float32", "bf16-mixed", "bf16"]


def usual(adapters: bool, cpu: bool) -> Precision:
    """Return the default precision. `adapters`: only adapters are trained."""
    import torch

    if cpu or not torch.cuda.is_available() or not torch.cuda.is_bf16_supported(including_emulation=False):
        return "float32"
    return "bf16" if adapters else "bf16-mixed"


def require_learnable(precision: Precision, adapters: bool) -> None:
    """Raise ValueError if updates would be rounded away."""
    if precision == "bf16" and not adapters:
        raise ValueError(
            "precision: updates of bf16 weights would mostly be rounded away; use bf16-mixed, which has "
            "float32 weights, or train adapters with --lora-rank"
        )


def of_weights(precision: Precision) -> str:
    """Return the dtype to load a model in, as torch names it. New adapters are float32 in any case."""
    return "bfloat16" if precision == "bf16" else "float32"


def autocasts(precision: Precision) -> bool:
    """Return True if forward and backward compute in bfloat16."""
    return precision != "float32"
