"""A run once more, offline: what models answered and what evaluations found comes from its database.

Prompts are made and replies read anew, so a replay shows whether this version decides as the one that made
the run did.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path

from kernelbench.errors import InfrastructureError
from kernelbench.evaluator import BASELINES, Effort, Evaluator
from kernelbench.records import Candidate, Evaluation, Target, Task
from results.database import RunDatabase


class ReplayedEvaluator(Evaluator):
    """Finds what a run has found, in its order; tasks are loaded, for what prompts say of them."""

    def __init__(self, recorded: RunDatabase, cache: Path) -> None:
        super().__init__(cache=cache)
        self._recorded = recorded.run.target
        self._found: dict[tuple[str, str], deque[Evaluation]] = defaultdict(deque)
        for task in recorded.tasks():
            for attempt in recorded.attempts(task.task.id):
                self._found[task.task.id, attempt.candidate.sha256].append(attempt.evaluation)

    @property
    def target(self) -> Target:
        return self._recorded

    def evaluate(
        self,
        task: Task,
        candidate: Candidate,
        baselines: Sequence[str] = BASELINES,
        effort: Effort | None = None,
    ) -> Evaluation:
        """Raises InfrastructureError for a candidate that the run did not have."""
        found = self._found.get((task.id, candidate.sha256))
        if not found:
            raise InfrastructureError(
                "the run that is replayed did not come to this candidate",
                "replay it with the version that made it",
            )
        return found.popleft() if len(found) > 1 else found[0]


def differences(recorded: RunDatabase, replayed: RunDatabase) -> list[str]:
    """Where two runs of the same tasks decided otherwise, a line each; empty for a faithful replay."""
    found = []
    for task in recorded.tasks():
        before, after = (
            [
                (attempt.candidate, attempt.advice, attempt.evaluation.verdict, attempt.confirms)
                for attempt in database.attempts(task.task.id)
            ]
            for database in (recorded, replayed)
        )
        where = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
        if where is not None:
            found.append(f"{task.task.id}: attempt {where} is another one")
        elif len(before) != len(after):
            found.append(f"{task.task.id}: {len(after)} attempts, not {len(before)}")
    return found
