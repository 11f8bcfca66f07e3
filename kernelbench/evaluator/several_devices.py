"""An evaluator of several GPUs of one kind, each with processes, CPUs and a timing lock of its own.

Or of several servers of one kind (`kernelbench.remote`).
"""

from collections.abc import Sequence

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator.interface import LocalEvaluator
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.kernelbench.evaluator.protocol import Measurement
from kernelwright.kernelbench.evaluator.session_cache import SessionCache
from kernelwright.kernelbench.records import Candidate, Environment, Evaluation, Target, Task, Work


class SeveralDevices(LocalEvaluator):
    """Evaluates on the first of its devices; an `EvaluationPool` gives each of them slots."""

    def __init__(self, members: Sequence[LocalEvaluator]) -> None:
        """`members`: of one device each. Raises UsageError where their chips differ, MissingPrerequisite."""
        first = members[0]
        super().__init__(first.sessions, first.emulating)
        self._members = tuple(members)
        self._timing_lock = TimingLock()
        chips = [member.describe_chip() for member in members]
        for member, chip in zip(members, chips, strict=True):
            if chip != chips[0]:
                raise UsageError(
                    f"{first.name} is {chips[0]}, {member.name} {chip}: their timings cannot be compared",
                    "name devices of one kind",
                )

    @property
    def members(self) -> Sequence[LocalEvaluator]:
        return self._members

    @property
    def at_once(self) -> int | None:
        return self._members[0].at_once

    @property
    def target(self) -> Target:
        return self._members[0].target

    @property
    def environment(self) -> Environment:
        return self._members[0].environment

    @property
    def timing_lock(self) -> TimingLock:
        """A lock that nobody holds for long: one device or another is always being timed.

        What is computed beside has CPUs of its own only where there are more than workers need.
        """
        return self._timing_lock

    def at_one_size(self, task: Task, candidate: Candidate, measurement: Measurement) -> Evaluation:
        return self._members[0].evaluate(task, candidate, measurement)

    def work(self, task: Task) -> Work:
        return self._members[0].work(task)

    def sibling(self, cache: SessionCache | None = None) -> LocalEvaluator:
        return self._members[0].sibling(cache)

    def abort(self) -> None:
        for member in self._members:
            member.abort()

    def close(self) -> None:
        for member in self._members:
            member.close()
