"""Blocks of rows of a tensor: what is computed in float64 is computed a block at a time.

An output of 4 GiB is 8 GiB in float64, and comparing two of them takes several such copies. Blocks are whole
rows (the last dimension) of about 64 million elements, half a GiB in float64:

>>> list(row_blocks((4, 3, 5), most=30))
[(slice(0, 2, None),), (slice(2, 4, None),)]
>>> list(row_blocks((2, 3, 5), most=10))[:2]
[(slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(2, 3, None))]

A tensor with no more elements than that is one block, all of it:

>>> list(row_blocks((4, 3, 5)))
[()]
"""

import math
from collections.abc import Iterator, Sequence

MOST = 1 << 26  # elements, about, of a block: chosen by hand

Block = tuple[slice, ...]  # an index


def row_blocks(shape: Sequence[int], most: int = 0) -> Iterator[Block]:
    """Yield blocks of at most `most` elements, or of single rows where these are longer; MOST if it is 0."""
    most = most or MOST
    if len(shape) < 2 or math.prod(shape) <= most:
        yield ()
        return
    step = most // math.prod(shape[1:])
    if step:
        yield from ((slice(begin, min(begin + step, shape[0])),) for begin in range(0, shape[0], step))
        return
    for begin in range(shape[0]):
        for rest in row_blocks(shape[1:], most):
            yield (slice(begin, begin + 1), *rest)
