"""What a profiler hands to the Judge: metrics that say where they come from."""

from typing import Literal

from kernelbench.records import Record

Provenance = Literal["ncu", "cupti", "perf", "simulated", "static", "roofline"]
Bottleneck = Literal["memory", "compute", "overhead", "unknown"]


class Metric(Record):
    name: str
    value: float
    unit: str
    provenance: Provenance


class Profile(Record):
    """Metrics of one candidate on one target."""

    metrics: tuple[Metric, ...]
    bottleneck: Bottleneck
    speed_of_light: float | None  # floor time / measured time; 1.0 is the ceiling, None: unknown

    def value(self, name: str) -> float | None:
        return next((m.value for m in self.metrics if m.name == name), None)
