"""What rewards remember: the running distribution, the best so far, the hacks."""

import statistics
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Interval, Verdict
from kernelwright.rl_training.outcome import Outcome
from kernelwright.rl_training.rewards.hacks import HackMemory
from kernelwright.rl_training.rewards.remeasure import BestSoFar, Doubt, lower
from kernelwright.rl_training.rewards.smoothing import Running
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import kernel, made, tried

REWARDS = [0.0, 1.3, 2.0, None, 0.3, 5.0]


def test_rewards_are_held_against_all_before_and_clipped() -> None:
    known = [reward for reward in REWARDS if reward is not None]
    running = Running().having_seen(REWARDS[:3]).having_seen(REWARDS[3:])
    mean, sigma = statistics.fmean(known), statistics.stdev(known)
    assert (running.count, running.mean, running.deviation) == (5, pytest.approx(mean), pytest.approx(sigma))
    smoothed = running.smoothed([40.0, -40.0, None, 2.0])
    assert smoothed == [1.5, -1.5, None, pytest.approx((2.0 - mean) / sigma)]


def test_nothing_is_said_while_there_is_no_spread() -> None:
    assert Running().smoothed([3.0]) == [0.0]
    assert Running().having_seen([1.0, 1.0]).smoothed([3.0, None]) == [0.0, None]


def test_the_running_distribution_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "rewards.json"
    assert Running.load(file) == Running()
    first = Running().having_seen(REWARDS[:3])
    first.save(file)
    assert Running.load(file).having_seen(REWARDS[3:]) == first.having_seen(REWARDS[3:])
    file.write_text("{")
    with pytest.raises(StorageError, match="delete it to start again"):
        Running.load(file)


@pytest.mark.parametrize(
    ("low", "best", "doubted"),
    [(3.1, None, True), (2.9, None, False), (2.9, 1.4, True), (2.7, 1.4, False), (None, None, False)],
)
def test_what_is_doubted(low: float | None, best: float | None, doubted: bool) -> None:
    assert Doubt().about(low, best) is doubted


def test_of_two_measurements_the_lower_counts() -> None:
    task, candidate = run_factory.task("relu"), run_factory.candidate(1)
    lucky = run_factory.evaluation(task, candidate, eager=8.0, compile=3.0)
    sober = run_factory.evaluation(task, candidate, eager=2.0, compile=4.0)
    counts = lower(lucky, sober)
    assert (
        counts.speedup is not None and counts.speedup.eager is not None and counts.speedup.compile is not None
    )
    assert (counts.speedup.eager.median, counts.speedup.compile.median) == (2.0, 3.0)
    wrong = run_factory.evaluation(task, candidate, Verdict.nondeterministic)
    assert lower(lucky, wrong).verdict is Verdict.nondeterministic


def test_the_best_so_far_is_kept(tmp_path: Path) -> None:
    task = run_factory.task("relu")
    best = BestSoFar()
    for low in (1.5, 4.0, 2.0):
        found = Interval(median=2 * low, low=low, high=3 * low)
        best.learn(task.id, run_factory.evaluation(task, run_factory.candidate(1), eager=found))
    best.learn(task.id, run_factory.evaluation(task, run_factory.candidate(1), Verdict.wrong_output))
    assert best.of(task.id) == 4.0
    best.save(tmp_path / "best.json")
    assert BestSoFar.load(tmp_path / "best.json").of(task.id) == 4.0
    assert BestSoFar.load(tmp_path / "none.json").of(task.id) is None


CAUGHT = Outcome(verdict=Verdict.cheating, reason="the output is that of the call before")
CHEAT = kernel().replace("lib.run(x, y, x.numel())", "y = self.kept = getattr(self, 'kept', x)")
RENAMED = CHEAT.replace("kept", "memo").replace("float* x, float* y", "float* a, float* y")


def remembered(memory: HackMemory, source: str, outcome: Outcome = CAUGHT) -> str | None:
    case = memory.caught("file:t", made(source).sha256, source, outcome)
    return case.candidate if case is not None else None


def test_a_hack_that_comes_back_under_other_names_is_known(tmp_path: Path) -> None:
    with HackMemory(tmp_path / "hacks.db") as memory:
        assert remembered(memory, CHEAT) is None  # the first time
        assert memory.warnings("file:t") == []
        assert remembered(memory, RENAMED) == made(CHEAT).sha256
        assert [case.reason for case in memory.warnings("file:t")] == [CAUGHT.reason]
        assert memory.warnings("file:other") == []
    with HackMemory(tmp_path / "hacks.db") as memory:  # the next day
        assert len(memory) == 2
        assert memory.warnings("file:t")[0].repeats == 1
        assert [case.source for case, _ in memory.nearest(CHEAT)] == [CHEAT, RENAMED]


def test_what_is_like_a_hack_and_not_caught_is_none(tmp_path: Path) -> None:
    with HackMemory(tmp_path / "hacks.db") as memory:
        remembered(memory, CHEAT)
        assert remembered(memory, RENAMED, Outcome(verdict=Verdict.wrong_output)) is None
        assert len(memory) == 1


def test_a_run_s_hacks_are_known_beforehand_and_repeat_nothing(tmp_path: Path) -> None:
    task = run_factory.task("relu")
    with run_factory.new_run(tmp_path) as run, HackMemory(tmp_path / "hacks.db") as memory:
        run.add_task(task)
        tried(run, task, made(CHEAT), None, Verdict.implausible)
        tried(run, task, made(RENAMED), None, Verdict.implausible)
        tried(run, task, made(kernel()), 2.0)
        assert memory.learn(run) == 2
        assert memory.learn(run) == 0
        assert memory.warnings(task.id) == []
        assert remembered(memory, CHEAT) == made(CHEAT).sha256


def test_a_file_that_is_no_memory_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "hacks.db"
    file.write_text("something else, of more than a header's hundred bytes" * 4)
    with pytest.raises(StorageError, match="memory of hacks"):
        HackMemory(file)
