"""The speed-of-light score: how much of the way from the reference's time to the floor a kernel has gone.

A reference of 80 µs, whose floor is 20 µs:

    80 µs   0.50    as fast as the reference
    50 µs   0.67
    20 µs   1.00    as fast as the machine allows
   200 µs   0.25
"""

from kernelwright.kernelbench.records import Evaluation
from kernelwright.profiling.records import BEYOND, Profile


def speed_of_light_score(time_us: float, floor_us: float, reference_us: float) -> float | None:
    """Return 1 / (1 + (T - T_sol) / (T_ref - T_sol)), which is 0.5 for the reference and 1 for the floor.

    The score of SOL-ExecBench (NVIDIA 2026, github.com/NVIDIA/SOL-ExecBench), whose T_sol is an analytical
    bound; here it is the roofline of measured ceilings. A time below the floor by no more than noise counts
    as the floor. None where the floor is wrong, and where the reference is at the floor, so that nothing is
    left to gain.
    """
    if floor_us > BEYOND * time_us or reference_us <= floor_us:
        return None
    return 1 / (1 + max(0.0, time_us - floor_us) / (reference_us - floor_us))


def score_of(evaluation: Evaluation, profile: Profile | None) -> float | None:
    """Return the score of a timed candidate against eager, at its first size; None if it is not known."""
    timing = evaluation.at_first_size.timing
    if profile is None or profile.speed_of_light is None or timing is None or timing.eager_us is None:
        return None
    time_us = timing.candidate_us.median
    return speed_of_light_score(time_us, profile.speed_of_light * time_us, timing.eager_us.median)
