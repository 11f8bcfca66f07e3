"""Number of a kernel's warps that fit on a multiprocessor, by the published rules.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Registers are allocated
to warps in units of 256, warps in groups of four, and since compute capability 8.0 the system takes 1 KiB of
shared memory of each block.
"""

from collections.abc import Mapping
from dataclasses import dataclass

WARP = 32
_REGISTERS = 65536  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread
MOST_THREADS = 1024  # of a block
_REGISTER_PIECE = 256
_SHARED_PIECE = 128  # bytes
_WARPS_TOGETHER = 4


@dataclass(frozen=True)
class Chip:
    """Limits of a multiprocessor."""

    warps: int
    blocks: int
    shared_bytes: int
    system_bytes: int = 1024  # of shared memory, of each block

    @property
    def of_block(self) -> int:
        """Bytes of shared memory that a block may have."""
        return self.shared_bytes - self.system_bytes


CHIPS = {
    "sm_70": Chip(64, 32, 96 << 10, 0),
    "sm_75": Chip(32, 16, 64 << 10, 0),
    "sm_80": Chip(64, 32, 164 << 10),
    "sm_86": Chip(48, 16, 100 << 10),
    "sm_87": Chip(48, 16, 164 << 10),
    "sm_89": Chip(48, 24, 100 << 10),
    "sm_90": Chip(64, 32, 228 << 10),
    "sm_100": Chip(64, 32, 228 << 10),
    "sm_103": Chip(64, 32, 228 << 10),
    "sm_120": Chip(48, 24, 100 << 10),
}


@dataclass(frozen=True)
class Occupancy:
    """Occupancy.

    `share`: of the warps a multiprocessor can hold; `blocks_by`: blocks that each limit allows.
    """

    share: float
    blocks_by: Mapping[str, int]

    @property
    def blocks(self) -> int:
        """Number of blocks at the same time; 0 if not even one fits."""
        return min(self.blocks_by.values())

    @property
    def limited_by(self) -> str:
        return min(self.blocks_by, key=lambda name: self.blocks_by[name])  # the first of equals


def occupancy(chip: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Return the occupancy of blocks of `threads` threads with `registers` registers each.

    `shared_bytes`: of a block, static and dynamic; `chip`: one of CHIPS. Raises ValueError for an unknown
    chip or impossible blocks.
    """
    known = limits_of(chip)
    if not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"a block has 1 to {MOST_THREADS} threads, not {threads}")
    if not 0 <= registers <= MOST_REGISTERS:
        raise ValueError(f"a thread has 0 to {MOST_REGISTERS} registers, not {registers}")
    warps = warps_of(threads)
    piece = _up(registers * WARP, _REGISTER_PIECE)
    warps_by_registers = _REGISTERS // piece // _WARPS_TOGETHER * _WARPS_TOGETHER if piece else known.warps
    shared = _up(shared_bytes + known.system_bytes, _SHARED_PIECE)
    blocks_by = {
        "threads": known.warps // warps,
        "blocks": known.blocks,
        "registers": warps_by_registers // warps,
        "shared memory": known.shared_bytes // shared if shared else known.blocks,
    }
    return Occupancy(min(blocks_by.values()) * warps / known.warps, blocks_by)


def limits_of(chip: str) -> Chip:
    """Return a chip's limits. Raises ValueError for an unknown chip."""
    known = CHIPS.get(chip.rstrip("af"))  # sm_90a holds what sm_90 does
    if known is None:
        raise ValueError(f"unknown chip {chip}; use one of {', '.join(CHIPS)}")
    return known


def warps_of(threads: int) -> int:
    return _up(threads, WARP) // WARP


def _up(number: int, piece: int) -> int:
    return -(-number // piece) * piece
