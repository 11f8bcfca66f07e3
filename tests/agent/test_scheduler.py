"""Order of tasks: in the order given, or a first round for all and then what promises most for its cost."""

import math
import threading
from collections.abc import Mapping, Sequence

import pytest

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.spending.headroom import Headroom, eager_share, near_roofline
from kernelwright.agent.spending.scheduler import OpenTask, Scheduler
from kernelwright.kernelbench.records import (
    Candidate,
    Environment,
    Evaluation,
    Interval,
    PartOf,
    Speedup,
    Stages,
    Task,
    Timing,
    Verdict,
)
from tests.helpers.anywhere import TARGET


def attempt(speedup: float | None, eager: float | None = 0.25, author: str = "llm:m") -> Attempt:
    """A correct attempt, or a failed one. `eager`: share of the roofline that eager reaches."""
    candidate = Candidate(source="", language="cpp", author=author)
    timing = None
    if speedup:
        took, floor = 80 / speedup, 80 * eager if eager else None
        around = Interval(median=took, low=took, high=took)
        timing = Timing(candidate_us=around, floor_us=floor, calls_per_block=1, rounds=1)
    evaluation = Evaluation(
        task="t",
        candidate=candidate.sha256,
        target=TARGET,
        verdict=Verdict.correct if speedup else Verdict.build_error,
        reason="",
        timing=timing,
        speedup=Speedup(eager=Interval(median=speedup, low=speedup, high=speedup)) if speedup else None,
        stages=Stages(),
        environment=Environment(sandbox=()),
    )
    return Attempt(candidate, evaluation, None)


def test_each_round_closes_a_share_of_what_is_left_to_the_roofline() -> None:
    """Eager takes 80 µs, the floor is 20: a failure, 40 µs, 50 µs, and the floor itself."""
    found = Headroom.of([attempt(None), attempt(2.0), attempt(1.6), attempt(4.0)])
    assert [each.closed for each in found.rounds] == pytest.approx([0.0, 0.5, 0.0, 1.0])
    assert found.left == pytest.approx(0.0)
    assert Headroom.of([attempt(None), attempt(2.0)]).left == pytest.approx(math.log(2))


def test_a_kernel_slower_than_eager_leaves_all_that_eager_does() -> None:
    found = Headroom.of([attempt(0.5)])
    assert found.left == pytest.approx(math.log(4)) and [each.closed for each in found.rounds] == [0.0]


def test_a_standing_is_the_best_kernel_against_eager_and_the_rounds_since() -> None:
    speedups = (None, 0.5, 0.505, 0.8, 1.5, None, 1.2, None, None)
    standings = [Headroom.of([attempt(s) for s in speedups[:n]]).standing for n in range(10)]
    assert standings == [
        *(("none", 0), ("none", 1), ("slower", 0), ("slower", 1), ("slower", 0)),  # 0.505 is no faster
        *(("faster", 0), ("faster", 1), ("faster", 2), ("faster", 3), ("faster", 3)),
    ]


def test_a_round_that_costs_nothing_narrows_the_headroom_and_is_no_round() -> None:
    found = Headroom.of([attempt(2.0, author="builtin"), attempt(None)], "builtin")
    assert found.rounds == ((("faster", 0), 0.0),) and found.left == pytest.approx(math.log(2))


def test_a_share_of_the_roofline_is_read_where_the_ceiling_is_right() -> None:
    assert eager_share([attempt(None), attempt(3.0, eager=0.5), attempt(2.0, eager=0.4)]) == pytest.approx(
        0.4
    )
    assert eager_share([attempt(0.5, eager=1.2)]) is None and eager_share([]) is None


@pytest.mark.parametrize(("share", "skipped"), [(None, False), (0.89, False), (0.9, True), (1.04, True)])
def test_a_task_is_skipped_from_90_percent_of_the_roofline(share: float | None, skipped: bool) -> None:
    assert (near_roofline(share) is not None) is skipped


def scheduler(
    histories: Mapping[str, Sequence[Attempt]], used: Mapping[str, float] | None = None, **options: object
) -> Scheduler:
    tasks = [OpenTask(Task(id=name, level=1, source=""), list(tried)) for name, tried in histories.items()]
    spent = used if used is not None else dict.fromkeys(histories, 0.01)
    return Scheduler(tasks, lambda name: spent[name], **{"breadth_first": True} | options)  # type: ignore[arg-type]


def next_of(scheduler: Scheduler) -> str:
    turn = scheduler.take()
    assert turn is not None
    return turn.open.task.id


def order(histories: Mapping[str, Sequence[Attempt]], **options: object) -> list[str]:
    """The tasks in the order in which as many workers would take them."""
    scheduled = scheduler(histories, workers=len(histories), **options)
    return [next_of(scheduled) for _ in histories]


def test_without_a_limit_each_task_is_searched_to_its_end() -> None:
    scheduled = scheduler({"a": [attempt(3.9)], "b": [], "c": []}, breadth_first=False)
    for done in (False, False, True):
        turn = scheduled.take()
        assert turn is not None and turn.open.task.id == "a" and turn.candidates is None and not turn.waiting
        scheduled.put_back(turn, done=done)
    assert next_of(scheduled) == "b"


def test_all_get_a_first_round_before_any_gets_a_second_and_share_what_is_left() -> None:
    scheduled = scheduler({"a": [], "b": [attempt(None)], "c": []}, workers=1)
    for name, waiting in (("a", 2), ("c", 1)):
        turn = scheduled.take()
        assert turn is not None and (turn.open.task.id, turn.waiting, turn.candidates) == (name, waiting, 1)
        turn.open.tried.append(attempt(None))
        scheduled.put_back(turn, done=False)
    turn = scheduled.take()
    assert turn is not None and turn.waiting == 0


