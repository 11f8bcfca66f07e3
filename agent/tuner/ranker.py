"""Ranking of candidates by the posterior: each is told by all that share knobs with it."""

import math
from collections.abc import Sequence

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.advise import posterior
from kernelwright.agent.tuner.gaussian_process import timed
from kernelwright.kernelbench.records import Task


class PosteriorRanker:
    def speedups(self, task: Task, attempts: Sequence[Attempt]) -> dict[str, float]:
        """Of the builtin coder's timed candidates; empty where one of them was not timed beside eager."""
        known = timed(attempts)
        if (
            any(a.evaluation.speedup is None or a.evaluation.speedup.eager is None for a in known)
            or not known
        ):
            return {}
        speeds = posterior(task, attempts).speeds([attempt.candidate.schedule for attempt in known])
        return {a.candidate.sha256: math.exp(speed) for a, speed in zip(known, speeds, strict=True)}
