"""A card with each chip, by its data sheet: what a kernel is written for where no such GPU is at hand.

Peaks are published ones, dense (without structured sparsity), at boost clocks: NVIDIA's data sheets of the
A100 80GB SXM (2021), the H100 SXM (2023) and the HGX B200 (2024).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelwright.kernelbench.chips.occupancy import CHIPS, MOST_REGISTERS, MOST_THREADS, WARP


@dataclass(frozen=True)
class Card:
    """`bytes_s`: of its memory; `peaks`: FLOP/s of products, by precision; neither is stated for all."""

    name: str
    multiprocessors: int
    memory_gib: int
    l2_mib: int
    bytes_s: float | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)


_A100 = {"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12, "int8": 624e12}
_H100 = {"fp32": 67e12, "tf32": 495e12, "fp16": 989e12, "bf16": 989e12, "fp8": 1979e12, "int8": 1979e12}
_B200 = {"fp32": 75e12, "tf32": 1.1e15, "fp16": 2.25e15, "bf16": 2.25e15, "fp8": 4.5e15, "int8": 4.5e15}
CARDS = {
    "sm_70": Card("Tesla V100-SXM2-32GB", 80, 32, 6),
    "sm_75": Card("Tesla T4", 40, 16, 4),
    "sm_80": Card("NVIDIA A100-SXM4-80GB", 108, 80, 40, 2.039e12, _A100),
    "sm_86": Card("NVIDIA A10", 72, 24, 6),
    "sm_87": Card("Orin", 16, 32, 4),
    "sm_89": Card("NVIDIA L40S", 142, 48, 96),
    "sm_90": Card("NVIDIA H100 80GB HBM3", 132, 80, 50, 3.35e12, _H100),
    "sm_100": Card("NVIDIA B200", 148, 180, 126, 8e12, _B200),
    "sm_103": Card("NVIDIA B300", 148, 270, 126),
    "sm_120": Card("NVIDIA GeForce RTX 5090", 170, 32, 96),
}
_INSTRUCTIONS = {
    "sm_80": "mma.sync on tensor cores, cp.async",
    "sm_90": "wgmma and mma.sync on tensor cores, TMA and cp.async, clusters of blocks",
    "sm_100": "tcgen05 and mma.sync on tensor cores, TMA and cp.async, clusters of blocks",
}


def hardware(chip: str, multiprocessors: int | None = None) -> tuple[str, ...]:
    """Facts of a chip such as "sm_90" that a kernel's design depends on; none of an unknown chip.

    `multiprocessors`: of the GPU at hand; by default those of the card in `CARDS`.
    """
    limits, card = CHIPS.get(chip), CARDS.get(chip)
    if limits is None or card is None:
        return ()
    shared_kib, block_kib = limits.shared_bytes >> 10, limits.shared_bytes - limits.system_bytes >> 10
    facts = (
        f"{multiprocessors or card.multiprocessors} SMs, each with up to {limits.warps * WARP} threads in "
        f"{limits.blocks} blocks, 65536 registers, {shared_kib} KiB of shared memory",
        f"at most {MOST_THREADS} threads and {block_kib} KiB of shared memory a block, {MOST_REGISTERS} "
        "registers a thread",
        _INSTRUCTIONS.get(chip, ""),
    )
    return tuple(fact for fact in facts if fact)


def described(chip: str) -> str:
    """Describe the card of a chip, with its published peaks, in a line."""
    card = CARDS[chip]
    parts = [f"{card.name} ({chip})", *hardware(chip), f"{card.l2_mib} MiB of L2"]
    if card.bytes_s is not None:
        products = ", ".join(f"{name} {rate / 1e12:.4g}" for name, rate in card.peaks.items())
        parts.append(f"published peaks: {card.bytes_s / 1e12:.3g} TB/s; products in TFLOP/s: {products}")
    return "; ".join(parts)
