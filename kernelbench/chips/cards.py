"""Cards with each chip, by their data sheets: what a kernel is written for where no such GPU is at hand.

Peaks are published ones, dense (without structured sparsity, accumulated in fp32), at boost clocks: NVIDIA's
data sheets of the A100 80GB (2021), L4 and L40S (2023), H100 (2023), H200 (2024) and HGX B200 (2024), and its
whitepapers "Ada GPU Architecture" (2022) and "RTX Blackwell GPU Architecture" (2025). Latencies of loads and
bandwidths of L2 caches are measured ones of the named card, or of another with its chip:

    RRZE    github.com/RRZE-HPC/gpu-benches at 1038c5d, gpu-latency/*.txt and gpu-l2-cache/*.txt
    Dewing  github.com/markdewing/AI_kernels, latency/README.md
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelwright.kernelbench.chips.occupancy import CHIPS, MOST_REGISTERS, MOST_THREADS, WARP
from kernelwright.kernelbench.chips.ptx.pricing import Latencies


@dataclass(frozen=True)
class Card:
    """Card with a chip. What is not stated is None or missing.

    `bytes_s`: of its memory; `peaks`: FLOP/s of products, by precision; `l2_cycle_bytes`: that the L2 cache
    gives each multiprocessor a cycle if all ask.
    """

    name: str
    multiprocessors: int
    memory_gib: int
    l2_mib: int
    bytes_s: float | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)
    chip: str = ""
    clock_hz: float = 0.0
    latencies: Latencies | None = None
    l2_cycle_bytes: float = 0.0


_A100 = {"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12, "int8": 624e12}
_A10 = {"fp32": 31.2e12, "tf32": 62.5e12, "fp16": 125e12, "bf16": 125e12, "int8": 250e12}
_L4 = {"fp32": 30.3e12, "tf32": 60e12, "fp16": 121e12, "bf16": 121e12, "fp8": 242.5e12, "int8": 242.5e12}
_L40S = {"fp32": 91.6e12, "tf32": 183e12, "fp16": 362e12, "bf16": 362e12, "fp8": 733e12, "int8": 733e12}
_4090 = {"fp32": 82.6e12, "tf32": 82.6e12, "fp16": 165.2e12, "bf16": 165.2e12, "fp8": 330.3e12}
_5090 = {"fp32": 104.8e12, "tf32": 104.8e12, "fp16": 209.5e12, "bf16": 209.5e12, "fp8": 419e12}
_H100 = {"fp32": 67e12, "tf32": 495e12, "fp16": 989e12, "bf16": 989e12, "fp8": 1979e12, "int8": 1979e12}
_H100_PCIE = {"fp32": 51e12, "tf32": 378e12, "fp16": 756e12, "bf16": 756e12, "fp8": 1513e12, "int8": 1513e12}
_B200 = {"fp32": 75e12, "tf32": 1.1e15, "fp16": 2.25e15, "bf16": 2.25e15, "fp8": 4.5e15, "int8": 4.5e15}

# Cycles: RRZE's A100 80GB, A40, L40 and GH200; Dewing's RTX 5090 and B200.
_OF_A100, _OF_A40, _OF_L40 = Latencies(33, 205, 552), Latencies(33, 240, 556), Latencies(34, 274, 625)
_OF_GH200, _OF_B200, _OF_5090 = Latencies(32, 281, 688), Latencies(40, 295, 860), Latencies(44, 360, 936)
# Bytes a cycle: 5.4 TB/s of the A100, 5.2 of the L40, 6.9 of the H100 PCIe, 9.8 of the H200 (RRZE), over
# their multiprocessors and clocks. Of B200 and RTX 5090 none is stated: their predecessors' are assumed.
_L2_A100, _L2_ADA, _L2_H100_PCIE, _L2_HOPPER = 35.5, 14.7, 34.5, 37.4
_ALL = (
    Card("NVIDIA A100-SXM4-80GB", 108, 80, 40, 2.039e12, _A100, "sm_80", 1.41e9, _OF_A100, _L2_A100),
    Card("NVIDIA A10", 72, 24, 6, 0.6e12, _A10, "sm_86", 1.695e9, _OF_A40, _L2_ADA),
    Card("NVIDIA L40S", 142, 48, 96, 0.864e12, _L40S, "sm_89", 2.52e9, _OF_L40, _L2_ADA),
    Card("NVIDIA L4", 58, 24, 48, 0.3e12, _L4, "sm_89", 2.04e9, _OF_L40, _L2_ADA),
    Card("NVIDIA GeForce RTX 4090", 128, 24, 72, 1.008e12, _4090, "sm_89", 2.52e9, _OF_L40, _L2_ADA),
    Card("NVIDIA H100 80GB HBM3", 132, 80, 50, 3.35e12, _H100, "sm_90", 1.98e9, _OF_GH200, _L2_HOPPER),
    Card("NVIDIA H100 PCIe", 114, 80, 50, 2.0e12, _H100_PCIE, "sm_90", 1.755e9, _OF_GH200, _L2_H100_PCIE),
    Card("NVIDIA H200", 132, 141, 50, 4.8e12, _H100, "sm_90", 1.98e9, _OF_GH200, _L2_HOPPER),
    Card("NVIDIA GH200 480GB", 132, 96, 60, 4.0e12, _H100, "sm_90", 1.98e9, _OF_GH200, _L2_HOPPER),
    Card("NVIDIA B200", 148, 180, 126, 8e12, _B200, "sm_100", 1.965e9, _OF_B200, _L2_HOPPER),
    Card("NVIDIA B300", 148, 270, 126, 8e12, {}, "sm_103", 1.92e9, _OF_B200, _L2_HOPPER),
    Card("NVIDIA GeForce RTX 5090", 170, 32, 96, 1.792e12, _5090, "sm_120", 2.407e9, _OF_5090, _L2_ADA),
)
# The card that stands for a chip, and all by their names.
CARDS = {
    "sm_70": Card("Tesla V100-SXM2-32GB", 80, 32, 6),
    "sm_75": Card("Tesla T4", 40, 16, 4),
    "sm_87": Card("Orin", 16, 32, 4),
    **{card.chip: card for card in reversed(_ALL)},
}
BY_NAME = {card.name: card for card in _ALL}

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
    if card.bytes_s is not None and card.peaks:
        products = ", ".join(f"{name} {rate / 1e12:.4g}" for name, rate in card.peaks.items())
        parts.append(f"published peaks: {card.bytes_s / 1e12:.3g} TB/s; products in TFLOP/s: {products}")
    return "; ".join(parts)


def card_of(chip: str) -> Card | None:
    """Return the card that stands for a chip, "sm_90" or "sm_90a"; None for an unknown one."""
    return CARDS.get(chip.rstrip("af"))
