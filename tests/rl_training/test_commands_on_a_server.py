"""`audit` and `mcp` as they are typed, with a server of evaluations in place of this machine."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from kernelwright.results.store.database import RunDatabase
from tests.helpers.auditing import checkout, result, run_folder
from tests.helpers.results.run_factory import TARGET
from tests.helpers.rl_training.served import TASK, FilePool, file, served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROGRAM = [sys.executable, "-m", "kernelwright"]


def test_an_audit_on_a_server(tmp_path: Path) -> None:
    kernels = {(1, 0): file(2.0), (2, 0): file(1.0, "wrong"), (3, 0): file(1.5)}
    claims = {str(problem): [result(True, 1.0, 2.0)] for problem, _ in kernels}
    archive = run_folder(tmp_path, kernels, claims)
    with served(tmp_path / "requests.db") as url:
        done = subprocess.run(
            [*PROGRAM, "audit", str(archive), "--kernelbench-dir", str(checkout(tmp_path)),
             "--out", str(tmp_path / "audit"), "--evaluator", url],
            capture_output=True, text=True, check=False, timeout=500,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 kernels: 2 correct, 1 wrong output" in done.stdout
    with RunDatabase.open(tmp_path / "audit", read_only=True) as run:
        chips = {a.evaluation.target.fingerprint.chip for t in run.tasks() for a in run.attempts(t.task.id)}
    assert chips == {TARGET.fingerprint.chip}  # the server's


def test_a_coding_agent_measures_on_a_server(tmp_path: Path) -> None:
    async def use(url: str) -> dict[str, object]:
        words = ["mcp", TASK, "--evaluator", url, "--out", str(tmp_path / "run"), "--seed", "none"]
        server = StdioServerParameters(command=PROGRAM[0], args=[*PROGRAM[1:], *words], env=dict(os.environ))
        async with Client(server) as client:
            measured = await client.call_tool("measure", {"source": file(2.0)})
            assert measured.structured_content is not None, measured
            return dict(measured.structured_content)

    pool = FilePool()
    with served(tmp_path / "requests.db", pool) as url:
        told = asyncio.run(use(url))
    assert "correct" in str(told) and len(pool.counts) == 1, told
