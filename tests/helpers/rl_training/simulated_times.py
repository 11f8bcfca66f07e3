"""A simulated landscape of schedules: no kernel runs, and no number of it says anything about a machine.

What a knob is worth depends on the size of a task, so that no one schedule is the best of all; each measurement
has 4% of noise. It is there to see how trainers fare in a space of which the best is known.
"""

import math
import random
from concurrent.futures import Future
from dataclasses import dataclass

from kernelwright.agent.tuner.policy.space import ScheduleSpace
from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from tests.helpers.results import run_factory

NOISE = 0.04
_SMALL, _LARGE = 1 << 16, 1 << 20  # elements


def simulated_speedup(space: ScheduleSpace, candidate: Candidate) -> float:
    """Return the speedup over eager that a schedule is taken to have, without noise."""
    shape = space.graph.inputs[0].meta.shape
    elements, columns = math.prod(shape), shape[-1]
    schedule = candidate.schedule
    taste = random.Random(" ".join(node.operator for node in space.graph.nodes)).uniform(-1, 1)
    log = 0.8
    if schedule.get("fuse") == "apart":
        log += 0.1 if columns > 1 << 12 and taste > 0 else -0.35
    log += (0.08 if elements >= _LARGE else -0.08) * (1 if schedule.get("vector") == "256" else -1)
    log += 0.03 * taste * (1 if schedule.get("unroll") == "on" else -1)
    kernels = sorted({knob.partition(".")[0] for knob in schedule if "." in knob})
    best_block = 6 + min(8, math.log2(columns) / 2) + taste
    for kernel in kernels:
        worth = 0.0
        block = schedule.get(f"{kernel}.block")
        if block is not None:
            worth -= min(0.5, 0.04 * (math.log2(int(block)) - best_block) ** 2)
        alone = schedule.get(f"{kernel}.threads") == "1"
        worth += (0.3 if elements <= _SMALL else -0.45) * (1 if alone else -1)
        worth += (0.15 if elements >= _LARGE else -0.15) * (
            1 if schedule.get(f"{kernel}.streaming") == "on" else -1
        )
        worth += 0.1 * taste * (1 if schedule.get(f"{kernel}.keep") == "on" else -1)
        worth += 0.04 * (1 if schedule.get(f"{kernel}.prefetch") == "on" else -1)
        log += worth / len(kernels)
    return math.exp(log)


def best_simulated(space: ScheduleSpace, draws: int = 400) -> float:
    """Return the best of many random schedules, as the ceiling of a task."""
    rng = random.Random(0)
    return max(simulated_speedup(space, space.candidate(space.draw(rng))) for _ in range(draws))


@dataclass
class SimulatedPool:
    """Pool that answers with the simulated speedup of a schedule, by the task's id."""

    spaces: dict[str, ScheduleSpace]
    asked: int = 0

    def submit(
        self,
        task: Task,
        candidate: Candidate,
        measurement: Measurement = Measurement(),
        client: str = "",
    ) -> Future[Evaluation]:
        self.asked += 1
        noise = random.Random(f"{task.id} {candidate.sha256} {measurement.effort}").gauss(0, NOISE)
        speedup = simulated_speedup(self.spaces[task.id], candidate) * math.exp(noise)
        found: Future[Evaluation] = Future()
        found.set_result(run_factory.evaluation(task, candidate, eager=speedup))
        return found

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        raise AssertionError(f"every reply is a schedule, but: {reason}")

    def profile(self, task: Task, candidate: Candidate, evaluation: Evaluation) -> None:
        return None
