"""Clients of servers of evaluations, over real HTTP: servers that fail, differ, are full or come back."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.profiled import ProfilingPool
from kernelwright.kernelbench.errors import InfrastructureError, TaskError, UsageError
from kernelwright.kernelbench.evaluator import EFFORTS, EvaluationPool, LocalEvaluator, Measurement
from kernelwright.kernelbench.evaluator.several_devices import SeveralDevices
from kernelwright.kernelbench.records import Candidate, Task, Verdict
from kernelwright.kernelbench.remote.client import EvaluationClient, ServerAwayError
from kernelwright.kernelbench.remote.evaluator import RemoteEvaluator, reachable
from kernelwright.kernelbench.remote.options import read_token, servers_target
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.rollout import Rollout
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.other_trainers.kernelwright_env.client import RewardClient
from kernelwright.rl_training.rewards.scheme import SCHEMES
from tests.helpers.evaluator.no_processes import NoProcesses
from tests.helpers.results.run_factory import TARGET
from tests.helpers.rl_training.recorded import PROFILE, WORK, builtin_task
from tests.helpers.rl_training.served import FilePool, file, process, served

TOKEN = "token-of-the-trainer"
RELU = builtin_task("level1/relu")
OTHER_CHIP = TARGET.model_copy(
    update={"fingerprint": TARGET.fingerprint.model_copy(update={"chip": "Testium 9001"})}
)


REPLIES = ((1.5, ""), (1, "wrong"), (1, "dies"))


def remote(*urls: str, away_s: float = 5.0, **options: Any) -> LocalEvaluator:
    servers = reachable(urls, options.pop("token", None), away_s=away_s, **options)
    members = [RemoteEvaluator(server, NoProcesses(), owns_server=True) for server in servers]  # type: ignore[arg-type]
    return members[0] if len(members) == 1 else SeveralDevices(members)


def candidate(speedup: float, mark: object = "") -> Candidate:
    return Candidate(source=file(speedup, mark), language="cpp", author="test")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path / "requests.db") as found:
        yield found


def test_a_server_evaluates_as_this_machine_would(url: str) -> None:
    with remote(url) as evaluator:
        found = evaluator.evaluate(RELU, candidate(1.5))
        assert (found.task, found.candidate) == (RELU.id, candidate(1.5).sha256)
        assert found.verdict is Verdict.correct and found.speedup is not None
        assert evaluator.target == TARGET and evaluator.work(RELU) == WORK
        assert evaluator.rejected(RELU, candidate(1), "no file").verdict is Verdict.build_error


def test_profiles_are_read_where_candidates_run(url: str) -> None:
    with remote(url) as evaluator, ProfilingPool(evaluator, slots=1) as pool:
        found = pool.evaluate(RELU, candidate(1.5))
        assert pool.profile(RELU, candidate(1.5), found) == PROFILE
        with pytest.raises(TaskError, match="is of another task or candidate"):
            evaluator.profiled_there(RELU, candidate(1.6), found, None, False)


def test_the_effort_is_that_of_who_asks(tmp_path: Path) -> None:
    efforts = []

    class Noting(FilePool):
        def submit(self, task: Task, candidate: Candidate, measurement: Measurement = Measurement(), client: str = "") -> Any:  # fmt: skip
            efforts.append(measurement.effort)
            return super().submit(task, candidate, measurement, client)

    with served(tmp_path / "requests.db", Noting()) as url, remote(url, effort=EFFORTS["quick"]) as evaluator:
        evaluator.evaluate(RELU, candidate(1.5))
        evaluator.evaluate(RELU, candidate(1.5), Measurement(effort=EFFORTS["thorough"]))
    assert efforts == [EFFORTS["quick"], EFFORTS["thorough"]]


def test_a_server_that_is_away(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UsageError, match=rf"{nowhere} does not answer .* — check the address, or start it"):
        reachable([nowhere], None)
    for bad in ("gpu7:8900", "ftp://gpu7", "http://", "http://gpu7:port"):
        with pytest.raises(UsageError, match="is no address of a server — give one such as http://gpu7:8900"):
            EvaluationClient(bad)


def test_another_program_at_that_address() -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UsageError, match="is not a server of evaluations of this version"):
            reachable([f"http://127.0.0.1:{server.server_port}"], None)
        server.shutdown()


@contextmanager
def endless() -> Iterator[str]:
    """A server whose every answer goes on for as long as somebody reads it."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b" " * 65536)
            except OSError:
                pass  # who read has gone

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_an_answer_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.kernelbench.remote.client._MOST_BYTES", 1 << 20)
    monkeypatch.setattr(
        "kernelwright.rl_training.other_trainers.kernelwright_env.client._MOST_BYTES", 1 << 20
    )
    with endless() as url:
        with pytest.raises(UsageError, match=r"does not answer \(its answer does not end\)"):
            reachable([url], None)
        graded = RewardClient(url, away_s=0.0).grade(RELU.id, "no file")
        assert graded.reward is None and graded.reason.endswith("its answer does not end")


