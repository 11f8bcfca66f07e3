"""Counts and times of a server, in the format of Prometheus."""

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from kernelwright.kernelbench.remote.wire import EvaluationResult

_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class ServerMetrics:
    """Metrics of one server. Thread-safe."""

    KIND = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._ended = Counter(
            "kernelwright_evaluations",
            "Requests that were evaluated, by verdict, or by why there is none.",
            ["outcome"],
            registry=self._registry,
        )
        self._cached = Counter(
            "kernelwright_cached", "Requests answered by an earlier evaluation.", registry=self._registry
        )
        self._stages = Histogram(
            "kernelwright_stage_seconds",
            "Seconds of the stages of evaluations.",
            ["stage"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._requests = Gauge(
            "kernelwright_requests", "Requests that have not ended.", ["state"], registry=self._registry
        )

    def observe(self, result: EvaluationResult) -> None:
        """Count a request that has ended."""
        if result.cached:
            self._cached.inc()
            return
        self._ended.labels(str(result.verdict or result.no_verdict)).inc()
        if result.seconds is not None:
            for stage, seconds in result.seconds.model_dump().items():
                self._stages.labels(stage).observe(seconds)

    def text(self, waiting: int, running: int) -> bytes:
        """Return all metrics."""
        self._requests.labels("queued").set(waiting)
        self._requests.labels("running").set(running)
        return generate_latest(self._registry)
