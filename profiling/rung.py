"""Protocol of a profiler, a rung of the ladder."""

import re
from dataclasses import dataclass
from typing import Protocol

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator import LocalEvaluator
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.profiling.records import Metric, Profile, Remark


class NotHere(Unavailable):
    """A profiler that cannot be used on this machine, whatever the candidate."""


@dataclass(frozen=True)
class Subject:
    """A candidate that `evaluator` has evaluated.

    `chip`: the GPU its kernels are built for ("sm_90"), where none is here. `known`: what the profilers that
    were asked before have read of it.
    """

    evaluator: LocalEvaluator
    task: Task
    candidate: Candidate
    evaluation: Evaluation
    chip: str = ""
    known: Profile | None = None

    @property
    def device(self) -> str:
        return self.evaluation.target.device

    @property
    def architecture(self) -> str:
        """Architecture of the GPU that its kernels are built for ("sm_90"); empty for a CPU."""
        found = re.search(r"sm_\d+", self.chip or self.evaluation.target.fingerprint.chip)
        return found[0] if found else ""

    @property
    def on_cpu(self) -> bool:
        """True on this machine's CPU; False for a named chip, where nothing runs."""
        return self.device == "cpu" and not self.chip


@dataclass(frozen=True)
class Reading:
    metrics: tuple[Metric, ...]
    how: str  # they were found: the tool, and what it looked at
    remarks: tuple[Remark, ...] = ()


class Rung(Protocol):
    """One profiler."""

    name: str

    def available(self) -> str:
        """Return the tool in use, for `doctor`. Raises Unavailable if it cannot be used on this machine."""
        ...

    def read(self, subject: Subject) -> Reading:
        """Profile one candidate.

        Raises Unavailable if the tool cannot be used or finds nothing, NotHere if it never can; TaskError.
        """
        ...
