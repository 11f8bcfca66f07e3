"""Protocol of a profiler, a rung of the ladder."""

from dataclasses import dataclass
from typing import Protocol

from kernelwright.kernelbench.evaluator import LocalEvaluator
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from kernelwright.profiling.records import Metric, Remark


@dataclass(frozen=True)
class Subject:
    """A candidate that `evaluator` has evaluated. `chip`: the GPU its kernels are built for ("sm_90")."""

    evaluator: LocalEvaluator
    task: Task
    candidate: Candidate
    evaluation: Evaluation
    chip: str = ""

    @property
    def device(self) -> str:
        return self.evaluation.target.device

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

        Raises Unavailable if the tool cannot be used or finds nothing; TaskError.
        """
        ...
