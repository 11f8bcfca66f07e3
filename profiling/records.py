"""Records of a profile, as the Judge sees them: metrics with provenance, remarks, findings."""

import math
from typing import Literal

from pydantic import AliasChoices, Field

from kernelwright.kernelbench.records import Capability, Record
from kernelwright.kernelbench.speed_of_light import BEYOND

Provenance = Literal["ncu", "cupti", "perf", "simulated", "emulated", "static", "predicted", "roofline"]
Bottleneck = Literal["memory", "compute", "overhead", "unknown"]
FindingKind = Literal["memory", "compute", "latency", "launch", "imbalance", "instructions"]


class Metric(Record):
    name: str
    value: float
    unit: str
    provenance: Provenance
    kernel: str = ""  # of the candidate's; empty: the whole call


class Remark(Record):
    """A profiler's remark on a line of a candidate's C++ or CUDA source."""

    kernel: str
    line: int  # of the source that was handed to the compiler, from 1
    code: str  # that stands there
    text: str
    provenance: Provenance
    metric: str = ""  # of the kernel, that this line has its part in


class Finding(Record):
    """A cause of lost time in a candidate, and its fix."""

    kind: FindingKind
    says: str  # one sentence
    fix: str = Field(validation_alias=AliasChoices("fix", "mend"))  # older databases have "mend"
    cites: dict[str, float]  # the metrics that it rests on
    most_gain: float | None  # time before / after where all of it is fixed; None: not known
    kernel: str = ""  # of the candidate's; empty: the whole call


class RungOutcome(Capability):
    """Outcome of one profiler on a candidate: how it read what it read, or why it read nothing."""

    seconds: float = 0.0  # that it took
    for_all: bool = False  # off for every candidate: the tool cannot be used on this machine


class Profile(Record):
    """Metrics of one candidate on one target."""

    metrics: tuple[Metric, ...]
    bottleneck: Bottleneck
    speed_of_light: float | None  # floor time / measured time; 1.0 is the ceiling, None: unknown
    ceiling: str = ""  # what that is a share of: "memory bandwidth", "bf16 products"
    remarks: tuple[Remark, ...] = ()
    findings: tuple[Finding, ...] = ()  # what might gain most first
    rungs: tuple[RungOutcome, ...] = ()  # the profilers that were asked

    @property
    def ceiling_is_wrong(self) -> bool:
        """True if the candidate is faster than its ceiling allows by more than noise."""
        return self.speed_of_light is not None and self.speed_of_light > BEYOND

    @property
    def share_of_light(self) -> float | None:
        """The speed of light, from which follows what is left to gain; None if its ceiling is wrong."""
        return None if self.ceiling_is_wrong else self.speed_of_light

    def value(self, name: str, kernel: str = "") -> float | None:
        return next((m.value for m in self.metrics if (m.name, m.kernel) == (name, kernel)), None)

    @property
    def seconds(self) -> float:
        """Seconds that its profilers took."""
        return math.fsum(rung.seconds for rung in self.rungs)

    def again(self) -> "Profile":
        """Return the profile without the time that it took, to be used once more."""
        rungs = tuple(rung.model_copy(update={"seconds": 0.0}) for rung in self.rungs)
        return self.model_copy(update={"rungs": rungs})

    @property
    def kernels(self) -> tuple[str, ...]:
        """Kernels that a profiler told apart."""
        return tuple(dict.fromkeys(m.kernel for m in self.metrics if m.kernel))
