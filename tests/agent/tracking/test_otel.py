"""A run as OpenTelemetry's receivers see it: spans with the conventions' attributes, metrics, no harm done."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, Reply
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.tracking import tracker
from kernelwright.agent.tracking.otel import CAPTURE
from kernelwright.agent.tracking.tracker import TrackedDatabase, tracking
from kernelwright.agent.tracking.trackers import trackers
from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.evaluator import TimingLock
from kernelwright.kernelbench.options import build
from tests.helpers.anywhere import TARGET
from tests.helpers.model_runs import MODEL, ONE_CALL_USD, Better, carried_out, says
from tests.helpers.otlp import Receiver, attributes

VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_SERVICE_NAME",
    CAPTURE,
)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrackedDatabase]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    settings = {"model": {"coder": "llm"}}
    with TrackedDatabase.create(tmp_path / "run.db", settings=settings, target=TARGET) as made:  # type: ignore[arg-type]
        yield made


def tracked(
    database: TrackedDatabase,
    folder: Path,
    server: FakeEndpoint,
    said: list[str] | None = None,
    **options: Any,
) -> bool:
    """Carry out a run that OpenTelemetry is told of."""
    say = (said if said is not None else []).append
    begin = trackers(("otel",), database, folder, server.base_url, say)
    with tracking(begin, database, TimingLock(), say):
        return carried_out(database, server, **options)


def test_a_run_is_a_tree_of_spans(
    database: TrackedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeEndpoint().serving() as server, Receiver().serving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        server.script = Better()
        assert tracked(database, tmp_path, server, rounds=2, tasks=2, at_once=1)
    chat, evaluate = (f"chat {MODEL}", []), ("evaluate", [])
    rounds = [("round 0", [chat, evaluate]), ("round 1", [chat, chat, evaluate])]
    task = [*rounds, ("confirm", [evaluate])]
    assert receiver.tree() == [("kernelwright run", [("task file:0", task), ("task file:1", task)])]
    assert len({span.trace_id for span in receiver.spans}) == 1
    for span in receiver.spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano

    [first, second, _] = receiver.under(receiver.named("task file:0"))
    asked = attributes(receiver.under(first)[0])
    assert asked == asked | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 50,
        "gen_ai.response.finish_reasons": ["stop"],
        "server.address": "127.0.0.1",
        "kernelwright.role": "coder",
        "kernelwright.usd": pytest.approx(ONE_CALL_USD),
    }
    assert not {"gen_ai.input.messages", "gen_ai.output.messages"} & asked.keys()
    roles = [attributes(span).get("kernelwright.role") for span in receiver.under(second)]
    assert roles == ["judge", "coder", None]
    evaluated = attributes(receiver.under(second)[-1])
    assert evaluated["gen_ai.evaluation.score.value"] == 2.0
    assert evaluated["gen_ai.evaluation.score.label"] == evaluated["kernelwright.verdict"] == "correct"
    assert attributes(second)["kernelwright.usd"] == pytest.approx(2 * ONE_CALL_USD)
    assert attributes(receiver.named("task file:0"))["kernelwright.reason"].startswith("2 rounds")
    assert attributes(receiver.named("kernelwright run"))["kernelwright.run"] == database.run_id
    assert receiver.resource["service.name"] == "kernelwright"


def test_metrics_add_up_to_what_was_spent(
    database: TrackedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeEndpoint().serving() as server, Receiver().serving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        server.script = Better()
        tracked(database, tmp_path, server, rounds=2, judge="none")
    calls = database.llm_calls()
    usd = sum(point.as_double for point in receiver.metrics["kernelwright.usd"].sum.data_points)
    assert usd == pytest.approx(sum(call.usd or 0.0 for call in calls)) and usd > 0
    used = receiver.metrics["gen_ai.client.token.usage"].histogram.data_points
    tokens = {attributes(point)["gen_ai.token.type"]: point.sum for point in used}
    assert tokens == {"input": 100 * len(calls), "output": 50 * len(calls)}
    [attempts] = receiver.metrics["kernelwright.attempts"].sum.data_points
    assert attempts.as_int == len(database.attempts("file:0")) == 3


def test_files_written_side_by_side_have_a_call_each(
    database: TrackedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeEndpoint().serving() as server, Receiver().serving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        server.script = lambda body, number: Reply(says(1 + number), latency_s=0.3 - 0.1 * number)
        tracked(database, tmp_path, server, rounds=3, search="best-of-n")
    rounds = [span for span in receiver.spans if span.name.startswith("round")]
    assert len(rounds) == 3
    for span in rounds:
        assert [under.name for under in receiver.under(span)] == [f"chat {MODEL}", "evaluate"]


def test_texts_are_sent_only_where_they_are_asked_for(
    database: TrackedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAPTURE, "SPAN_ONLY")
    with FakeEndpoint().serving() as server, Receiver().serving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        server.say(Reply(says(2), reasoning="hm"))
        tracked(database, tmp_path, server, rounds=1)
    told = attributes(receiver.named(f"chat {MODEL}"))
    [system] = json.loads(told["gen_ai.system_instructions"])
    [user] = json.loads(told["gen_ai.input.messages"])
    [reply] = json.loads(told["gen_ai.output.messages"])
    assert "ModelNew" in system["content"] and user["role"] == "user"
    assert "# The task: file:0" in user["parts"][0]["content"]
    assert reply["parts"] == [
        {"type": "reasoning", "content": "hm"}, {"type": "text", "content": says(2)}
    ]  # fmt: skip
    assert reply["finish_reason"] == "stop"


def test_a_call_that_failed_is_an_error(
    database: TrackedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeEndpoint().serving() as server, Receiver().serving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        server.say(says(2), ErrorResponse(400, "the prompt is too rude"))
        tracked(database, tmp_path, server, rounds=2, judge="none")
    failed = [span for span in receiver.spans if span.status.code == 2]
    assert len(failed) == 1 and "too rude" in failed[0].status.message
    assert attributes(failed[0])["error.type"] == "ModelRefused"


def test_the_environment_says_where_and_as_what(
    database: TrackedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Weave, MLflow and Langfuse want it: traces alone, with headers."""
    with FakeEndpoint().serving() as server, Receiver().serving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.url}/v1/traces")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-mlflow-experiment-id=7")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "kernels of mine")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "wandb.project=kernels")
        server.say(says(2))
        tracked(database, tmp_path, server, rounds=1)
    assert receiver.tree() and not receiver.metrics
    assert receiver.headers[0]["x-mlflow-experiment-id"] == "7"
    told = receiver.resource
    assert (told["service.name"], told["wandb.project"]) == ("kernels of mine", "kernels")


