"""Contrastive prompts: how exemplars are drawn, and that they advance while training goes on."""

import math
import random
from collections import Counter
from pathlib import Path

import pytest

from kernelwright.kernelbench.records import Interval, Speedup, Verdict
from kernelwright.rl_training.environment.environment import TrainingEnvironment
from kernelwright.rl_training.environment.grader import Grader
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.exemplars import ExemplarStore, probabilities
from kernelwright.rl_training.outcome import Outcome
from kernelwright.rl_training.rewards.hacks import HackMemory
from kernelwright.rl_training.rewards.scheme import SCHEMES
from kernelwright.rl_training.trajectory import Turn
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import WORK, builtin_task, kernel, made, tried

TASKS = [
    TaskData(task=builtin_task(name), language="cpp", target=run_factory.TARGET, work=WORK)
    for name in ("level1/relu", "level1/softmax")
]
RELU = TASKS[0].task.id


def outcome(low: float, verdict: Verdict = Verdict.correct) -> Outcome:
    return Outcome(verdict=verdict, speedup=Speedup(eager=Interval(median=2 * low, low=low, high=3 * low)))


def stored(*lows: float) -> ExemplarStore:
    store = ExemplarStore()
    for low in lows:
        assert store.add(RELU, made(kernel(f"{low}")), outcome(low))
    return store


def test_only_what_is_right_and_timed_is_an_exemplar() -> None:
    store = ExemplarStore()
    assert not store.add(RELU, made(kernel()), outcome(9.0, Verdict.cheating))
    assert not store.add(RELU, made(kernel()), Outcome(verdict=Verdict.correct))
    as_it_is = made("class ModelNew: ...").model_copy(update={"language": "torch"})
    assert not store.add(RELU, as_it_is, outcome(1.0))
    decoy = outcome(1.2).model_copy(update={"own_kernel_share": 0.01})
    assert not store.add(RELU, made(kernel()), decoy)
    assert store.version == 0
    assert store.add(RELU, made(kernel()), outcome(2.0))
    assert not store.add(RELU, made(kernel()), outcome(3.0))  # the lower of two measurements counts
    assert store.add(RELU, made(kernel()), outcome(1.5))
    assert [e.speedup for e in store.of(RELU)] == [1.5]


def test_buckets_are_drawn_by_their_mean_with_a_temperature() -> None:
    means = [1.0, 2.0, 4.0]
    mu = sum(means) / 3
    total = sum(math.exp((mean - mu) / 0.5) for mean in means)
    expected = [math.exp((mean - mu) / 0.5) / total for mean in means]
    assert probabilities(means, 0.5) == pytest.approx(expected)
    assert probabilities([1.0, 5000.0], 0.5) == [0.0, 1.0]  # without overflow


def test_each_exemplar_is_of_another_bucket_and_the_faster_come_more_often() -> None:
    store = stored(1.0, 1.01, 1.5, 3.0, 3.1)  # buckets: two, one, two
    rng = random.Random(0)
    drawn = [store.draw(RELU, rng, most=2, temperature=1.0) for _ in range(4000)]
    assert all(len(pair) == 2 and pair[0].bucket < pair[1].bucket for pair in drawn)
    first, second, third = probabilities([1.005, 1.5, 3.05], 1.0)
    # Of two without replacement, that the fastest bucket is among them:
    expected = third + first * third / (second + third) + second * third / (first + third)
    pairs = Counter(tuple(exemplar.speedup for exemplar in pair) for pair in drawn)
    among = sum(count for pair, count in pairs.items() if pair[1] > 2) / len(drawn)
    assert among == pytest.approx(expected, abs=0.03)
    within = sum(count for pair, count in pairs.items() if 3.0 in pair)
    assert within / len(drawn) == pytest.approx(expected / 2, abs=0.03)  # uniform within a bucket


def test_there_may_be_fewer() -> None:
    rng = random.Random(0)
    assert stored().draw(RELU, rng) == []
    assert [e.speedup for e in stored(2.0).draw(RELU, rng)] == [2.0]
    assert len(stored(2.0, 2.01).draw(RELU, rng)) == 1  # of one bucket


