"""Trial of policies and searches on tasks, with the same number of evaluations each.

Of n files the fastest is picked by one measurement each, and another measurement of it counts, so that no
method gains by having tried often on a noisy clock. If none of n is correct the reference stays: 1.0. A
policy's file that is wrong, or a reply without a file, is one of its n.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from kernelwright.agent.llm.model import ReplyUnusable
from kernelwright.agent.llm.reply.replies import candidate_source
from kernelwright.kernelbench.evaluator import Effort, Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Record
from kernelwright.rl_training.demo.data import DemoTask
from kernelwright.rl_training.demo.settings import AFRESH, ONCE
from kernelwright.rl_training.environment.grader import Pool
from kernelwright.rl_training.evaluation.scores import expected_best
from kernelwright.rl_training.outcome import Outcome, outcome_of


class Tried(Record):
    """A method's files for one task. `best_of`: n -> the speedup of the file picked among n of them."""

    method: str
    seed: int
    task: str
    held: bool
    files: int
    valid: int  # of these
    distinct: int  # of the valid ones
    best_of: dict[int, float]


@dataclass(frozen=True)
class PolicyTrial:
    pool: Pool
    tries: Sequence[int]

    def of(
        self,
        method: str,
        seed: int,
        task: DemoTask,
        files: Sequence[Candidate | None],
        in_order: bool = False,
    ) -> Tried:
        """Try the files; None stands for a reply without a file.

        Of n are the first n if `in_order`, else the geometric mean over all choices of n.
        """
        asked = [self._asked(task, made, ONCE) if made is not None else None for made in files]
        picks = [outcome(future) for future in asked]
        again = [
            self._asked(task, made, AFRESH) if made is not None and low_of(pick) > 0 else None
            for made, pick in zip(files, picks, strict=True)
        ]
        lows, values = [low_of(pick) for pick in picks], [median_of(outcome(future)) for future in again]
        best_of = {}
        for n in self.tries:
            most = min(n, len(files))
            first = most if in_order else len(files)
            best_of[n] = expected_best(lows[:first], values[:first], most)
        valid = [made.sha256 for made, low in zip(files, lows, strict=True) if made is not None and low > 0]
        return Tried(
            method=method,
            seed=seed,
            task=task.drawn.name,
            held=task.held,
            files=len(files),
            valid=len(valid),
            distinct=len(set(valid)),
            best_of=best_of,
        )

    def _asked(self, task: DemoTask, made: Candidate, effort: Effort) -> Future[Evaluation]:
        return self.pool.submit(
            task.drawn.task, made, Measurement(("eager",), effort), client=task.drawn.name
        )


def files_of(replies: Sequence[str]) -> list[Candidate | None]:
    return [_file(reply) for reply in replies]


def _file(reply: str) -> Candidate | None:
    try:
        return Candidate(source=candidate_source(reply, None), language="cpp", author="policy")
    except ReplyUnusable:
        return None


def outcome(future: Future[Evaluation] | None) -> Outcome | None:
    """Wait for an outcome. Raises what the pool does."""
    return outcome_of(future.result()) if future is not None else None


def low_of(outcome: Outcome | None) -> float:
    """Return the value a file is picked by; 0 if it is not correct by kernels of its own."""
    if outcome is None or outcome.kind != "correct" or outcome.decoy():
        return 0.0
    return outcome.low("eager") or 0.0


def median_of(outcome: Outcome | None) -> float:
    """Return the value of a file; 1.0, the reference's, if it is not correct."""
    eager = outcome.speedup.eager if outcome is not None and outcome.speedup is not None else None
    return eager.median if outcome is not None and outcome.kind == "correct" and eager is not None else 1.0
