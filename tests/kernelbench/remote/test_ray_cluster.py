"""Evaluation on the nodes of a Ray cluster, some of which die: nothing is lost, nothing counted twice."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernelwright[cluster]'")

from kernelwright.agent.cluster_slot import started_slot
from kernelwright.kernelbench.candidates import reference_candidate
from kernelwright.kernelbench.errors import InfrastructureError, UsageError
from kernelwright.kernelbench.evaluator import EFFORTS, SEARCH, EvaluationPool, Limits, Measurement, Protocol
from kernelwright.kernelbench.evaluator.pool import NoVerdictError
from kernelwright.kernelbench.records import Candidate, Evaluation, Target, Verdict
from kernelwright.kernelbench.remote.cluster import evaluator
from kernelwright.kernelbench.remote.cluster.evaluator import on_cluster
from kernelwright.kernelbench.sources import resolve
from tests.helpers.evaluator.cluster_nodes import add_node, cluster, costly_slot, logged, wait_for
from tests.helpers.evaluator.no_processes import NoProcesses
from tests.helpers.results.run_factory import TARGET, task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TASKS = [task(f"task-{number}") for number in range(5)]


def candidate(mark: object) -> Candidate:
    return Candidate(source=f"# {mark}\nclass ModelNew: ...\n", language="cpp", author="test")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Three nodes that are timed, and one that builds."""
    with cluster(timed=3, builders=1) as found:
        yield found


@pytest.fixture(autouse=True)
def no_local_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.node.name:
        monkeypatch.setattr(evaluator.Referee, "start", lambda **_: NoProcesses())


@contextmanager
def evaluating(folder: Path, said: list[str], recorded: Target | None = None, **options: Any) -> Iterator[EvaluationPool]:  # fmt: skip
    start = partial(costly_slot, folder=folder, **options)
    with (
        on_cluster(start, device="cpu", cache=folder, recorded=recorded, say=said.append) as found,
        EvaluationPool(found) as pool,
    ):
        yield pool


def without_builders(pool: EvaluationPool) -> None:
    pool._evaluator.members[0]._builders.handles.clear()  # type: ignore[attr-defined]


def submitted(pool: EvaluationPool, count: int) -> dict[str, Future[Evaluation]]:
    found = {}
    for number in range(count):
        one = candidate(number)
        found[one.sha256] = pool.submit(TASKS[number % len(TASKS)], one, client=str(number % 7))
    return found


