"""`kernelwright serve evaluator` as a user starts it, with the real evaluator behind it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from kernelwright.agent.llm.coder import asked_for
from kernelwright.kernelbench.evaluator import EAGER
from kernelwright.kernelbench.records import Verdict
from kernelwright.kernelbench.redteam.catalogue import named
from kernelwright.kernelbench.remote.client import EvaluationClient
from kernelwright.kernelbench.remote.evaluator import connect
from kernelwright.kernelbench.remote.wire import EvaluationRequest
from kernelwright.rl_training.tasks import tasks_from
from kernelwright.rl_training.trajectory import read
from tests.helpers.results import run_factory
from tests.helpers.rl_training.by_heart import save_policy
from tests.helpers.rl_training.recorded import EXPRESSIONS, builtin_task, kernel, made, tried

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TASK, TOKEN = "builtin:level1/relu", "token-of-the-laptop"
PROGRAM = (sys.executable, "-m", "kernelwright")
COPY = """import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""


@contextmanager
def server(home: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server and its address; it is stopped as Ctrl-C would."""
    tokens = home / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    started = subprocess.Popen(
        [*PROGRAM, "serve", "evaluator", "--token-file", str(tokens), "--effort", "quick", *words],
        env={**os.environ, "KERNELWRIGHT_HOME": str(home)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert started.stderr is not None
    for line in started.stderr:
        if line.startswith("Serving"):
            break
    else:
        raise AssertionError("the server did not start")
    try:
        yield started, line.split()[-1]
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGINT)
            assert started.wait(60) == 0


def test_the_red_team_over_the_wire(tmp_path: Path) -> None:
    cheats = ("stdout_spoof", "fd_spoof", "kill_evaluator", "constant_fill", "edit_harness")
    with (
        server(tmp_path, "--port", "0") as (_, url),
        connect([url], TOKEN, cache=tmp_path / "client") as evaluator,
    ):
        for exercise in named([*cheats, "algebraic_fusion"]):
            found = evaluator.evaluate(exercise.task, exercise.candidate, EAGER)
            assert exercise.withstood(found), f"{exercise.name}: {found.verdict}: {found.reason}"
            assert found.target == evaluator.target


def test_a_run_on_a_server_that_is_killed_on_the_way(tmp_path: Path) -> None:
    with server(tmp_path, "--port", "0") as (first, url):
        port = url.rpartition(":")[2]
        client = EvaluationClient(url, TOKEN)
        request = EvaluationRequest(task=TASK, source=COPY, scheme="kevin", key="k")
        waiting = client._once("POST", "/v1/evaluations", request).json()
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    with server(tmp_path, "--port", port) as (_, url):
        found = client.evaluate(request)
        assert (found.id, found.verdict, found.cached) == (waiting["id"], Verdict.correct, False)
        assert found.reward is not None
        run = subprocess.run(
            [
                *PROGRAM, "run", TASK, "--rounds", "1", "--effort", "quick", "--baseline", "eager", "--evaluator", url,
                "--evaluator-token", str(tmp_path / "tokens"), "--out", str(tmp_path / "run"), "--json",
            ],
            env={**os.environ, "KERNELWRIGHT_HOME": str(tmp_path / "client")},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        (task,) = json.loads(run.stdout)["tasks"]
        assert task["verdict"] == Verdict.correct
    client.close()
    away = subprocess.run(
        [*PROGRAM, "run", TASK, "--evaluator", url, "--out", str(tmp_path / "second")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert away.returncode == 2 and away.stderr.count("\n") == 1
    assert f"{url} does not answer" in away.stderr and not (tmp_path / "second").exists()


def test_a_training_is_rewarded_for_what_another_process_measured(tmp_path: Path) -> None:
    """A policy that knows a right kernel by heart: each reply goes over HTTP to a real referee, and is timed."""
    task = builtin_task("level1/relu")
    with run_factory.new_run(tmp_path / "run") as database:
        database.add_task(task)
        tried(database, task, made(kernel(EXPRESSIONS[2])), 1.5)
    ((data,), model) = tasks_from([str(tmp_path / "run")], 0.0, 0).train, tmp_path / "model"
    prompt = [
        m.model_dump(include={"role", "content"}) for m in asked_for(data.situation, "cpp", (), None).messages
    ]
    save_policy(model, prompt, f"```python\n{kernel()}```\n")
    with server(tmp_path, "--port", "0") as (_, url):
        done = subprocess.run(
            [
                *PROGRAM, "train", "rl", "--model", str(model), "--data", str(tmp_path / "run"), "--cpu", "--out",
                str(tmp_path / "rl"), "--steps", "1", "--batch-size", "4", "--micro-batch", "4", "--group", "2",
                "--max-completion", "600", "--temperature", "0.1", "--evaluator", url, "--evaluator-token",
                str(tmp_path / "tokens"),
            ],
            env={**os.environ, "KERNELWRIGHT_HOME": str(tmp_path / "client")},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        served = httpx2.get(f"{url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text
    (kept,) = (tmp_path / "rl" / "trajectories").iterdir()
    turns = [turn for rollout in read(kept) for turn in rollout.turns]
    assert [turn.outcome.verdict for turn in turns] == [Verdict.correct] * 4, turns[0].outcome.reason
    assert all(turn.reward is not None and turn.reward >= 0.3 for turn in turns)
    assert 'outcome="correct"} 1.0' in served  # four equal files are one evaluation


def test_what_a_server_cannot_be_started_with(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("1234\n")
    for words, said in (
        (["--host", "0.0.0.0"], "lets other machines evaluate code here — give --token-file FILE"),
        (["--token-file", str(short)], "is short or has spaces — write at least 16 characters"),
        (["--tasks", "builtin:nothing"], "builtin:nothing"),
    ):
        done = subprocess.run(
            [*PROGRAM, "serve", "evaluator", *words], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1
