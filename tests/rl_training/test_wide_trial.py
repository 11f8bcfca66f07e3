"""Trials of methods in the wide demo: what is picked, what counts, and what is kept of it."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Candidate
from kernelwright.rl_training.demo.settings import AFRESH
from kernelwright.rl_training.demo.wide.search import searched
from kernelwright.rl_training.demo.wide.settings import REWARD, SHORT_WIDE, WideSettings
from kernelwright.rl_training.demo.wide.tasks import LANGUAGE, WideTask, drawn_tasks
from kernelwright.rl_training.demo.wide.trial import ResultsFile, WideTrial, results_in
from kernelwright.rl_training.outcome import outcome_of
from kernelwright.rl_training.rewards.reward_input import RewardInput
from tests.helpers.builtin.schedules import space_of, task_of
from tests.helpers.results import run_factory
from tests.helpers.rl_training.simulated_times import SimulatedPool, simulated_speedup


@pytest.fixture(scope="module")
def task() -> WideTask:
    space = space_of("torch.softmax(torch.tanh(x), dim=-1)")
    return WideTask(task=task_of(space, "softmax"), kind="held out", graph=space.graph.to_json())


@pytest.fixture
def pool(task: WideTask) -> SimulatedPool:
    return SimulatedPool({task.task.id: task.space})


def some(task: WideTask, count: int = 6) -> list[Candidate]:
    rng = random.Random(0)
    return [task.space.candidate(task.space.draw(rng)) for _ in range(count)]


def test_what_is_picked_counts_by_another_measurement(task: WideTask, pool: SimulatedPool) -> None:
    made = some(task)
    lows, best_of = WideTrial(pool).of(task, made, (1, 3, 6))
    for n, value in best_of.items():
        picked = made[max(range(n), key=lambda place: lows[place])]
        again = pool.submit(task.task, picked, WideTrial(pool).measurement(AFRESH)).result().speedup
        assert again is not None and again.eager is not None and value == again.eager.median
    assert pool.asked == 6 + len({lows.index(max(lows[:n])) for n in (1, 3, 6)}) + 3


def test_where_nothing_is_right_the_reference_stays(task: WideTask, pool: SimulatedPool) -> None:
    assert WideTrial(pool).of(task, [], (1, 4)) == ((), {1: 1.0, 4: 1.0})


def test_results_are_kept_as_they_come(tmp_path: Path, task: WideTask, pool: SimulatedPool) -> None:
    path, made = tmp_path / "results.jsonl", some(task)

    def again() -> Sequence[Candidate]:
        raise AssertionError("it is known")

    first = ResultsFile(path, "c").keep(WideTrial(pool), "policy", 0, task, (1, 4), lambda: made)
    with path.open("a") as file:
        file.write('{"claim": "c", "meth')  # cut off by a kill
    assert ResultsFile(path, "c").keep(WideTrial(pool), "policy", 0, task, (1, 4), again) == first
    second = ResultsFile(path, "c").keep(WideTrial(pool), "policy", 1, task, (1, 4), lambda: made[:4])
    assert results_in(path) == [first, second]  # also when it is resumed once more
    with path.open("a") as file:
        file.write('{"claim": "c"}\n')
    with pytest.raises(StorageError, match="entry 3 is damaged"):
        results_in(path)


def test_the_coders_search_ends_at_its_evaluations(task: WideTask, pool: SimulatedPool) -> None:
    found = searched(task, pool, LANGUAGE, 6)
    speeds = [simulated_speedup(task.space, made) for made in found]
    assert len({made.sha256 for made in found}) == len(found) == 6
    assert max(speeds) > speeds[0]  # it finds something over the default


def test_slow_kernels_are_told_apart_and_beat_wrong_ones(task: WideTask) -> None:
    [made] = some(task, 1)

    def earned(eager: float) -> float:
        evaluation = run_factory.evaluation(task.task, made, eager=eager)
        return REWARD(RewardInput(outcome_of(evaluation), made.source)).value or 0.0

    assert 0 < earned(0.2) < earned(0.5) < earned(1.5) < earned(3.0)


def test_held_out_sequences_occur_in_no_rewarded_task() -> None:
    settings = WideSettings(suite_tasks=0)
    drawn = list(drawn_tasks(settings))
    rewarded, held = ([t for t, kind in drawn if kind == which] for which in ("rewarded", "held out"))
    assert len(held) == 96 and len(rewarded) == 4 * (234 - 96)

    def forward(source: str) -> str:
        return source.partition("def forward")[2].partition("def get_inputs")[0]

    assert len({forward(each.source) for each in held}) == 96
    assert not {forward(each.source) for each in held} & {forward(each.source) for each in rewarded}
    assert len({each.id for each in (*held, *rewarded)}) == len(held) + len(rewarded)


def test_the_short_form_is_small() -> None:
    assert SHORT_WIDE.evaluations == 8 and SHORT_WIDE.equal == 6
