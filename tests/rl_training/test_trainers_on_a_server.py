"""Trainers whose rewards come from a server: hacks and gold checks over it, two of them on one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelwright.agent.profiled import ProfilingPool
from kernelwright.kernelbench.records import Candidate, Interval
from kernelwright.kernelbench.remote.evaluator import RemoteEvaluator, reachable
from kernelwright.rl_training.environment.gold import gold_check
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.rollout import Rollout
from kernelwright.rl_training.environment.task_data import TaskData, WinningKernel
from kernelwright.rl_training.rewards.hacks import HackMemory
from kernelwright.rl_training.rewards.scheme import SCHEMES
from tests.helpers.evaluator.no_processes import NoProcesses
from tests.helpers.results.run_factory import TARGET
from tests.helpers.rl_training.recorded import WORK, builtin_task
from tests.helpers.rl_training.served import FilePool, file, served

DATA = TaskData(task=builtin_task("level1/relu"), language="cpp", target=TARGET, work=WORK)


@contextmanager
def trainer(url: str, token: str | None = None) -> Iterator[ProfilingPool]:
    [server] = reachable([url], token, away_s=60.0)
    evaluator = RemoteEvaluator(server, NoProcesses(), owns_server=True)  # type: ignore[arg-type]
    with evaluator, ProfilingPool(evaluator, slots=4) as pool:
        yield pool


def reply(speedup: float, mark: str = "") -> str:
    return f"```python\n{file(speedup, mark)}```\n"


def test_two_trainers_share_a_server_and_have_rewards_of_their_own(tmp_path: Path) -> None:
    pool = FilePool()
    with (
        served(tmp_path / "requests.db", pool, tokens=["of-the-first", "of-the-second"]) as url,
        trainer(url, "of-the-first") as first,
        trainer(url, "of-the-second") as second,
    ):
        kevin, plain = Grader(first, SCHEMES["kevin"]), Grader(second, SCHEMES["log-speedup"])
        begun = [
            (rollout, text, rollout.begin(text))
            for text in (reply(1.5), reply(1.2), reply(1.0, "dies"))
            for rollout in (Rollout(DATA, kevin), Rollout(DATA, plain))
        ]
        rewards = [rollout.finish(pending, text).reward for rollout, text, pending in begun]
    assert rewards[0] is not None and rewards[1] is not None and rewards[0] > 1.5 > rewards[1] > 0
    assert rewards[4:] == [None, None]
    # What both wrote was evaluated for both of them at once; what dies is tried three times, for one that came
    # after the other's end once more.
    once, again, tries = sorted(pool.counts.values())
    assert (once, again) == (1, 1) and tries in (3, 6)


def test_hacks_that_a_server_caught_are_remembered_here(tmp_path: Path) -> None:
    with (
        served(tmp_path / "requests.db") as url,
        trainer(url) as pool,
        HackMemory(tmp_path / "hacks.db") as hacks,
    ):
        grader = Grader(pool, SCHEMES["kevin"], hacks=hacks)
        first = Rollout(DATA, grader).take(reply(3.0, "cheats"))
        again = Rollout(DATA, grader).take(reply(4.0, "cheats"))
        assert first.reward == 0.0 and again.reward == pytest.approx(-0.5)
        assert len(hacks) == 2
        assert "keep coming back" in Rollout(DATA, grader).messages[-1].content


@pytest.mark.parametrize(("stored", "problems"), [
    (1.4, []), (2.5, ["the winner's speedup is at most 1.53, and was at least 2.5"]),
])  # fmt: skip
def test_the_gold_check_of_a_served_environment(tmp_path: Path, stored: float, problems: list[str]) -> None:
    winner = Candidate(source=file(1.5), language="cpp", author="test")
    interval = Interval(median=stored, low=stored, high=stored)
    data = DATA.model_copy(update={"winner": WinningKernel(candidate=winner, speedup=interval)})
    with served(tmp_path / "requests.db", FilePool(kernels_only=True)) as url, trainer(url) as pool:
        found = gold_check(Grader(pool, SCHEMES["kevin"]), data)
    assert list(found.problems) == problems
    assert found.reference_rewards == {"as it stands": 0.0, "renamed": 0.0, "disguised": 0.0}
