"""A call of torch's that a candidate makes between its kernels."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from kernelwright.kernelbench.evaluator.processes.answers import Count


@dataclass(frozen=True)
class TorchCall:
    """A call of an operator of torch's. `moved_bytes`: of its tensors, once each."""

    name: Annotated[str, Field(max_length=100)]
    moved_bytes: Count
    flops: Count  # of products and convolutions
    precision: Annotated[str, Field(max_length=8)]  # of its operands
