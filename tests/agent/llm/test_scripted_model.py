"""`kernelwright serve scripted` stands in for a model: real kernels, some broken on purpose, over real HTTP."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall

TASK = "builtin:level1/rms_norm"
COMMAND = [sys.executable, "-m", "kernelwright"]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def scripted(home: Path) -> Iterator[dict[str, str]]:
    """Serve a scripted model, which has to end well; the environment of runs with it."""
    environment = {**os.environ, "KERNELWRIGHT_HOME": str(home)}
    port = free_port()
    serve = [*COMMAND, "serve", "scripted", TASK, "--port", str(port), "--latency", "0"]
    with subprocess.Popen(serve, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1\n"
            yield environment | {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "none"}
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=20) == 0


def run(environment: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    run = [*COMMAND, "run", *map(str, words)]
    return subprocess.run(run, env=environment, check=True, capture_output=True, text=True)


MODEL = ("--coder", "llm", "--model", "scripted", "--rounds", "3", "--effort", "quick", "--baseline", "eager",
         "--seed", "none", "--repairs", "0")  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)  # a whole run, beside other tests
def test_a_run_without_a_model(tmp_path: Path, home: Path) -> None:
    with scripted(home) as environment:
        run(environment, TASK, *MODEL, "--out", tmp_path / "run")
    with RunDatabase.open(tmp_path / "run", read_only=True) as database:
        searched = [attempt for attempt in database.attempts(TASK) if not attempt.confirms]
    verdicts = [attempt.evaluation.verdict for attempt in searched]
    assert verdicts == ["correct", "build_error", "correct"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_conversation_with_tools_without_a_model(tmp_path: Path, home: Path) -> None:
    """Kernels are checked, timed and profiled for real; a replay decides the same, and asks nobody."""
    words = (TASK, *MODEL, "--search", "agent", "--seed", "none", "--out", tmp_path / "run")
    with scripted(home) as environment:
        run(environment, *words)
    with RunDatabase.open(tmp_path / "run", read_only=True) as database:
        attempts, calls = database.attempts(TASK), database.llm_calls()
        [entry] = database.tasks()
    assert entry.stop_reason == "3 rounds"
    verdicts = [str(attempt.evaluation.verdict) for attempt in attempts if not attempt.confirms]
    assert verdicts == ["build_error", "wrong_output", "unmeasured", "correct", "correct", "correct"]
    assert attempts[2].evaluation.only_checked and attempts[2].evaluation.stages.time_s == 0
    assert attempts[3].evaluation.operators and attempts[-1].confirms
    told = [message["content"] for message in messages(calls[-1]) if message["role"] == "tool"]
    assert "pass 1" in told[0] and "class ModelNew" in told[0]  # of the builtin coder's kernel
    assert "error: " in told[2] and "elements differ" in told[3] and "It is right" in told[4]
    assert "- packed_share of " in told[7]
    again = run(environment, "--replay", tmp_path / "run", "--out", tmp_path / "again")
    assert "The same decisions as in the run." in again.stderr


def messages(call: LlmCall) -> list[dict[str, str]]:
    assert isinstance(call.request, dict)
    found: list[dict[str, str]] = json.loads(json.dumps(call.request["messages"]))
    return found