def test_what_free_rounds_found_is_no_first_round() -> None:
    free = [attempt(2.0, author="builtin")]
    assert order({"a": [attempt(1.0)], "b": free}, free_author="builtin") == ["b", "a"]


def test_the_next_round_goes_where_most_is_left_for_its_cost() -> None:
    near, far = [attempt(2.0, eager=0.45)], [attempt(2.0, eager=0.05)]
    assert order({"near": near, "far": far}) == ["far", "near"]
    assert order({"dear": far, "cheap": far}, used={"dear": 0.02, "cheap": 0.01}) == ["cheap", "dear"]


def test_a_task_whose_rounds_fail_waits_for_those_that_gain() -> None:
    fails, gains = [attempt(None)] * 4, [attempt(1.1, eager=0.4), attempt(1.2, eager=0.4)]
    used = {"fails": 0.04, "gains": 0.02}  # a round of each costs as much, and as much is left to gain
    assert order({"fails": fails, "gains": gains}, used=used) == ["gains", "fails"]


def test_what_a_round_may_bring_is_learned_from_the_other_tasks_and_those_that_are_done() -> None:
    """Other tasks tell whether a second try helps more after a failure or after a slow kernel."""
    histories = {"failed": [attempt(None)], "slow": [attempt(0.5, eager=0.25)]}
    fixed, sped_up = [attempt(None), attempt(3.0)], [attempt(0.5), attempt(3.0)]
    for others, first in (([fixed, sped_up[:1] * 2], "failed"), ([fixed[:1] * 2, sped_up], "slow")):
        done = [OpenTask(Task(id="x", level=1, source=""), other) for other in others * 3]
        used = {**dict.fromkeys(histories, 0.01), "x": 0.02}
        scheduled = scheduler(histories, used, done=done)
        assert next_of(scheduled) == first


def test_a_round_that_was_interrupted_goes_on_first() -> None:
    assert order({"a": [], "b": [attempt(2.0)], "c": []}, interrupted={"b"}) == ["b", "a", "c"]


def test_rounds_are_taken_whole_once_there_is_a_worker_for_each_task() -> None:
    scheduled = scheduler({"a": [], "b": []}, workers=1)
    first = scheduled.take()
    assert first is not None and first.candidates == 1
    scheduled.put_back(first, done=True)
    last = scheduled.take()
    assert last is not None and last.candidates is None


def test_who_finds_all_tasks_taken_waits_for_one_to_come_back() -> None:
    scheduled = scheduler({"a": []})
    turn, got = scheduled.take(), list[str]()
    assert turn is not None
    waiting = threading.Thread(target=lambda: got.append(next_of(scheduled)))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive() and not got
    scheduled.put_back(turn, done=False)
    waiting.join(10)
    assert got == ["a"]


@pytest.mark.parametrize("closed", [True, False])
def test_who_waits_is_told_that_all_are_done_or_the_run_has_ended(closed: bool) -> None:
    scheduled = scheduler({"a": []})
    turn, got = scheduled.take(), list[object]()
    assert turn is not None
    waiting = threading.Thread(target=lambda: got.append(scheduled.take()))
    waiting.start()
    if closed:
        scheduled.close()
    else:
        scheduled.put_back(turn, done=True)
    waiting.join(10)
    assert got == [None]


def part(whole: str, name: str, share: float) -> OpenTask:
    place = PartOf(whole=whole, places=((name,),), share=share)
    return OpenTask(Task(id=f"{whole}#{name}", level=3, source="", part=place))


def test_parts_come_before_their_whole_which_waits_for_them() -> None:
    tasks = [OpenTask(Task(id=name, level=3, source="")) for name in "ab"]
    scheduler = Scheduler(tasks, lambda task: 0.0, breadth_first=False)
    first = scheduler.take()
    assert first is not None and first.open.task.id == "a"
    scheduler.add([part("a", "x", 0.6), part("a", "y", 0.3)])
    scheduler.put_back(first, done=False)
    order = []
    while (turn := scheduler.take()) is not None:
        order.append(turn.open.task.id)
        scheduler.put_back(turn, done=True)
    assert order == ["a#x", "a#y", "a", "b"]


def test_first_rounds_of_parts_share_what_the_whole_would_get() -> None:
    """Two parts get 60% and 30% of their task's half of the money, and the whole keeps 10%."""
    tasks = [OpenTask(Task(id=name, level=3, source="")) for name in "ab"]
    scheduler = Scheduler(
        [*tasks, part("a", "x", 0.6), part("a", "y", 0.3)], lambda task: 0.0, breadth_first=True
    )
    shares = {}
    left = 1.0
    for _ in range(4):
        turn = scheduler.take()
        assert turn is not None
        shares[turn.open.task.id] = left / turn.waiting
        left -= left / turn.waiting
        scheduler.put_back(turn, done=True)
    assert shares == pytest.approx({"a#x": 0.3, "a#y": 0.15, "a": 0.05, "b": 0.5})


def test_the_gain_of_a_part_counts_by_its_share_of_the_time() -> None:
    small, large = part("a", "x", 0.1), part("a", "y", 0.7)
    for each in (small, large):
        each.tried.append(attempt(2.0))
    scheduler = Scheduler([small, large], lambda task: 0.1, breadth_first=True)
    turn = scheduler.take()
    assert turn is not None and turn.open is large
