"""A run that shares out a budget, killed in the middle of a call, goes on as it would have."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.agent.llm.endpoint.fake_endpoint import FakeEndpoint, Reply
from kernelwright.results.store.database import RunDatabase
from tests.helpers.anywhere import TARGET
from tests.helpers.model_runs import ONE_CALL_USD, carried_out, judged, says

TASKS = 4
MAX_USD = 15.5 * ONE_CALL_USD


def answer(body: dict[str, Any], number: int) -> Reply:
    """Answer the same to the same prompt; every other file has no kernel in it."""
    system, user = (message["content"] for message in body["messages"][:2])
    if "`ModelNew`, which" not in system:
        return Reply(judged(user))
    digest = int(hashlib.sha256(repr(body["messages"]).encode()).hexdigest(), 16)
    return Reply(says(1 + digest % 100 / 50) if digest % 3 else "I had rather not.")


def run(path: Path, base_url: str) -> None:
    """Begin the run at `path`, or go on with it, and spend all that there is."""
    endpoint: Any = SimpleNamespace(base_url=base_url)
    begun = RunDatabase.open(path) if path.exists() else RunDatabase.create(path, settings={}, target=TARGET)
    with begun as database:
        carried_out(database, endpoint, TASKS, at_once=1, rounds=9, max_usd=MAX_USD)


def decisions(path: Path) -> list[tuple[str, int, bool, str]]:
    """All attempts in the order in which they were made."""
    with RunDatabase.open(path, read_only=True) as database:
        tasks = [entry.task.id for entry in database.tasks()]
        attempts = [attempt for task in tasks for attempt in database.attempts(task)]
        calls = [call.request_sha256 for call in database.llm_calls() if call.completion_tokens]
    assert len(calls) == len(set(calls)), "nothing is asked twice"
    found = sorted(attempts, key=lambda attempt: attempt.id)
    return [(a.task, a.round, a.confirms, a.candidate.sha256) for a in found]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, bool, str]]:
    path = tmp_path_factory.mktemp("undisturbed") / "run.db"
    with FakeEndpoint().serving() as server:
        server.script = answer
        run(path, server.base_url)
    return decisions(path)


CHILD = """
import sys
from pathlib import Path
from tests.agent.llm.test_resumed_budget import run
run(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.parametrize("calls", [2, 7, 10])
def test_a_killed_run_makes_the_same_decisions_in_the_same_order(
    tmp_path: Path, undisturbed: list[tuple[str, int, bool, str]], calls: int
) -> None:
    path = tmp_path / "run.db"
    children: list[subprocess.Popen[bytes]] = []

    def until_killed(body: dict[str, Any], number: int) -> Reply:
        if number == calls:
            os.kill(children[0].pid, signal.SIGKILL)
            children[0].wait()
        return answer(body, number)

    with FakeEndpoint().serving() as server:
        server.script = until_killed
        children.append(subprocess.Popen([sys.executable, "-c", CHILD, path, server.base_url]))
        assert children[0].wait(120) == -signal.SIGKILL
        assert len(decisions(path)) < len(undisturbed)
        server.script = answer
        run(path, server.base_url)
    assert decisions(path) == undisturbed
    rounds = [task for task, _, confirms, _ in undisturbed if not confirms]
    assert len(set(rounds[:TASKS])) == TASKS and len(rounds) > TASKS