@pytest.mark.parametrize(
    "receiver", [None, Receiver(500), Receiver(latency_s=5.0)], ids=["none", "failing", "slow"]
)
def test_a_receiver_that_fails_or_is_slow_harms_no_run(
    receiver: Receiver | None, database: TrackedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "_LAST_S", 1.0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        f"{receiver.url if receiver else 'http://127.0.0.1:9'}/v1/traces",
    )
    said: list[str] = []
    with FakeEndpoint().serving() as server, (receiver or Receiver()).serving():
        server.script = Better()
        began = time.monotonic()
        assert tracked(database, tmp_path, server, said, rounds=2, judge="none")
        assert time.monotonic() - began < 20
    assert len(database.attempts("file:0")) == 3
    assert sum("otel" in line for line in said) >= 1, said


def test_what_a_tracker_needs_is_checked_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = build(RunConfig, {"tracking": ("otel",)})
    config.execution.check()
    with monkeypatch.context() as patched:
        patched.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        with pytest.raises(
            UsageError, match="OTEL_EXPORTER_OTLP_PROTOCOL=grpc is not supported — use http/protobuf"
        ):
            config.execution.check()
    monkeypatch.setattr("kernelwright.agent.tracking.trackers.find_spec", lambda name: None)
    with pytest.raises(
        MissingPrerequisite, match=r"--tracking otel needs .* — pip install 'kernelwright\[otel\]'"
    ):
        config.execution.check()
    with pytest.raises(UsageError, match="invalid --tracking mlflow — choose otel, trackio or wandb"):
        build(RunConfig, {"tracking": ("mlflow",)})
