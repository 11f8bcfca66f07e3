"""Loops of PTX that ptxas has unrolled further, found beside their machine code.

A loop of PTX loads four numbers an iteration, and the loop in its place in the machine code sixteen: four
iterations have become one, and their sixteen loads are under way together.
"""

from kernelwright.kernelbench.chips.loops import loops
from kernelwright.kernelbench.chips.ptx.parsing import PtxKernel
from kernelwright.kernelbench.chips.ptx.walking import is_global
from kernelwright.kernelbench.chips.sass import SassKernel

_LOADS = {"LDG", "LDGSTS", "LD"}


def unrolled(kernel: PtxKernel, code: SassKernel) -> dict[int, int]:
    """Return the iterations that are one in the machine code, by the number of a block that loops.

    Loops are alike by their place, so nothing is returned where the two have different numbers of them.
    """
    found = loops([block.after for block in kernel.blocks])
    of_ptx = [loop.own for loop in found if loop.innermost]
    of_sass = code.innermost_loops()
    if len(of_ptx) != len(of_sass):
        return {}
    iterations = {}
    for blocks, instructions in zip(of_ptx, of_sass, strict=True):
        loads = sum(
            is_global(this) and this.name in ("ld", "cp")
            for number in blocks
            for this in kernel.blocks[number].instructions
        )
        built = sum(this.name in _LOADS for this in instructions)
        if len(blocks) == 1 and loads and built >= 2 * loads:
            iterations[blocks[0]] = built // loads
    return iterations
