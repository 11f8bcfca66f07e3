"""The service of evaluations over HTTP: results, refusals, turns, restarts."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.records import Verdict
from kernelwright.rl_training.serving.evaluator.app import MOST_BYTES, application
from kernelwright.rl_training.serving.evaluator.guards import read_tokens
from kernelwright.rl_training.serving.evaluator.ledger import Ledger
from tests.helpers.rl_training.served import TASK, FilePool, file, service

TOKEN, OTHER = "token-of-the-first-client", "token-of-the-second-client"


@contextmanager
def client(database: Path, pool: FilePool | None = None, **options: Any) -> Iterator[TestClient]:
    with service(database, pool, **options) as made, TestClient(application(made)) as found:
        yield found


@pytest.fixture
def api(tmp_path: Path) -> Iterator[TestClient]:
    with client(tmp_path / "requests.db") as found:
        yield found


def ask(api: TestClient, wait: float = 20, **request: Any) -> Any:
    asked = {"task": TASK, "scheme": "kevin", **request}
    return api.post("/v1/evaluations", params={"wait": wait}, json=asked)


def test_a_result_has_verdict_reward_interval_and_machine(api: TestClient) -> None:
    found = ask(api, source=file(1.5))
    assert found.status_code == 200
    result = found.json()
    assert (result["state"], result["verdict"], result["cached"]) == ("done", "correct", False)
    assert result["reward"] == pytest.approx(0.3 + result["speedup"]["eager"]["low"])
    assert result["speedup"]["eager"]["low"] < 1.5 < result["speedup"]["eager"]["high"]
    assert result["target"]["fingerprint"]["chip"] == "Testium 9000"
    assert set(result["seconds"]) == {"queue", "build", "verify", "time"}
    assert result["evaluation"] is None
    again = api.get(f"/v1/evaluations/{result['id']}", params={"full": True})
    assert again.json()["evaluation"]["candidate"] == result["candidate"]


def test_a_wrong_file_has_a_reward_of_zero(api: TestClient) -> None:
    result = ask(api, source=file(1, "wrong")).json()
    assert (result["verdict"], result["reward"], result["no_verdict"]) == ("wrong_output", 0.0, None)


def test_its_own_failure_is_no_verdict_and_no_reward(tmp_path: Path) -> None:
    pool = FilePool()
    with client(tmp_path / "requests.db", pool) as api:
        result = ask(api, source=file(1, "dies")).json()
        assert (result["state"], result["verdict"], result["reward"]) == ("failed", None, None)
        assert (result["no_verdict"], result["reason"]) == ("evaluator", "a worker died")
        assert pool.counts.total() == 3  # it was tried again, twice
        ask(api, source=file(1, "dies"))
        assert pool.counts.total() == 6  # a failure is not what a later request gets


def test_a_broken_task_is_no_verdict_either(api: TestClient) -> None:
    result = ask(api, source=file(1, "no task")).json()
    assert (result["no_verdict"], result["reward"], result["reason"]) == ("task", None, "the reference fails")


def test_a_reply_is_graded_by_the_file_in_it(api: TestClient) -> None:
    result = ask(api, reply=f"Thoughts.\n```python\n{file(2.0)}```\n", language="cpp").json()
    assert (result["verdict"], result["candidate"]) == (
        "correct",
        ask(api, source=file(2.0)).json()["candidate"],
    )
    empty = ask(api, reply="I cannot.").json()
    assert (empty["verdict"], empty["reward"]) == ("build_error", 0.0)
    other = ask(api, reply=f"```python\n{file(2.0)}```", language="triton").json()
    assert "Triton was requested" in other["reason"]


def test_without_waiting_it_answers_at_once(tmp_path: Path) -> None:
    pool = FilePool(gate=threading.Event())
    with client(tmp_path / "requests.db", pool) as api:
        found = ask(api, wait=0, source=file(1.5))
        assert found.status_code == 202 and found.json()["state"] in ("queued", "running")
        late = api.get(f"/v1/evaluations/{found.json()['id']}", params={"wait": 0.1})
        assert late.status_code == 202 and late.json()["reward"] is None
        assert pool.gate is not None
        pool.gate.set()
        assert api.get(f"/v1/evaluations/{found.json()['id']}", params={"wait": 20}).json()["state"] == "done"


def test_equal_requests_are_evaluated_once(tmp_path: Path) -> None:
    pool = FilePool(seconds=0.05)
    with client(tmp_path / "requests.db", pool) as api:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: ask(api, source=file(1.5)).json(), range(8)))
        assert {each["verdict"] for each in found} == {"correct"} and len({each["id"] for each in found}) == 8
        assert ask(api, source=file(1.5)).json()["cached"]
        assert not ask(api, source=file(1.5), scheme="dr-kernel").json()["cached"]
    assert pool.counts.total() == 2


def test_results_outlive_the_server(tmp_path: Path) -> None:
    pool = FilePool()
    with client(tmp_path / "requests.db", pool) as api:
        first = ask(api, source=file(1.5)).json()
    with client(tmp_path / "requests.db", pool) as api:
        assert api.get(f"/v1/evaluations/{first['id']}").json() == first
        assert ask(api, source=file(1.5)).json()["cached"]
    assert pool.counts.total() == 1


def test_a_cached_result_is_of_the_same_machine(tmp_path: Path) -> None:
    from tests.helpers.results.run_factory import TARGET

    other = TARGET.fingerprint.model_copy(update={"chip": "Testium 9001"})
    with client(tmp_path / "requests.db") as api:
        ask(api, source=file(1.5))
    with client(tmp_path / "requests.db", target=TARGET.model_copy(update={"fingerprint": other})) as api:
        result = ask(api, source=file(1.5)).json()
    assert not result["cached"] and result["target"]["fingerprint"]["chip"] == "Testium 9001"


def test_a_key_names_one_request(api: TestClient) -> None:
    first = ask(api, source=file(1.5), key="k").json()
    assert ask(api, source=file(1.5), key="k").json()["id"] == first["id"]
    taken = ask(api, source=file(1.6), key="k")
    assert taken.status_code == 409 and "names another request" in taken.json()["error"]
    twice = [{"task": TASK, "source": file(speedup), "key": "twice"} for speedup in (2.0, 2.1)]
    assert api.post("/v1/batches", json={"evaluations": twice}).status_code == 409


def test_what_is_given_up_is_not_evaluated(tmp_path: Path) -> None:
    pool = FilePool(gate=threading.Event())
    with client(tmp_path / "requests.db", pool, workers=1) as api:
        running = ask(api, wait=0, source=file(1.1)).json()["id"]
        while api.get(f"/v1/evaluations/{running}").json()["state"] != "running":
            pass
        waiting = ask(api, wait=0, source=file(1.2)).json()["id"]
        found = api.delete(f"/v1/evaluations/{waiting}").json()
        assert (found["state"], found["reward"], found["no_verdict"]) == ("cancelled", None, "cancelled")
        assert pool.gate is not None
        pool.gate.set()
        assert api.get(f"/v1/evaluations/{running}", params={"wait": 20}).json()["state"] == "done"
        assert api.delete(f"/v1/evaluations/{running}").json()["verdict"] == "correct"
        assert pool.counts.total() == 1


def test_a_full_queue_says_when_to_come_again(tmp_path: Path) -> None:
    pool = FilePool(gate=threading.Event())
    with client(tmp_path / "requests.db", pool, workers=1, capacity=2) as api:
        for speedup in (1.1, 1.2):
            assert ask(api, wait=0, source=file(speedup), key=str(speedup)).status_code == 202
        full = ask(api, wait=0, source=file(1.3))
        assert full.status_code == 429 and 1 <= int(full.headers["retry-after"]) <= 60
        batch = {"evaluations": [{"task": TASK, "source": file(2.0 + n)} for n in range(3)]}
        assert api.post("/v1/batches", json=batch).status_code == 429
        assert ask(api, wait=0, source=file(1.1), key="1.1").status_code == 202  # it is in there


def test_clients_take_turns(tmp_path: Path) -> None:
    pool = FilePool(gate=threading.Event(), log=tmp_path / "log")
    with client(tmp_path / "requests.db", pool, workers=1, tokens=(TOKEN, OTHER)) as api:
        ids = []
        for token, count in ((TOKEN, 6), (OTHER, 1)):
            api.headers["Authorization"] = f"Bearer {token}"
            ids += [ask(api, wait=0, source=file(1, f"{token}{n}")).json() for n in range(count)]
        assert pool.gate is not None
        pool.gate.set()
        last = api.get(f"/v1/evaluations/{ids[-1]['id']}", params={"wait": 20}).json()
    order = (tmp_path / "log").read_text().split()
    assert order.index(last["candidate"]) <= 2  # of seven


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Bearer", "Basic !", f"Digest {TOKEN}"])
def test_a_wrong_token_is_refused(tmp_path: Path, header: str) -> None:
    with client(tmp_path / "requests.db", tokens=(TOKEN,)) as api:
        refused = api.get("/v1/server", headers={"Authorization": header})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.json()["fix"] == "send it as Authorization: Bearer TOKEN"
        assert api.get("/health").status_code == 200
        for route in ("/metrics", "/v1/tasks", "/v1/evaluations/x", "/v1/batches/x", "/v1/rollouts/x"):
            assert api.get(route).status_code == 401


def test_nobody_sees_the_requests_of_another(tmp_path: Path) -> None:
    with client(tmp_path / "requests.db", tokens=(TOKEN, OTHER)) as api:
        api.headers["Authorization"] = f"Bearer {TOKEN}"
        mine = ask(api, source=file(1.5)).json()["id"]
        assert api.get("/v1/server", auth=("any", OTHER)).status_code == 200  # a password does as well
        api.headers["Authorization"] = f"Bearer {OTHER}"
        assert api.get(f"/v1/evaluations/{mine}").status_code == 404
        assert api.delete(f"/v1/evaluations/{mine}").status_code == 404
        assert api.get(f"/v1/evaluations/{mine}/events").status_code == 404


def test_only_the_tasks_on_the_list_are_evaluated(tmp_path: Path) -> None:
    with client(tmp_path / "requests.db", any_source=False) as api:
        listed = api.get("/v1/tasks").json()
        assert not listed["any_source"] and TASK in {task["id"] for task in listed["tasks"]}
        assert ask(api, source=file(1.5)).json()["verdict"] == "correct"
        for task in ("builtin:level1/gelu", "/etc/passwd", {"name": TASK, "set": {"features": "16"}}):
            refused = ask(api, source=file(1.5), task=task)
            assert refused.status_code == 403 and "/v1/tasks" in refused.json()["fix"]


def test_a_text_or_a_size_of_one_s_own(api: TestClient) -> None:
    from tests.helpers.rl_training.recorded import builtin_task

    text = builtin_task("level1/gelu").source
    own = ask(api, source=file(1.5), task={"name": "mine", "source": text}).json()
    assert (own["task"], own["verdict"]) == ("mine", "correct")
    set_to = ask(api, source=file(1.5), task={"name": TASK, "set": {"features": "64"}})
    assert set_to.json().get("cached") is False, set_to.text
    for task, error in (
        ({"name": "mine", "source": "x = 1"}, "Model"),
        ({"name": "mine", "source": text, "set": {"nothing": "1"}}, "nothing"),
        ({"name": "mine"}, "not known"),
    ):
        refused = ask(api, source=file(1.5), task=task)
        assert refused.status_code in (403, 422) and error in refused.json()["error"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({}, "give either source or reply"),
        ({"source": "x", "reply": "y"}, "give either source or reply"),
        ({"source": "x", "scheme": "nonsense"}, "unknown reward scheme 'nonsense'"),
        ({"source": "x", "scheme": "/etc/passwd"}, "unknown reward scheme"),
        ({"source": "x", "scheme": {"terms": []}}, "invalid scheme"),
        # It would run what is on the server, be it there by accident or put there.
        (
            {"source": "x", "scheme": {"terms": [{"term": "custom", "function": "nowhere.py:f"}]}},
            "a request names no function",
        ),
        ({"source": "x", "baselines": ["eager"]}, "a scheme says itself what is timed"),
        ({"source": "x", "effort": "endless"}, "effort"),
        ({"source": "x", "kay": "v"}, "kay"),
    ],
)
def test_an_invalid_request_is_one_line(api: TestClient, request_: dict[str, Any], said: str) -> None:
    refused = ask(api, **request_)
    assert refused.status_code == 422
    problem = refused.json()
    assert set(problem) == {"error", "fix"} and said in problem["error"] and "\n" not in problem["error"]


def test_limits_of_bodies_and_waits(api: TestClient) -> None:
    assert ask(api, wait=601, source=file(1)).status_code == 422
    assert api.post("/v1/evaluations", content=b"x" * (MOST_BYTES + 1)).status_code == 413
    parts = (b"x" * (1 << 20) for _ in range(17))  # without a Content-Length
    assert api.post("/v1/evaluations", content=parts).status_code == 413


def test_a_batch_is_accepted_together(api: TestClient) -> None:
    asked = [{"task": TASK, "source": file(1 + n / 10), "scheme": "kevin"} for n in range(5)]
    asked.append(asked[0])
    batch = api.post("/v1/batches", params={"wait": 20}, json={"evaluations": asked})
    assert batch.status_code == 200
    found = batch.json()
    assert (found["state"], found["counts"]["done"]) == ("done", 6)
    assert [each["speedup"]["eager"]["median"] for each in found["evaluations"]] == pytest.approx(
        [1.0, 1.1, 1.2, 1.3, 1.4, 1.0]
    )
    assert api.get(f"/v1/batches/{found['id']}").json() == found
    bad = api.post("/v1/batches", json={"evaluations": [*asked, {"task": "unknown", "source": "x"}]})
    assert bad.status_code == 403


def test_events_tell_each_state(tmp_path: Path) -> None:
    pool = FilePool(gate=threading.Event())
    with client(tmp_path / "requests.db", pool, workers=1) as api:
        asked = [{"task": TASK, "source": file(1 + n)} for n in range(2)]
        batch = api.post("/v1/batches", json={"evaluations": asked}).json()
        assert pool.gate is not None
        threading.Timer(0.2, pool.gate.set).start()
        with api.stream("GET", f"/v1/batches/{batch['id']}/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in stream.iter_lines() if line]
    first = batch["evaluations"][0]["id"]
    events = [line.removeprefix("event: ") for line in lines if line.startswith("event:")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data:")]
    assert events.count("done") == 2 and events == [each["state"] for each in data]
    assert [each["state"] for each in data if each["id"] == first][-2:] == ["running", "done"]


def test_metrics_count_what_ended(api: TestClient) -> None:
    ask(api, source=file(1.5))
    ask(api, source=file(1.5))
    ask(api, source=file(1, "wrong"))
    text = api.get("/metrics").text
    assert 'kernelwright_evaluations_total{outcome="correct"} 1.0' in text
    assert 'kernelwright_evaluations_total{outcome="wrong_output"} 1.0' in text
    assert "kernelwright_cached_total 1.0" in text
    assert 'kernelwright_stage_seconds_count{stage="queue"} 2.0' in text
    assert 'kernelwright_requests{state="queued"} 0.0' in text


def test_a_surprise_counts_once_it_is_confirmed(tmp_path: Path) -> None:
    pool = FilePool()
    with client(tmp_path / "requests.db", pool) as api:
        result = ask(api, source=file(50.0)).json()
    assert result["reward"] > 40 and pool.counts.total() == 2


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.rl_training.serving.evaluator.queue._INSIST_S", 0.05)
    failures = ["count_tries", "end", "end"]

    def full(name: str) -> Any:
        write = getattr(Ledger, name)

        def written(self: Ledger, *given: Any) -> Any:
            if name in failures:
                failures.remove(name)
                raise StorageError("the disk is full", "free some space")
            return write(self, *given)

        return written

    for name in ("count_tries", "end"):
        monkeypatch.setattr(Ledger, name, full(name))
    with client(tmp_path / "requests.db", workers=1) as api:
        assert ask(api, source=file(1.5)).json()["verdict"] == "correct"
        assert ask(api, source=file(1.6)).json()["verdict"] == "correct"
    assert not failures


def test_one_server_a_database(tmp_path: Path) -> None:
    with client(tmp_path / "requests.db"), pytest.raises(UsageError, match="another server works with"):
        Ledger(tmp_path / "requests.db")


def test_tokens_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# of the trainer\n{TOKEN}\n\n{OTHER}\n")
    assert read_tokens(path) == [TOKEN, OTHER]
    path.write_text("short\n")
    with pytest.raises(UsageError, match="short"):
        read_tokens(path)


def test_unfinished_verdicts_are_not_told(tmp_path: Path) -> None:
    """Verdict and reward are in the ledger before anyone is told of them."""
    with client(tmp_path / "requests.db") as api:
        found = ask(api, source=file(1.5)).json()
    ledger = Ledger(tmp_path / "requests.db")
    entry = ledger.entry(found["id"], "anyone")
    ledger.close()
    assert entry is not None and entry.result is not None
    assert json.loads(entry.result)["verdict"] == Verdict.correct
