"""Trackers of a run: the file of events, which is always there, and dashboards of numbers."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint
from kernelwright.agent.tracking.tracker import TrackedDatabase, tracking
from kernelwright.agent.tracking.trackers import trackers
from kernelwright.kernelbench.evaluator import TimingLock
from tests.helpers.anywhere import TARGET
from tests.helpers.model_runs import MODEL, ONE_CALL_USD, Better, carried_out, says

ROOT = Path(__file__).parents[3]
IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from kernelwright.agent.llm.endpoint.fake_endpoint import FakeEndpoint
from kernelwright.agent.tracking.tracker import TrackedDatabase, tracking
from kernelwright.agent.tracking.trackers import trackers
from kernelwright.kernelbench.evaluator import TimingLock
from tests.helpers.anywhere import TARGET
from tests.helpers.model_runs import Better, carried_out
folder, names = Path(sys.argv[1]), tuple(sys.argv[2:])
said = lambda line: print(line, file=sys.stderr)
with FakeEndpoint().serving() as server:
    server.script = Better()
    with TrackedDatabase.create(folder / "run.db", settings={"a": {"b": 1}}, target=TARGET) as database:
        with tracking(trackers(names, database, folder, None, said), database, TimingLock(), said):
            carried_out(database, server, tasks=2, rounds=2, judge="none", at_once=1)
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[TrackedDatabase]:
    with TrackedDatabase.create(tmp_path / "run.db", settings={}, target=TARGET) as made:
        yield made


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_every_call_and_attempt_is_a_line(database: TrackedDatabase, tmp_path: Path) -> None:
    said: list[str] = []
    with FakeEndpoint().serving() as server:
        server.say(says(2), ErrorResponse(400, "the prompt is too rude"))
        with tracking(
            trackers((), database, tmp_path, None, said.append), database, TimingLock(), said.append
        ):
            carried_out(database, server, rounds=2, judge="none")
    lines = events(tmp_path)
    assert [line["event"] for line in lines] == ["call", "attempt", "call", "attempt", "attempt", "done"]
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    answered, first, failed, refused, confirmed, done = lines
    assert answered == answered | {
        "task": "file:0", "role": "coder", "model": MODEL, "input_tokens": 100, "cached_tokens": 0,
        "output_tokens": 50, "usd": pytest.approx(ONE_CALL_USD), "finish": "stop", "error": None,
    }  # fmt: skip
    assert failed["finish"] is None and "too rude" in failed["error"]
    assert (first["round"], first["verdict"], first["speedup"], first["confirms"]) == (
        0,
        "correct",
        2.0,
        False,
    )
    assert (refused["verdict"], refused["speedup"]) == ("build_error", None)
    assert confirmed["confirms"] and done["reason"].startswith("2 rounds")
    assert not said


def test_a_run_that_goes_on_appends_even_to_a_torn_line(database: TrackedDatabase, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "done"}\n{"eve')
    with FakeEndpoint().serving() as server:
        server.script = Better()
        with tracking(trackers((), database, tmp_path, None, print), database, TimingLock(), print):
            carried_out(database, server, rounds=1)
    _, torn, *rest = (tmp_path / "events.jsonl").read_text().splitlines()
    assert torn == '{"eve' and json.loads(rest[0])["event"] == "call"


def test_a_tracker_that_raises_is_told_no_more_and_the_others_are(
    database: TrackedDatabase, tmp_path: Path
) -> None:
    class Broken:
        def call(self, *_: object) -> None:
            raise RuntimeError("no\nmore   disk")

        attempt = done = close = call

    said: list[str] = []
    begin = {**trackers((), database, tmp_path, None, said.append), "mine": Broken}
    with FakeEndpoint().serving() as server, tracking(begin, database, TimingLock(), said.append):
        server.script = Better()
        assert carried_out(database, server, rounds=2, judge="none")
    assert said == ["mine is told no more of this run: no more disk"]
    assert len(events(tmp_path)) == 6


def test_trackers_wait_while_a_candidate_is_timed(database: TrackedDatabase, tmp_path: Path) -> None:
    class Counting:
        told = threading.Event()

        def call(self, *_: object) -> None:
            self.told.set()

        def attempt(self, *_: object) -> None: ...

        done = attempt

        def close(self) -> None: ...

    lock = TimingLock()
    with FakeEndpoint().serving() as server, tracking({"mine": Counting}, database, lock, print):
        server.script = Better()
        with lock.shared(), lock.exclusive():
            carried_out(database, server, rounds=1)
            assert not Counting.told.wait(0.3)
        assert Counting.told.wait(10.0)


def test_dashboards_draw_dollars_and_speedups_without_a_network(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    names = ["trackio", *(["wandb"] if find_spec("wandb") is not None else [])]
    words = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path), *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout, "standard output is for results"
    assert "told" not in done.stderr, done.stderr
    with sqlite3.connect(tmp_path / "trackio" / "kernelwright.db") as stored:
        [text] = stored.execute("select metrics from metrics order by step desc limit 1").fetchone()
    last = json.loads(text)
    assert last == last | {"calls": 4, "attempts": 4, "correct": 4, "tasks_done": 2, "tasks_faster": 2}
    assert last["usd"] == pytest.approx(4 * ONE_CALL_USD) and last["speedup"] == pytest.approx(2.0)
    if "wandb" in names:
        [written] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
        assert b"speedup/file:1" in written.read_bytes()