def test_a_run_gives_what_never_failed(tmp_path: Path) -> None:
    with run_factory.new_run(tmp_path) as run:
        task = TASKS[0].task
        run.add_task(task)
        good = tried(run, task, made(kernel("x[i]")), 2.0)
        flaky = tried(run, task, made(kernel("-x[i]")), 9.0)
        tried(run, task, flaky, None, Verdict.nondeterministic, confirms=True)
        store = ExemplarStore()
        store.learn(run)
    assert [e.candidate for e in store.of(RELU)] == [good.sha256]


def test_a_prompt_shows_the_kernels_with_their_speedups() -> None:
    system, user = environment(1.25, 4.0).rollout(RELU, 0).messages
    plain = environment().rollout(RELU, 0).messages
    assert system == plain[0] and user.content.startswith(plain[1].content.rstrip())
    slow, fast = user.content.index("1.25 times as fast"), user.content.index("4 times as fast")
    assert slow < user.content.index("y[i] = 1.25") < fast < user.content.index("y[i] = 4.0")
    assert "**Analysis**" in user.content and "**Analysis**" not in plain[1].content


def test_what_a_policy_writes_is_taken_in() -> None:
    store = stored(1.0)
    turn = Turn(messages=(), reply="", candidate="", source=kernel("9.0"), outcome=outcome(9.0))
    assert store.see(TASKS[0], turn)
    assert not store.see(TASKS[0], turn.model_copy(update={"source": ""}))  # the reply held no file
    assert [e.speedup for e in store.of(RELU)] == [1.0, 9.0]


def environment(*speedups: float, hacks: HackMemory | None = None, seed: int = 0) -> TrainingEnvironment:
    grader = Grader(None, SCHEMES["kevin"], hacks=hacks)  # type: ignore[arg-type]
    return TrainingEnvironment(
        {d.task.id: d for d in TASKS}, grader, exemplars=stored(*speedups), shown=2, seed=seed
    )


def prompt(of: TrainingEnvironment, draw: int = 0) -> str:
    return of.rollout(RELU, draw).messages[-1].content


def test_a_prompt_warns_of_hacks_that_keep_coming_back(tmp_path: Path) -> None:
    caught = Outcome(verdict=Verdict.cheating, reason="it kept a result")
    with HackMemory(tmp_path / "hacks.db") as hacks:
        before = prompt(environment(1.0, hacks=hacks))
        for number in range(2):
            hacks.caught(RELU, f"{number}", kernel(f"x[i] + {number}"), caught)
        after = prompt(environment(1.0, hacks=hacks))
    assert after.startswith(before) and "it kept a result" in after.removeprefix(before)


def test_a_group_shares_a_prompt() -> None:
    """The same draw is the same prompt, whenever it is made: a run that was killed goes on alike."""
    prompts = [prompt(environment(1.0, 2.0, 4.0, 8.0, seed=3), draw) for draw in range(20)]
    assert prompts == [prompt(environment(1.0, 2.0, 4.0, 8.0, seed=3), draw) for draw in range(20)]
    assert prompts != [prompt(environment(1.0, 2.0, 4.0, 8.0, seed=4), draw) for draw in range(20)]
    assert len(set(prompts)) > 1


def test_exemplars_advance_with_what_is_written() -> None:
    of = environment(1.0)
    for step in range(4):
        assert f"y[i] = {float(4**step)}" in prompt(of, step)  # the newest, which is the fastest by far
        low = float(4 ** (step + 1))
        of.exemplars.add(RELU, made(kernel(f"{low}")), outcome(low))


def test_exemplars_are_kept_with_a_checkpoint(tmp_path: Path) -> None:
    of = environment(1.0, 2.0, 4.0)
    of.exemplars.save(tmp_path / "exemplars.json")
    loaded = ExemplarStore.load(tmp_path / "exemplars.json")
    assert loaded.of(RELU) == of.exemplars.of(RELU) and loaded.version == of.exemplars.version
    assert ExemplarStore.load(tmp_path / "none.json").of(RELU) == []
