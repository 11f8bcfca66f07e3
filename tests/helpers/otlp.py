"""A receiver of OpenTelemetry's protocol over HTTP, that keeps what it is sent."""

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    """Answers with `status` after `latency_s`."""

    def __init__(self, status: int = 200, latency_s: float = 0.0) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, Metric] = {}  # the last state of each
        self.resource: dict[str, Any] = {}
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(latency_s)
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                if status == 200:
                    outer._keep(self.path, gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _keep(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resource = attributes(of_resource.resource)
                self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
            return
        assert path == "/v1/metrics", path
        for told in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self.metrics |= {metric.name: metric for scope in told.scope_metrics for metric in scope.metrics}

    def tree(self, parent: bytes = b"") -> list[Any]:
        """Return the names of spans by their end, each with those under it."""
        under = sorted((span for span in self.spans if span.parent_span_id == parent), key=ended)
        return [(span.name, self.tree(span.span_id)) for span in under]

    def named(self, name: str) -> Span:
        [found] = [span for span in self.spans if span.name == name]
        return found

    def under(self, parent: Span) -> list[Span]:
        return sorted((span for span in self.spans if span.parent_span_id == parent.span_id), key=ended)

    @contextmanager
    def serving(self) -> Iterator["Receiver"]:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


def ended(span: Span) -> int:
    return span.end_time_unix_nano


def attributes(holder: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in holder.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    return (
        [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
    )
