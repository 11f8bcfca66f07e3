"""Calls that come alone, which should take as long as those among N that were announced at once.

N calls can be answered by one product, which reads the weights once: 64 calls of a batch-1 linear layer in
the time of two. A user's calls do not come so, and candidate and eager are timed on blocks of one call, too.

Such a block is mostly the time to wake a worker, send it a message and stop it, about 1 ms. A call alone also
wakes threads and finds caches cold. All this eager pays too, so times are held against eager's: a candidate
of 0.3 ms a call in blocks of 30, beside an eager of 1.7 ms, may take as much longer alone as eager does. If
alone it takes 1.7 ms as well, its calls were not computed one by one.

On a GPU the host launches one call while another is computed, but nothing hides the launches of a call that
comes alone. Where eager's kernels last longer than its launches, eager's own calls do not show that. So a
candidate's call may take as much longer as eager takes to launch one, but no longer than its own call in a
block, in which it was launched, too.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Chosen by hand.
FEWEST = 4  # calls that come alone, from which on they say anything
_CLEAR_S, _CLEAR_SHARE = 1e-4, 0.25  # seconds, and share of its time in a block, by which alone is slower
_RESAMPLES = 400  # of the bootstrap
_QUIET = 0.1  # quantile that stands for the time of a single call, as delays only ever add to it


@dataclass(frozen=True)
class Alone:
    """`factor`: how many times as long as in blocks the candidate takes, 1 unless that is clear.

    `speedup_low`: the least speedup over eager that calls which come alone leave possible, at 97.5%.
    """

    factor: float = 1.0
    speedup_low: float = np.inf


def estimate(block_s: Array, alone_s: Array, empty_s: Array, launch_s: float = 0.0) -> Alone:
    """Estimate from calls that come alone.

    Two rows each, the candidate's and eager's: `block_s`, seconds a call in blocks; `alone_s`, seconds of
    blocks of one call. `empty_s`: seconds of blocks of none. `launch_s`: seconds in which a host launches a
    call of eager on a GPU.
    """
    if alone_s.shape[1] < FEWEST:
        return Alone()
    generator = np.random.default_rng(alone_s.shape[1])

    def drawn(values: Array) -> Array:
        count = values.shape[-1]
        return np.asarray(values[..., generator.integers(0, count, (_RESAMPLES, count))])

    block, alone, empty = drawn(block_s), drawn(alone_s), drawn(empty_s)
    candidate, eager = np.median(block, axis=-1)
    total, fixed = np.quantile(alone, _QUIET, axis=-1), np.quantile(empty, _QUIET, axis=-1)
    candidate_alone, eager_alone = total - fixed
    # On top of the block's time, and in its proportion: other work on the machine stretches long blocks more.
    added = np.maximum(eager_alone - eager, np.minimum(launch_s, candidate))
    expected = np.maximum(candidate + added, candidate / eager * eager_alone)
    clear_s = _CLEAR_S + _CLEAR_SHARE * float(np.median(block_s[0]))
    clear = float(np.quantile(candidate_alone - expected, 0.01)) > clear_s
    of_candidate, of_eager = np.maximum(total - fixed, total / 4)
    return Alone(
        factor=_factor(block_s, alone_s, empty_s, launch_s) if clear else 1.0,
        speedup_low=float(np.quantile(of_eager / of_candidate, 0.025)),
    )


def _factor(block_s: Array, alone_s: Array, empty_s: Array, launch_s: float) -> float:
    candidate, eager = np.median(block_s, axis=1)
    candidate_alone, eager_alone = np.quantile(alone_s, _QUIET, axis=1) - np.quantile(empty_s, _QUIET)
    added = candidate_alone - max(eager_alone - eager, min(launch_s, candidate))
    scaled = eager * candidate_alone / eager_alone if eager_alone > 0 else np.inf
    return float(max(1.0, min(added, scaled) / candidate))