def test_a_file_that_a_server_does_not_take_is_one_line(url: str) -> None:
    long = Candidate(source="x" * 1_000_001, language="torch", author="test")
    with remote(url) as evaluator:
        with pytest.raises(TaskError, match="does not take this: source: String should have at most 1000000"):
            evaluator.evaluate(RELU, long)
        assert evaluator.evaluate(RELU, candidate(1.5)).verdict is Verdict.correct


def test_a_server_of_another_version(tmp_path: Path) -> None:
    with (
        served(tmp_path / "requests.db", version="9.9") as url,
        pytest.raises(UsageError, match=r"runs kernelwright 9.9, and this is .*: verdicts may differ"),
    ):
        reachable([url], None)


def test_a_wrong_token(tmp_path: Path) -> None:
    with served(tmp_path / "requests.db", tokens=(TOKEN,)) as url:
        for token in (None, "wrong-token-of-a-stranger"):
            with pytest.raises(UsageError, match="wrong or missing token — give the file with it"):
                reachable([url], token)
        with remote(url, token=TOKEN) as evaluator:
            assert evaluator.evaluate(RELU, candidate(1.5)).verdict is Verdict.correct


def test_a_task_that_is_not_allowed_fails_alone(tmp_path: Path) -> None:
    with served(tmp_path / "requests.db", any_source=False) as url, remote(url) as evaluator:
        with pytest.raises(TaskError, match=r"builtin:level1/gelu .* is not allowed here"):
            evaluator.evaluate(builtin_task("level1/gelu"), candidate(1.5))
        assert evaluator.evaluate(RELU, candidate(1.5)).verdict is Verdict.correct


def test_what_fails_there_is_no_verdict_here(url: str) -> None:
    with remote(url) as evaluator:
        with pytest.raises(InfrastructureError, match="a worker died"):
            evaluator.evaluate(RELU, candidate(1, "dies"))
        with pytest.raises(TaskError, match="the reference fails"):
            evaluator.evaluate(RELU, candidate(1, "no task"))


def test_a_trainer_on_a_server(tmp_path: Path) -> None:
    """Rewards come from there; where there is no verdict there is none, and the next reply has its own."""
    data = TaskData(task=RELU, language="cpp", target=TARGET, work=WORK)
    with (
        served(tmp_path / "requests.db") as url,
        remote(url) as evaluator,
        ProfilingPool(evaluator, slots=4) as pool,
    ):
        grader = Grader(pool, SCHEMES["kevin"])
        replies = [f"```python\n{file(speedup, mark)}```" for speedup, mark in REPLIES]
        rollouts = [Rollout(data, grader) for _ in replies]
        pending = [rollout.begin(reply) for rollout, reply in zip(rollouts, replies, strict=True)]
        turns = [
            rollout.finish(begun, reply)
            for rollout, begun, reply in zip(rollouts, pending, replies, strict=True)
        ]
    rewards = [turn.reward for turn in turns]
    assert rewards[0] is not None and rewards[0] > 1.5 and rewards[1:] == [0.0, None]
    assert turns[2].outcome.failure == "evaluator"


