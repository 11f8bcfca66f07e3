"""Is the time possible at all? The bytes that must move, over the bandwidth that was measured."""

from kernelbench.evaluator.session import TaskSession

# Bandwidth is measured on a noisy machine; only what is well beyond it is called implausible.
SLACK = 2.0


def floor_us(session: TaskSession, needed_share: float = 1.0) -> float:
    """The least time of a call, in µs: read what the outputs depend on, write the outputs.

    Inputs come from memory when caches are cold. Outputs that fit in the last-level cache may stay
    there. FLOPs set no floor: algebraic fusion legitimately saves them.
    """
    ceilings = session.target.ceilings
    cache = session.target.fingerprint.last_level_cache_bytes
    cold = session.protocol.caches == "cold"
    reading = ceilings.copy_bytes_s if cold else ceilings.cached_copy_bytes_s
    fits = session.oracle.output_bytes < cache
    writing = ceilings.cached_copy_bytes_s if fits else ceilings.copy_bytes_s
    seconds = session.oracle.input_bytes * needed_share / reading + session.oracle.output_bytes / writing
    return 1e6 * seconds / SLACK


def implausible(session: TaskSession, candidate_us: float) -> str | None:
    """Why `candidate_us` a call is impossible, or None."""
    if candidate_us >= floor_us(session):
        return None
    floor = floor_us(session, session.oracle.needed_share())
    if candidate_us >= floor:
        return None
    return f"{candidate_us:.0f} µs a call; moving its data takes at least {floor:.0f} µs on this machine"
