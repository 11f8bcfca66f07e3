"""`kernelwright serve scripted` stands in for a model: real kernels, some broken on purpose, over real HTTP."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.results.store.database import RunDatabase

TASK = "builtin:level1/rms_norm"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(900)  # a whole run, beside other tests
def test_a_run_without_a_model(tmp_path: Path, home: Path) -> None:
    environment = {**os.environ, "KERNELWRIGHT_HOME": str(home)}
    command = [sys.executable, "-m", "kernelwright"]
    port = free_port()
    serve = [*command, "serve", "scripted", TASK, "--port", str(port), "--latency", "0"]
    with subprocess.Popen(serve, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1\n"
            run = [*command, "run", TASK, "--coder", "llm", "--model", "scripted", "--rounds", "3"]
            run += ["--effort", "quick", "--baseline", "eager", "--seed", "none", "--repairs", "0"]
            run += ["--out", str(tmp_path / "run")]
            environment |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "none"}
            subprocess.run(run, env=environment, check=True, capture_output=True)
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=20) == 0
    with RunDatabase.open(tmp_path / "run", read_only=True) as database:
        searched = [attempt for attempt in database.attempts(TASK) if not attempt.confirms]
    verdicts = [attempt.evaluation.verdict for attempt in searched]
    assert verdicts == ["correct", "build_error", "correct"]