def test_a_full_server_is_asked_again(tmp_path: Path) -> None:
    pool = FilePool(seconds=0.05)
    with (
        served(tmp_path / "requests.db", pool, workers=1, capacity=1) as url,
        remote(url) as evaluator,
        EvaluationPool(evaluator, slots=3) as local,
    ):
        found = [local.submit(RELU, candidate(1 + n / 10)) for n in range(4)]
        assert {each.result(60).verdict for each in found} == {Verdict.correct}
    assert pool.counts.total() == 4


def test_a_slow_server_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.kernelbench.remote.client._WAIT_S", 0.1)
    with served(tmp_path / "requests.db", FilePool(seconds=1.0)) as url, remote(url) as evaluator:
        assert evaluator.evaluate(RELU, candidate(1.5)).verdict is Verdict.correct


def test_giving_up_tells_the_server(tmp_path: Path) -> None:
    pool = FilePool(gate=threading.Event())
    with served(tmp_path / "requests.db", pool, workers=1) as url, remote(url) as evaluator:
        local = EvaluationPool(evaluator, slots=2)
        found = [local.submit(RELU, candidate(1 + n)) for n in range(2)]
        client = EvaluationClient(url)
        while len(evaluator._server.client._open) < 2:  # type: ignore[attr-defined]
            time.sleep(0.01)
        local.abort()
        for each in found:
            with pytest.raises(InfrastructureError):
                each.result(30)
        local.close()
        assert pool.gate is not None
        pool.gate.set()
        metrics = client._http.get("/metrics").text
        assert 'outcome="cancelled"} 2.0' in metrics
        client.close()


@contextmanager
def two(tmp_path: Path, **options: Any) -> Iterator[tuple[str, str, FilePool, FilePool]]:
    first, second = FilePool(seconds=0.02), FilePool(seconds=0.02)
    with (
        served(tmp_path / "first.db", first) as one,
        served(tmp_path / "second.db", second, **options) as other,
    ):
        yield one, other, first, second


def test_several_servers_share_the_work(tmp_path: Path) -> None:
    with two(tmp_path) as (one, other, first, second), remote(one, other) as evaluator:
        with EvaluationPool(evaluator, slots=4) as pool:
            tasks = [builtin_task(f"level1/{name}") for name in ("relu", "softmax", "gelu", "silu")]
            found = [pool.submit(task, candidate(1 + n / 10)) for n in range(10) for task in tasks]
            assert {each.result(60).verdict for each in found} == {Verdict.correct}
        assert first.counts.total() + second.counts.total() == 40
        assert min(first.counts.total(), second.counts.total()) > 0


def test_servers_on_other_machines_are_not_mixed(tmp_path: Path) -> None:
    with (
        two(tmp_path, target=OTHER_CHIP) as (one, other, *_),
        pytest.raises(
            UsageError, match=r"cannot be compared with .*: its chip is Testium 9001, not Testium 9000"
        ),
    ):
        reachable([one, other], None)


def test_one_of_several_that_is_away_is_left_out(url: str) -> None:
    said: list[str] = []
    nowhere = f"http://127.0.0.1:{free_port()}"
    with remote(nowhere, url, say=said.append) as evaluator:
        assert evaluator.name == url
    assert len(said) == 1 and said[0].startswith(f"{nowhere} does not answer") and "left out" in said[0]


