"""Other trainers' forms of requests, and rollouts over HTTP."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kernelwright.kernelbench.remote.wire import EvaluationRequest, EvaluationResult
from kernelwright.rl_training.serving.evaluator.app import application
from kernelwright.rl_training.serving.evaluator.rollouts import RolloutReply, RolloutRequest
from tests.helpers.rl_training.recorded import builtin_task
from tests.helpers.rl_training.served import TASK, FilePool, file, service


def reply(speedup: float, mark: str = "") -> str:
    return f"I fuse it.\n```python\n{file(speedup, mark)}```\n"


@pytest.fixture
def pool() -> FilePool:
    return FilePool()


@pytest.fixture
def api(tmp_path: Path, pool: FilePool) -> Iterator[TestClient]:
    with service(tmp_path / "requests.db", pool) as made, TestClient(application(made)) as found:
        yield found


def test_openrlhf_gets_a_list_of_rewards(api: TestClient) -> None:
    own = json.dumps({"name": "mine", "source": builtin_task("level1/gelu").source})
    asked = {
        "query": ["Write it." + reply(1.5), "Write it." + reply(1, "wrong"), "Write it.no file"],
        "prompts": ["Write it."] * 3,
        "labels": [TASK, own, TASK],
    }
    found = api.post("/v1/openrlhf", params={"scheme": "kevin"}, json=asked)
    assert found.status_code == 200
    rewards = found.json()["rewards"]
    assert rewards[0] > 1.5 and rewards[1:] == [0.0, 0.0]
    assert found.json()["scores"] == [1.0, 0.0, 0.0]
    short = api.post("/v1/openrlhf", json={**asked, "labels": [TASK]})
    assert short.status_code == 422 and "differ in length" in short.json()["error"]


def test_slime_gets_a_number(api: TestClient) -> None:
    asked = {"prompt": "Write it.", "response": reply(1.5), "label": TASK}
    assert api.post("/v1/slime", params={"scheme": "kevin"}, json=asked).json() > 1.5
    unknown = api.post("/v1/slime", json={**asked, "label": "builtin:nothing"})
    assert unknown.status_code == 403


@pytest.mark.parametrize("route", ["openrlhf", "slime"])
def test_no_verdict_is_an_error_and_not_a_reward(api: TestClient, pool: FilePool, route: str) -> None:
    text = reply(1, "dies")
    asked = {
        "openrlhf": {"query": [text], "prompts": [""], "labels": [TASK]},
        "slime": {"prompt": "", "response": text, "label": TASK},
    }[route]
    found = api.post(f"/v1/{route}", json=asked)
    assert found.status_code == 503 and "retry-after" in found.headers
    assert found.json() == {"error": "a worker died", "fix": "ask again"}
    before = pool.counts.total()
    assert api.post(f"/v1/{route}", json=asked).status_code == 503
    assert pool.counts.total() == 2 * before  # it is evaluated again


def test_a_rollout_of_two_turns(api: TestClient) -> None:
    asked = {"task": TASK, "turns": 2, "scheme": "kevin"}
    begun = api.post("/v1/rollouts", json=asked)
    assert begun.status_code == 201
    state = begun.json()
    assert state["messages"][-1]["role"] == "user" and state["turns"] == [] and state["returns"] is None
    where = f"/v1/rollouts/{state['id']}"
    first = api.post(f"{where}/replies", json={"reply": reply(1, "wrong"), "turn": 0}).json()
    assert [turn["reward"] for turn in first["turns"]] == [0.0]
    assert "it is wrong" in first["messages"][-1]["content"]
    again = api.post(f"{where}/replies", json={"reply": reply(1, "wrong"), "turn": 0})
    assert again.json() == first  # sent twice, it counts once
    assert api.post(f"{where}/replies", json={"reply": reply(2.0), "turn": 5}).status_code == 422
    last = api.post(f"{where}/replies", json={"reply": reply(2.0), "turn": 1}).json()
    assert last["ended"] == "2 turns" and last["messages"] is None
    reward = last["turns"][1]["reward"]
    assert last["returns"] == pytest.approx([0.4 * reward, reward])
    assert api.post(f"{where}/replies", json={"reply": reply(2.0)}).status_code == 422
    assert api.get("/v1/rollouts/unknown").status_code == 404


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x" * 1_100_000, "has more than 500000 characters"),
        ("<think>" + "so " * 400_000, ""),
        ("", "is empty"),
    ],
    ids=["text", "thought", "nothing"],
)
def test_an_endless_reply_earns_what_a_wrong_one_earns(
    api: TestClient, pool: FilePool, text: str, said: str
) -> None:
    begun = api.post("/v1/rollouts", json={"task": TASK, "turns": 2}).json()
    where = f"/v1/rollouts/{begun['id']}"
    (turn,) = api.post(f"{where}/replies", json={"reply": text, "turn": 0}).json()["turns"]
    assert turn["reward"] == 0.0 and said in turn["outcome"]["reason"]
    assert len(api.post(f"{where}/replies", json={"reply": text, "turn": 0}).json()["turns"]) == 1  # once
    assert (
        api.post(f"{where}/replies", json={"reply": reply(1.5), "turn": 1}).json()["turns"][1]["reward"] > 0
    )
    alone = {"task": TASK, "reply": text, "scheme": "kevin"}
    found = api.post("/v1/evaluations", params={"wait": 30}, json=alone).json()
    assert found["reward"] == 0.0 and said in found["reason"] and "\n" not in found["reason"]
    assert api.post("/v1/slime", json={"prompt": "", "response": text, "label": TASK}).json() == 0.0
    batch = {"query": ["p" + text, "p" + reply(2.0)], "prompts": ["p", "p"], "labels": [TASK, TASK]}
    rewards = api.post("/v1/openrlhf", json=batch).json()["rewards"]
    assert rewards[0] == 0.0 and rewards[1] > 0
    assert len(pool.counts) == 2  # what holds no file is not tried


def test_a_rollout_goes_on_after_a_restart(tmp_path: Path, pool: FilePool) -> None:
    with service(tmp_path / "requests.db", pool) as made, TestClient(application(made)) as api:
        begun = api.post("/v1/rollouts", json={"task": TASK, "turns": 3, "scheme": "kevin"}).json()
        where = f"/v1/rollouts/{begun['id']}"
        first = api.post(f"{where}/replies", json={"reply": reply(1.5)}).json()
    with service(tmp_path / "requests.db", pool) as made, TestClient(application(made)) as api:
        assert api.get(where).json() == first
        assert pool.counts.total() == 1
        assert len(api.post(f"{where}/replies", json={"reply": reply(1.6), "turn": 1}).json()["turns"]) == 2


def test_a_server_that_is_stopped_waits_for_no_rollout(tmp_path: Path) -> None:
    gate = threading.Event()
    with service(tmp_path / "requests.db", FilePool(gate=gate)) as made, ThreadPoolExecutor(1) as threads:
        id = made.rollouts.begin(RolloutRequest(task=TASK, turns=2), "who").id
        answer = threads.submit(made.rollouts.reply, id, RolloutReply(reply=reply(1.5)), "who")
        try:
            while not made.queue.running:
                time.sleep(0.001)
            made.queue.stop()
            state = answer.result(30)
        finally:
            gate.set()
        assert state is not None and state.ended == "no verdict: the server was stopped"
    with service(tmp_path / "requests.db") as made:  # what is left is done at the next start
        state = made.rollouts.find(id, "who")
        assert state is not None and not state.ended and (state.turns[0].reward or 0) > 0


def test_an_end_is_told_once_however_many_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, both, told = threading.Event(), threading.Barrier(2), []
    with service(tmp_path / "requests.db", FilePool(gate=gate)) as made:
        queue, find = made.queue, made.queue.find
        (asked,) = queue.accept([EvaluationRequest(task=TASK, source=file(1.5))], "who")

        def meet(id: str, client: str) -> EvaluationResult | None:
            found = find(id, client)
            if found is not None and found.state == "done":
                both.wait(30)
            return found

        monkeypatch.setattr(queue, "find", meet)
        queue.when_ended(asked.id, "who", told.append)
        (look,) = queue._watchers[asked.id]
        gate.set()
        while (found := find(asked.id, "who")) is None or found.state != "done":
            time.sleep(0.001)
        look(asked.id)  # as the thread that ends the request does
    assert len(told) == 1


def test_a_rollout_without_a_verdict_ends_without_a_reward(api: TestClient) -> None:
    begun = api.post("/v1/rollouts", json={"task": TASK, "turns": 2}).json()
    found = api.post(f"/v1/rollouts/{begun['id']}/replies", json={"reply": reply(1, "dies")}).json()
    assert found["ended"] == "no verdict: a worker died"
    assert [turn["reward"] for turn in found["turns"]] == [None] and found["returns"] == [None]
