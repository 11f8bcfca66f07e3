"""OpenTelemetry: a run as spans and metrics, sent by OTLP over HTTP to where the environment says.

    kernelwright run
    └── task level1/softmax
        ├── round 0                       verdict, speedup, idea, dollars
        │   ├── chat gpt-5                role coder: tokens, finish reason, dollars
        │   └── evaluate
        ├── round 1
        │   ├── chat gpt-5                role judge
        │   ├── chat gpt-5                role coder
        │   └── evaluate
        └── confirm                       the winner, measured again
            └── evaluate

Attributes are those of the semantic conventions for generative AI (1.37 and later), and `kernelwright.*`. A
round is sent once it is recorded, with the calls that the report shows under it; a task, and the run, when
they end. A run that goes on with --resume is a further trace with the same `kernelwright.run`.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.util.types import AttributeValue

from kernelwright.agent.tracking.events import attempt_fields, call_fields
from kernelwright.kernelbench.version import kernelwright_version
from kernelwright.results.report.rounds import calls_by_round
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall, RecordedAttempt

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURED = ("true", "span_only", "span_and_event")
_METRICS_EVERY_MS = 15_000  # unless OTEL_METRIC_EXPORT_INTERVAL says otherwise
_TOKENS, _DURATION = "gen_ai.client.token.usage", "gen_ai.client.operation.duration"

TimedCall = tuple[LlmCall, float]  # with the time when it was stored


class OpenTelemetry:
    """Tracker that sends spans, and metrics where an endpoint for them is known."""

    def __init__(
        self, database: RunDatabase, name: str, address: str | None, say: Callable[[str], None]
    ) -> None:
        """`name`: of the run; `address`: of its models; `say` is told once why nothing can be sent."""
        self._database = database
        self._server = _server(address)
        self._texts = os.environ.get(CAPTURE, "").strip().lower() in _CAPTURED
        _say_once(say)
        resource = Resource({"service.name": "kernelwright", "service.version": kernelwright_version()})
        found = Resource.create()
        if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
            found = found.merge(resource)
        resource = resource.merge(found)
        # What is left at the end is sent by `close`, which is not waited for longer than a while.
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        readers = []
        if _metrics_wanted():
            every_ms = None if "OTEL_METRIC_EXPORT_INTERVAL" in os.environ else _METRICS_EVERY_MS
            readers = [PeriodicExportingMetricReader(OTLPMetricExporter(), every_ms)]
        self._metrics = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._tracer = self._traces.get_tracer("kernelwright", kernelwright_version())
        meter = self._metrics.get_meter("kernelwright", kernelwright_version())
        self._tokens = meter.create_histogram(_TOKENS, "{token}", "Tokens of a call")
        self._duration = meter.create_histogram(_DURATION, "s", "Duration of a call")
        self._usd = meter.create_counter("kernelwright.usd", "USD", "Cost of models")
        self._attempts = meter.create_counter("kernelwright.attempts", "{attempt}", "Attempts, by verdict")
        self._speedup = meter.create_histogram("kernelwright.speedup", "1", "Speedup over eager")
        self._waiting: dict[str | None, list[TimedCall]] = {}  # calls by task, until their round is recorded
        self._tasks: dict[str, Span] = {}
        run = database.run
        self._run = self._tracer.start_span(
            "kernelwright run",
            attributes={
                "gen_ai.operation.name": "invoke_workflow",
                "gen_ai.workflow.name": "kernelwright",
                "kernelwright.run": run.id,
                "kernelwright.folder": name,
                "kernelwright.command": run.command,
                "kernelwright.settings": json.dumps(run.settings),
                "kernelwright.chip": run.target.fingerprint.chip,
                "kernelwright.device": run.target.device,
            },
        )

    def call(self, call: LlmCall, at: float) -> None:
        known = {"gen_ai.operation.name": "chat", "gen_ai.request.model": call.model, **self._provider}
        for kind, tokens in (("input", call.prompt_tokens), ("output", call.completion_tokens)):
            self._tokens.record(tokens, known | {"gen_ai.token.type": kind})
        self._duration.record(call.seconds, known)
        self._usd.add(call.usd or 0.0, {"gen_ai.request.model": call.model, "kernelwright.role": call.role})
        if call.task is None:
            self._send_call(self._run, call, at)
        else:
            self._task(call.task, at - call.seconds)
            self._waiting.setdefault(call.task, []).append((call, at))

    def attempt(self, attempt: RecordedAttempt, at: float) -> None:
        evaluation, fields = attempt.evaluation, attempt_fields(attempt)
        calls = self._calls_of(attempt)
        profiled_s = attempt.profile.seconds if attempt.profile is not None else 0.0
        ended = at - profiled_s
        began = max([ended - evaluation.stages.total_s, *(when for _, when in calls)])
        first = min([began, *(when - call.seconds for call, when in calls)])
        name = "confirm" if attempt.confirms else f"round {attempt.round}"
        told = {f"kernelwright.{key}": value for key, value in fields.items() if value not in (None, "")}
        score: dict[str, AttributeValue] = {
            "gen_ai.evaluation.name": "speedup over eager",
            "gen_ai.evaluation.score.label": str(evaluation.verdict),
            "gen_ai.evaluation.explanation": evaluation.reason,
        }
        if isinstance(fields["speedup"], float):
            score |= {"gen_ai.evaluation.score.value": fields["speedup"]}
            self._speedup.record(fields["speedup"], {"kernelwright.task": attempt.task})
        self._attempts.add(1, {"kernelwright.verdict": str(evaluation.verdict)})
        usd = math.fsum(call.usd or 0.0 for call, _ in calls)
        span = self._begun(name, self._task(attempt.task, first), first, told | {"kernelwright.usd": usd})
        for call, when in calls:
            self._send_call(span, call, when)
        if evaluation.stages.total_s > 0:
            self._begun("evaluate", span, began, told | score).end(_ns(ended))
        span.end(_ns(at))

    def done(self, task: str, reason: str, at: float) -> None:
        span = self._task(task, at)
        for call, when in self._waiting.pop(task, []):  # that led to no round
            self._send_call(span, call, when)
        span.set_attribute("kernelwright.reason", reason)
        span.end(_ns(at))
        del self._tasks[task]

    def close(self) -> None:
        for task, span in self._tasks.items():
            for call, when in self._waiting.pop(task, []):
                self._send_call(span, call, when)
            span.set_attribute("kernelwright.reason", "left for --resume")
            span.end()
        self._run.end()
        self._traces.shutdown()
        self._metrics.shutdown()

    @property
    def _provider(self) -> dict[str, AttributeValue]:
        """The endpoint, as far as it is known; most serve OpenAI's protocol under another name."""
        return {"gen_ai.provider.name": "openai", **self._server}

    def _task(self, task: str, began: float) -> Span:
        known = self._tasks.get(task)
        if known is None:
            told = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "kernelwright",
                "kernelwright.task": task,
            }
            known = self._tasks[task] = self._begun(f"task {task}", self._run, began, told)
        return known

    def _calls_of(self, attempt: RecordedAttempt) -> list[TimedCall]:
        """Take the calls that an attempt came from out of those that wait."""
        waiting = self._waiting.get(attempt.task, [])
        if not waiting or attempt.confirms:
            return []
        known = [each for each in self._database.attempts(attempt.task) if each.id <= attempt.id]
        mine = calls_by_round(known, [call for call, _ in waiting]).get(attempt.round, [])
        taken = [each for each in waiting if any(each[0] is call for call in mine)]
        self._waiting[attempt.task] = [each for each in waiting if each not in taken]
        return taken

    def _send_call(self, parent: Span, call: LlmCall, at: float) -> None:
        fields = call_fields(call)
        request = call.request if isinstance(call.request, dict) else {}
        response = call.response if isinstance(call.response, dict) else {}
        sampling = request.get("sampling")
        sampling = sampling if isinstance(sampling, dict) else {}
        told: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": call.model,
            **self._provider,
            "gen_ai.request.max_tokens": response.get("limit") or sampling.get("max_tokens"),
            "gen_ai.request.temperature": sampling.get("temperature"),
            "gen_ai.usage.input_tokens": call.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": fields["cached_tokens"],
            "gen_ai.usage.output_tokens": call.completion_tokens,
            "gen_ai.response.finish_reasons": [fields["finish"]] if fields["finish"] else None,
            "error.type": response.get("error"),
            "kernelwright.role": call.role,
            "kernelwright.task": call.task,
            "kernelwright.usd": call.usd,
        }
        if self._texts:
            told |= _texts(request, response)
        span = self._begun(f"chat {call.model}", parent, at - call.seconds, told, SpanKind.CLIENT)
        if fields["error"]:
            span.set_status(Status(StatusCode.ERROR, str(fields["error"])))
        span.end(_ns(at))

    def _begun(
        self,
        name: str,
        parent: Span,
        began: float,
        attributes: Mapping[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        known = {key: value for key, value in attributes.items() if value is not None}
        context = set_span_in_context(parent)
        return self._tracer.start_span(name, context, kind, known, start_time=_ns(began))


def _texts(request: Mapping[str, Any], response: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the attributes with the texts of a call, in the conventions' form."""
    messages = [_message(each) for each in request.get("messages", ()) if isinstance(each, dict)]
    system = [part for each in messages if each["role"] == "system" for part in each["parts"]]
    rest = [each for each in messages if each["role"] != "system"]
    yield "gen_ai.system_instructions", json.dumps(system)
    yield "gen_ai.input.messages", json.dumps(rest)
    if "error" not in response:
        parts = _parts(str(response.get("text") or ""), response.get("tool_calls") or ())
        if response.get("reasoning"):
            parts.insert(0, {"type": "reasoning", "content": response["reasoning"]})
        reply = {"role": "assistant", "parts": parts, "finish_reason": response.get("finish")}
        yield "gen_ai.output.messages", json.dumps([reply])


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    text = str(message.get("content") or "")
    if message.get("role") == "tool":
        part = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text}
        return {"role": "tool", "parts": [part]}
    return {"role": message.get("role"), "parts": _parts(text, message.get("tool_calls") or ())}


def _parts(text: str, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
    for call in calls:
        function = call.get("function") or {}
        known = {"id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}
        parts.append({"type": "tool_call", **known})
    return parts


def _server(address: str | None) -> dict[str, AttributeValue]:
    if address is None:
        return {}
    parts = urlsplit(address)
    port: dict[str, AttributeValue] = {"server.port": parts.port} if parts.port is not None else {}
    return {"server.address": parts.hostname or address} | port


def _metrics_wanted() -> bool:
    """Return True unless only traces have an endpoint, as those of Weave and Langfuse do."""
    if os.environ.get("OTEL_METRICS_EXPORTER", "").strip().lower() == "none":
        return False
    general, traces = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    own = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" in os.environ
    return own or general in os.environ or traces not in os.environ


def _say_once(say: Callable[[str], None]) -> None:
    """Have the SDK's first complaint said, and all others not printed in the midst of a status."""

    class First(logging.Handler):
        said = False

        def emit(self, record: logging.LogRecord) -> None:
            if not self.said:
                self.said = True
                say(f"otel: {' '.join(record.getMessage().split())[:300]}")

    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.handlers = [First(logging.WARNING)]


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
