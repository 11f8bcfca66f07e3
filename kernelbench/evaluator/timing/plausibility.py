"""Plausibility of a time: it is at least the bytes that must move over the bandwidth that was measured."""

from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.records import Target

# Bandwidth is measured on a noisy machine; only what is well beyond it is called implausible.
# Chosen by hand.
SLACK = 2.0  # factor by which a time may undercut the ceilings before it is impossible
DOUBTFUL = 0.9  # share of the ceilings from which they are measured again


def floor_us(session: TaskSession, needed_share: float = 1.0) -> float:
    """Return the least time of a call, in µs: read what the outputs depend on, write the outputs.

    Inputs come from memory when caches are cold. Outputs that fit in the last-level cache may stay
    there. FLOPs set no floor: algebraic fusion legitimately saves them. Nor do bytes where the bandwidth
    is not known.
    """
    ceilings = session.target.ceilings
    cache = session.target.fingerprint.last_level_cache_bytes
    reading = ceilings.copy_bytes_s if session.cold else ceilings.cached_copy_bytes_s
    fits = session.oracle.output_bytes < cache
    writing = ceilings.cached_copy_bytes_s if fits else ceilings.copy_bytes_s
    seconds = _seconds(session.oracle.input_bytes * needed_share, reading)
    seconds += _seconds(session.oracle.output_bytes, writing)
    return 1e6 * seconds / SLACK


def _seconds(amount: float, rate: float | None) -> float:
    """Least seconds that moving `amount` bytes takes; 0 where the bandwidth is not known."""
    return amount / rate if rate is not None else 0.0


def near_ceilings(session: TaskSession, target: Target, candidate_us: float) -> bool:
    """Return True if the measured ceilings of `target` may be too low for this time.

    That is so if the time is near to what moving the data, or the products in the reference's precision, take
    by them: they may have been measured while the machine was busy.
    """
    work, ceilings = session.oracle.work, target.ceilings
    floor_s = max(work.copy_s(ceilings) or 0.0, work.products_s(ceilings) or 0.0)
    return 1e6 * floor_s > DOUBTFUL * candidate_us


def implausible(session: TaskSession, candidate_us: float) -> str | None:
    """Reason why `candidate_us` a call is impossible, or None."""
    if candidate_us >= floor_us(session):
        return None
    floor = floor_us(session, session.oracle.needed_share())
    if candidate_us >= floor:
        return None
    return f"{candidate_us:.0f} µs a call; moving its data takes at least {floor:.0f} µs on this machine"
