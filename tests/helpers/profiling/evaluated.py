"""An evaluation by hand, and a small reference."""

from kernelwright.kernelbench.records import (
    Ceilings,
    Environment,
    Evaluation,
    Fingerprint,
    Interval,
    Stages,
    Target,
    Timing,
    Verdict,
)

EXPONENTIALS = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.exp(2 * x)

def get_inputs():
    return [torch.randn(30, 64)]

def get_init_inputs():
    return []
"""
TARGET = Target(
    device="cpu",
    languages=("cpp",),
    ceilings=Ceilings(copy_bytes_s=20e9, cached_copy_bytes_s=50e9, fp32_flops_s=200e9),
    fingerprint=Fingerprint(
        chip="",
        threads=2,
        memory_bytes=1,
        last_level_cache_bytes=1,
        system="",
        python="",
        torch="",
        compiler="",
    ),
)


def evaluation_of(
    time_us: float | None = None, threads: int = 2, own_kernel_share: float | None = None
) -> Evaluation:
    """Of a correct candidate; `time_us`: None, it was not timed."""
    timing = None
    if time_us is not None:
        found = Interval(median=time_us, low=time_us, high=time_us)
        timing = Timing(candidate_us=found, calls_per_block=1, rounds=5)
    return Evaluation(
        task="t",
        candidate="c",
        target=TARGET.model_copy(
            update={"fingerprint": TARGET.fingerprint.model_copy(update={"threads": threads})}
        ),
        verdict=Verdict.correct,
        reason="",
        timing=timing,
        own_kernel_share=own_kernel_share,
        stages=Stages(),
        environment=Environment(sandbox=()),
    )
