"""Online passes: two passes over a row as one; the second reduction is corrected as the first proceeds.

The sum of exponentials below a maximum (Milakov and Gimelshein, https://arxiv.org/abs/1805.02867) and the
sum of squares about a mean (Chan, Golub and LeVeque 1979), block by block, while a block is in the cache.

The row [1, 3, 2, 5] in blocks of two. The sum is of exponentials below the largest element so far, and is
scaled where a block raises that from m to n, by e^(m - n):

    block [1, 3]   maximum 3   sum e^(1-3) + e^(3-3)                         = 1.1353
    block [2, 5]   maximum 5   sum 1.1353 * e^(3-5) + e^(2-5) + e^(5-5)      = 1.2034

which is the sum over the whole row, e^-4 + e^-2 + e^-3 + 1. The row [1, 3, 2, 6] about its mean: the first
block has mean 2 and squares 2, the second mean 4 and squares 8. Joining them adds (4 - 2)^2 * 2 * 2 / (2 + 2)
= 4, and 2 + 8 + 4 = 14 is the sum about the row's mean of 3.

It pays where a row is not in the cache when the second pass begins. A softmax of 8 rows of 262,144 floats, 1
MiB each, has its first two passes joined in C++ (`online=on`), and reads %x twice instead of three times.
"""

from dataclasses import dataclass
from typing import Literal

from kernelwright.agent.builtin.ir.corrections import correction
from kernelwright.agent.builtin.ir.program import Reduce, Scan
from kernelwright.agent.builtin.scheduling.loop_nest import Plan
from kernelwright.agent.builtin.scheduling.passes import Stage, reads


@dataclass(frozen=True)
class Online:
    kind: Literal["exponentials", "squares"]
    number: int  # of the first stage
    first: Reduce
    second: Reduce
    mean: str = ""  # the row's, about which squares are taken
    centered: str = ""  # what is squared


def online(planned: Plan) -> Online | None:
    """Return the first two passes over rows that can be one."""
    if planned.mode != "rows" or planned.region.recurrence is not None:
        return None
    for number, (first, second) in enumerate(zip(planned.stages, planned.stages[1:], strict=False)):
        if _plain(first) and _plain(second):
            found = _joined(planned, number, first.reductions[0], second.reductions[0])
            if found is not None and _reads_only(planned, second, found):
                return found
    return None


def _plain(stage: Stage) -> bool:
    """Return True if a pass only reduces one value."""
    scans = any(isinstance(s, Scan) for s in stage.elements)
    return len(stage.reductions) == 1 and not (stage.stores or stage.keeps or scans)


def _joined(planned: Plan, number: int, first: Reduce, second: Reduce) -> Online | None:
    if {planned.level(first.name), planned.level(second.name)} != {"row"}:
        return None
    found = correction(first, second, planned.statements, planned.row_length)
    if found is None or (found.mean and planned.level(found.mean) != "row"):
        return None
    return Online(found.kind, number, first, second, found.mean, found.centered)


def _reads_only(planned: Plan, stage: Stage, found: Online) -> bool:
    """Return True if the pass reads no other row value than the one that is corrected."""
    rows = {
        view.base
        for s in stage.in_pass
        for view, _ in reads(s, planned.region)
        if view.base in planned.statements and planned.level(view.base) == "row"
    }
    return rows == {found.mean or found.first.name}