def test_another_server_takes_over_from_one_that_is_gone(tmp_path: Path) -> None:
    port = free_port()
    with (
        process(tmp_path / "first.db", port, seconds=0.2) as gone,
        served(tmp_path / "second.db", FilePool()) as other,
    ):
        evaluator = remote(f"http://127.0.0.1:{port}", other, away_s=0.5)
        with evaluator, EvaluationPool(evaluator, slots=2) as pool:
            found = [pool.submit(RELU, candidate(1 + n / 10)) for n in range(8)]
            found[0].result(30)
            gone.kill()
            assert {each.result(60).verdict for each in found} == {Verdict.correct}


def test_a_server_that_comes_back_as_another_machine(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path / "one.db", port=port) as url:
        evaluator = remote(url)
        evaluator.evaluate(RELU, candidate(1.5))
    with served(tmp_path / "one.db", port=port, target=OTHER_CHIP), evaluator:
        said = "is another machine than before: its chip is Testium 9001, not Testium 9000"
        with pytest.raises(InfrastructureError, match=said):
            evaluator.evaluate(RELU, candidate(1.5))


def test_a_server_that_lost_its_database_is_asked_anew(tmp_path: Path) -> None:
    port, pool = free_port(), FilePool()
    found: list[Verdict] = []
    with process(tmp_path / "lost.db", port, seconds=60) as gone:
        evaluator = remote(f"http://127.0.0.1:{port}", away_s=30)
        thread = threading.Thread(
            target=lambda: found.append(evaluator.evaluate(RELU, candidate(1.5)).verdict)
        )
        thread.start()
        while not evaluator._server.client._open:  # type: ignore[attr-defined]
            time.sleep(0.01)
        gone.kill()
        gone.wait()
    with served(tmp_path / "new.db", pool, port=port), evaluator:
        thread.join(30)
    assert found == [Verdict.correct] and pool.counts.total() == 1


def test_a_server_that_is_killed_and_started_again(tmp_path: Path) -> None:
    port, database = free_port(), tmp_path / "requests.db"
    found: list[Verdict] = []

    def ask(number: int) -> None:
        with remote(f"http://127.0.0.1:{port}", away_s=60) as evaluator:
            ready.release()
            found.append(evaluator.evaluate(RELU, candidate(1 + number / 10)).verdict)

    ready = threading.Semaphore(0)
    threads = [threading.Thread(target=ask, args=[number]) for number in range(8)]
    with process(database, port, seconds=0.3) as first:
        for thread in threads:
            thread.start()
        for _ in threads:
            ready.acquire()
        while not (tmp_path / "requests.log").exists():
            time.sleep(0.02)
        first.kill()  # -9
        first.wait()
    with process(database, port):
        for thread in threads:
            thread.join(60)
        assert found == [Verdict.correct] * 8
        with remote(f"http://127.0.0.1:{port}") as evaluator:
            metrics = evaluator._server.client._http.get("/metrics").text  # type: ignore[attr-defined]
    assert 'kernelwright_requests{state="queued"} 0.0' in metrics


def test_the_options_of_a_server_are_its_own(url: str) -> None:
    assert servers_target([url], None, target="cpu") == TARGET
    for options, said in (
        ({"target": "cuda:0"}, "evaluates on cpu, not on cuda:0 — leave out --target"),
        ({"target": "cpu", "own_kernels": 0.5}, "--require-own-kernels is for .* to say"),
        ({"target": "cpu", "compile_limit": 5.0}, "--compile-limit is for"),
        ({"target": "cpu", "check_first": True}, "--check-first is for"),
    ):
        with pytest.raises(UsageError, match=said):
            servers_target([url], None, **options)  # type: ignore[arg-type]


def test_a_file_with_a_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"# mine\n{TOKEN}\nanother\n")
    assert read_token(path) == TOKEN and read_token(None) is None
    path.write_text("\n")
    with pytest.raises(UsageError, match="has no token"):
        read_token(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(tmp_path / "missing")


def test_a_client_that_was_closed_says_so(url: str) -> None:
    client = EvaluationClient(url)
    client.close()
    with pytest.raises(ServerAwayError):
        client.health()
