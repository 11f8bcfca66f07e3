"""Each command that evaluates, as it is typed, with `--cluster`: verdicts are those of the cluster's nodes."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernelwright[cluster]'")

from mcp import Client, StdioServerParameters

from kernelwright.results.store.database import RunDatabase
from kernelwright.rl_training.trajectory import read
from tests.helpers.auditing import checkout, result, run_folder
from tests.helpers.evaluator.cluster_nodes import cluster, logged
from tests.helpers.results import run_factory
from tests.helpers.rl_training import tiny_policy
from tests.helpers.rl_training.recorded import builtin_task, made, tried
from tests.helpers.rl_training.served import TASK, file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
CHIP = run_factory.TARGET.fingerprint.chip
Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with cluster(timed=1) as found:
        yield found.address


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The program, its nodes' evaluators being those of tests."""
    return ["-m", "tests.helpers.evaluator.cluster_command", str(tmp_path)]


@pytest.fixture
def typed(words: list[str]) -> Typed:
    def type_(*more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words, *map(str, more)],
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )

    return type_


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with run_factory.new_run(tmp_path / "recorded") as database:
        for name in ("level1/relu", "level1/softmax"):
            task = builtin_task(name)
            database.add_task(task)
            tried(database, task, made(file(1.4)), 1.4)
    return tmp_path / "recorded"


def chips(run: Path) -> set[str]:
    with RunDatabase.open(run, read_only=True) as found:
        return {
            a.evaluation.target.fingerprint.chip for t in found.tasks() for a in found.attempts(t.task.id)
        }


def test_run(address: str, typed: Typed, tmp_path: Path) -> None:
    done = typed(
        "run", TASK, "--cluster", address, "--rounds", 1, "--profilers", "none", "--out", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    assert chips(tmp_path / "run") == {CHIP} and logged(tmp_path, "ended")


def test_audit(address: str, typed: Typed, tmp_path: Path) -> None:
    kernels = {(1, 0): file(2.0), (2, 0): file(1.0, "wrong"), (3, 0): file(1.5)}
    claims = {str(problem): [result(True, 1.0, 2.0)] for problem, _ in kernels}
    archive = run_folder(tmp_path, kernels, claims)
    done = typed("audit", archive, "--kernelbench-dir", checkout(tmp_path), "--cluster", address,
                 "--out", tmp_path / "audit")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 kernels: 2 correct, 1 wrong output" in done.stdout
    assert chips(tmp_path / "audit") == {CHIP}


def test_mcp(address: str, words: list[str], tmp_path: Path) -> None:
    async def use() -> Any:
        more = [
            TASK,
            "--cluster",
            address,
            "--out",
            tmp_path / "run",
            "--seed",
            "none",
            "--profilers",
            "none",
        ]
        server = StdioServerParameters(
            command=sys.executable, args=[*words, "mcp", *map(str, more)], env=dict(os.environ)
        )
        async with Client(server) as client:
            return (await client.call_tool("measure", {"source": file(2.0)})).structured_content

    assert "correct" in str(asyncio.run(use()))
    assert chips(tmp_path / "run") == {CHIP} and len(logged(tmp_path, "ended")) == 1


@pytest.mark.training
def test_train_rl(address: str, typed: Typed, run: Path, tmp_path: Path) -> None:
    model = tiny_policy.save(tmp_path / "model", tiny_policy.BRIEF_CHAT)
    asked = ("train", "rl", "--model", model, "--data", run, "--out", tmp_path / "rl", "--cpu", "--steps", 1,
             "--batch-size", 4, "--micro-batch", 4, "--group", 2, "--max-completion", 6)  # fmt: skip
    done = typed(*asked, "--cluster", address)
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "rl" / "trajectories").iterdir()
    assert len([turn for rollout in read(kept) for turn in rollout.turns]) == 4
    data = json.loads((tmp_path / "rl" / "manifest.json").read_text())["data"]
    assert "the machine of --cluster" in data
    here = typed(*asked)
    assert here.returncode == 2
    assert "was begun with other data: 'the machine of --cluster' differ" in here.stderr


@pytest.mark.training
def test_train_evaluate(address: str, typed: Typed, run: Path, tmp_path: Path) -> None:
    model = tiny_policy.save(tmp_path / "model", tiny_policy.BRIEF_CHAT)
    done = typed("train", "evaluate", "--model", model, "--data", run, "--split", "train", "--cluster", address,
                 "--samples", 2, "--max-completion", 4, "--cpu", "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["chip"] == CHIP and found["policy"]["overall"]["replies"] == 4


@pytest.mark.training
def test_train_check(address: str, typed: Typed, run: Path, tmp_path: Path) -> None:
    """The nodes of the test find every kernel right, references too, and the command says so."""
    done = typed("train", "check", "--data", run, "--cluster", address)
    assert done.returncode == 1 and "the reference, disguised, earns" in done.stdout, done.stderr
    assert logged(tmp_path, "ended")
