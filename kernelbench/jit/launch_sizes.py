"""Sizes of a launch, and the limits that every GPU has: the same on a GPU and in emulation.

https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
"""

from collections.abc import Sequence

from kernelwright.kernelbench.jit.errors import ArgumentError

MOST_THREADS = 1024  # of a block
UNASKED_SHARED = 49152  # bytes of shared memory that a block has without asking; all that it can declare
Dim = tuple[int, int, int]


def dim(kernel: str, of: str, given: Sequence[int]) -> Dim:
    """Extend a grid or a block to three dimensions. `of`: "grid" or "block". Raises ArgumentError."""
    try:
        sizes = [int(size) for size in given]
    except (TypeError, ValueError):
        sizes = []
    if not 1 <= len(sizes) <= 3:
        raise ArgumentError(f"{kernel}: {of} must be a tuple of one to three numbers, got {given!r:.60}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def check_sizes(kernel: str, grid: Dim, block: Dim) -> None:
    """Raise ArgumentError if no GPU can launch such a grid, or such blocks."""
    threads = block[0] * block[1] * block[2]
    if min(block) < 1 or threads > MOST_THREADS or block[2] > 64:
        raise ArgumentError(f"{kernel}: a block of {block} threads; must be between 1 and {MOST_THREADS}")
    if min(grid) < 1 or grid[0] >= 1 << 31 or max(grid[1:]) >= 1 << 16:
        raise ArgumentError(f"{kernel}: a grid of {grid} blocks; the limits are 2147483647, 65535, 65535")
