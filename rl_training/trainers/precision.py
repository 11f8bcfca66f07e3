"""In which precision a policy is trained, and what its weights are kept in.

An update moves a weight by about the learning rate. bfloat16 has 8 bits: where that is less than 1/512 of the
weight it is rounded away, and the policy stays what it was. So what is trained is always float32: all
weights, or the adapters, which stand on weights that do not change and may be bfloat16.
"""

from typing import Literal

Precision = Literal["float32", "bf16-mixed", "bf16"]


def usual(adapters: bool, cpu: bool) -> Precision:
    """What a training takes that is not told. `adapters`: whether they alone are trained."""
    import torch

    if cpu or not torch.cuda.is_available() or not torch.cuda.is_bf16_supported(including_emulation=False):
        return "float32"
    return "bf16" if adapters else "bf16-mixed"


def require_learnable(precision: Precision, adapters: bool) -> None:
    """Raises ValueError where updates would be rounded away."""
    if precision == "bf16" and not adapters:
        raise ValueError(
            "precision: updates of bf16 weights would mostly be rounded away; give bf16-mixed, which has "
            "float32 weights, or train adapters with --lora-rank"
        )


def of_weights(precision: Precision) -> str:
    """The dtype that a model is loaded in, as torch names it. New adapters are float32 in any case."""
    return "bfloat16" if precision == "bf16" else "float32"


def autocasts(precision: Precision) -> bool:
    """Whether forward and backward compute in bfloat16."""
    return precision != "float32"
