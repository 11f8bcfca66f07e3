"""What a profiler is to the ladder."""

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
        """Whether it is for this machine's CPU. For a chip that is named nothing is run."""
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
        """The tool that it uses, for `doctor`. Raises Unavailable where it cannot be used on this machine."""
        ...

    def read(self, subject: Subject) -> Reading:
        """Raises Unavailable where it cannot be used, or has nothing to say of this candidate; TaskError."""
        ...