def test_workers_and_a_node_die_and_nothing_is_lost_or_counted_twice(
    nodes: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    import ray

    doomed = add_node(nodes)
    said: list[str] = []
    with evaluating(tmp_path, said, seconds=0.1) as pool:
        assert len(pool._devices) == 4
        answers = submitted(pool, 200)
        wait_for(lambda: len(logged(tmp_path, "ended")) >= 20)
        os.kill(next(line[2] for line in logged(tmp_path, "begun")), signal.SIGKILL)
        wait_for(lambda: len(logged(tmp_path, "ended")) >= 60)
        nodes.remove_node(doomed, allow_graceful=False)  # kill -9 of its raylet
        found = {sha256: answer.result(timeout=600) for sha256, answer in answers.items()}
        known = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        assert len(known) == 5  # a head, three that are timed, one that builds
    assert {sha256: one.candidate for sha256, one in found.items()} == {sha256: sha256 for sha256 in answers}
    assert {one.verdict for one in found.values()} == {Verdict.correct}
    ended = Counter(line[1] for line in logged(tmp_path, "ended"))
    assert set(ended) == set(answers)
    # Only what was under way where something died may have been evaluated to the end and once more.
    at_a_time = 1 + 2  # on each slot
    assert sum(ended.values()) <= 200 + 2 * at_a_time
    assert not [line for line in said if "left out" in line]  # all four were used
    (line,) = [record.message for record in caplog.records if "left out" in record.message]
    assert "is left out: it is gone; node" in line
    output = capfd.readouterr()
    assert "raylet" not in output.out + output.err


def test_a_process_that_dies_is_started_again_and_its_evaluation_tried_again(
    nodes: Any, tmp_path: Path
) -> None:
    with evaluating(tmp_path, []) as pool:
        without_builders(pool)
        assert pool.evaluate(TASKS[0], candidate("kills once")).verdict is Verdict.correct
    assert len(logged(tmp_path, "begun")) == 2
    assert len(logged(tmp_path, "ended")) == 1


def test_three_deaths_are_no_verdict(nodes: Any, tmp_path: Path) -> None:
    with evaluating(tmp_path, []) as pool:
        without_builders(pool)
        with pytest.raises(NoVerdictError, match=r"no verdict: 3 processes that worked on it died"):
            pool.evaluate(TASKS[0], candidate("kills"))
        assert pool.evaluate(TASKS[0], candidate("another")).verdict is Verdict.correct
    assert len(logged(tmp_path, "begun")) == 3 + 1


def test_nodes_that_are_not_timed_build_and_check(nodes: Any, tmp_path: Path) -> None:
    with evaluating(tmp_path, []) as pool:
        assert pool.evaluate(TASKS[0], candidate("wrong")).verdict is Verdict.wrong_output
        assert logged(tmp_path, "begun") == []  # it took no time of a timing slot
        assert pool.evaluate(TASKS[0], candidate("right")).verdict is Verdict.correct
    (timed,) = logged(tmp_path, "begun")
    _, checked = logged(tmp_path, "checked")
    assert timed[2] != checked[2] and timed[3] == [f"built by {checked[2]}"]


def test_nodes_of_another_chip_are_left_out(nodes: Any, tmp_path: Path) -> None:
    import ray

    timed = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("kernelwright_evaluation"))  # fmt: skip
    said: list[str] = []
    chips = {timed[0]: "Testium 9001"}
    with evaluating(tmp_path, said, chips=chips) as pool:
        assert len(pool._devices) == 2 and pool.target == TARGET
    (line,) = [line for line in said if "left out" in line]
    assert line.endswith("is left out: its chip is Testium 9001, not Testium 9000")
    other = TARGET.model_copy(update={"fingerprint": TARGET.fingerprint.model_copy(update={"chip": "Z80"})})
    with (
        pytest.raises(
            UsageError, match=r"no node of the cluster is what this run was measured on: its chip is"
        ),
        evaluating(tmp_path, said, recorded=other),
    ):
        pass


def test_an_interrupt_ends_what_is_under_way_and_the_actors(nodes: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), evaluating(tmp_path, [], seconds=600) as pool:
        answers = list(submitted(pool, 9).values())
        pids = lambda: {line[2] for line in logged(tmp_path, "checked")}  # noqa: E731
        wait_for(lambda: pids())
        raise KeyboardInterrupt
    assert all(answer.done() for answer in answers)
    for answer in answers:
        assert answer.cancelled() or isinstance(answer.exception(), InfrastructureError)
    for pid in pids():
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists())


def test_a_real_evaluation(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder's node builds and checks; the nodes are one machine, so one of them is timed."""
    said: list[str] = []
    (relu,) = resolve(["builtin:level1/relu"], overrides={"batch_size": "64"})
    start = partial(
        started_slot,
        device="cpu",
        chips=(),
        protocol=Protocol(effort=EFFORTS["quick"]),
        limits=Limits(),
        profilers="none",
    )
    with on_cluster(start, device="cpu", cache=tmp_path, say=said.append) as found:
        evaluation = found.evaluate(relu, reference_candidate(relu), Measurement(("eager",), SEARCH))
        assert found.work(relu).input_bytes > 0
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.speedup is not None and evaluation.target.device == "cpu"
    said = [line for line in said if "left out" in line]
    assert len(said) == 2 and all("is on the same machine, which is timed" in line for line in said)
