"""The aggregates, against numbers worked out by hand from `run_factory.record_example`."""

import json

import pytest

from kernelwright.kernelbench.records import Interval, Verdict
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.summary import summarize
from tests.helpers.results import run_factory
from tests.helpers.results.run_factory import candidate, interval, llm_call, task

SOFTMAX, RELU = task("softmax"), task("relu")


def test_fast_p_is_a_share_of_all_tasks(example: RunDatabase) -> None:
    summary = summarize(example)
    assert (summary.correct, summary.total) == (4, 6)
    assert summary.fast_1 == 2 / 6  # 4.0, 2.0; the interval of 1.01 covers 1
    assert summary.fast_2 == 1 / 6  # 4.0; 2.0 is not above 2
    assert summary.headline == (
        "2 of 6 faster than eager, 1 not distinguishable, 1 submitted as the reference, 1 not correct, "
        "1 not tried"
    )


INSIDE = Interval(median=1.4, low=0.99, high=1.6)
OUTSIDE = Interval(median=2.1, low=1.9, high=2.2)


@pytest.mark.parametrize(
    ("eager", "compile", "own", "outcome", "fast_1", "fast_2"),
    [
        (OUTSIDE, None, 0.97, "faster", 1.0, 0.0),  # its median is above 2, its interval is not
        (interval(2.5), None, 0.05, "faster", 1.0, 1.0),
        (INSIDE, None, 0.97, "even", 0.0, 0.0),
        (interval(2.5), None, 0.04, "not_own", 0.0, 0.0),
        (interval(2.5), None, None, "not_own", 0.0, 0.0),
        (interval(0.9), None, 0.97, "reference", 0.0, 0.0),
        (interval(2.5), interval(0.8), 0.97, "reference", 0.0, 0.0),
        (None, None, None, "not_timed", 0.0, 0.0),
    ],
)
def test_a_task_counts_as_fast_where_its_own_kernels_are_beyond_doubt(
    database: RunDatabase,
    eager: Interval | None,
    compile: Interval | None,
    own: float | None,
    outcome: str,
    fast_1: float,
    fast_2: float,
) -> None:
    database.add_task(SOFTMAX)
    found = run_factory.evaluation(SOFTMAX, candidate(1), eager=eager)
    if found.timing is not None and found.speedup is not None and compile is not None:
        timing = found.timing.model_copy(update={"compile_us": interval(10.0)})
        speedup = found.speedup.model_copy(update={"compile": compile, "fastest": compile})
        found = found.model_copy(update={"timing": timing, "speedup": speedup})
    found = found.model_copy(update={"own_kernel_share": own})
    database.record_attempt(SOFTMAX.id, 1, candidate(1), None, found, None)
    summary = summarize(database)
    assert (summary.tasks[0].outcome, summary.fast_1, summary.fast_2) == (outcome, fast_1, fast_2)


def test_what_is_submitted_as_the_reference_counts_as_1(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)
    run_factory.attempt(database, SOFTMAX, 1, eager=0.25, compile=0.5)
    summary = summarize(database)
    (row,) = summary.tasks
    assert row.submitted == "eager" and row.speedup is not None and row.speedup.eager is not None
    assert row.speedup.eager.median == 0.25  # what was measured of the kernel stays
    assert summary.geomean.eager == summary.geomean.compile == summary.geomean.fastest == 1.0


def test_means_are_over_the_correct_tasks(example: RunDatabase) -> None:
    summary = summarize(example)
    # vs eager: 4.0, 1.01, 1 for the reference instead of 0.5, 2.0
    assert summary.geomean.eager == pytest.approx(8.08**0.25)
    assert summary.mean.eager == pytest.approx(8.01 / 4)
    assert summary.median.eager == pytest.approx((1.01 + 2.0) / 2)
    # vs compile: 2.0, 0.5, 1 for the reference; the task on level 2 was not compared
    assert summary.geomean.compile == pytest.approx(1.0)
    assert (summary.mean.compile, summary.median.compile) == (pytest.approx(3.5 / 3), 1.0)
    # vs fastest: 2.0, 0.5, 1, 2.0
    assert summary.geomean.fastest == pytest.approx(2**0.25)
    assert (summary.counted.eager, summary.counted.compile, summary.counted.fastest) == (4, 3, 4)


def test_scores_are_averaged_where_there_is_one(example: RunDatabase) -> None:
    """The floor is 0.6 of each kernel's time: 15 of 25 µs, 59.4 of 99 and 30 of 50, where eager takes 100."""
    summary = summarize(example)
    rows = {row.task.rpartition("/")[2]: row for row in summary.tasks}
    assert rows["softmax"].floor_us == pytest.approx(15)
    scores = [rows[name].speed_of_light_score for name in ("softmax", "relu", "gelu_linear")]
    assert scores == pytest.approx([85 / 95, 0.50617, 70 / 90], rel=1e-4)
    assert rows["matmul"].speed_of_light_score is None  # eager is faster than this floor of 120 µs
    assert rows["conv"].speed_of_light_score is None and rows["attention"].floor_us is None
    assert summary.speed_of_light_score == pytest.approx((85 / 95 + 0.50617 + 70 / 90) / 3, rel=1e-4)
    assert summary.counted.score == 3


def test_what_is_submitted_as_the_reference_scores_a_half(database: RunDatabase) -> None:
    """The kernel takes 200 µs, eager 100 and the floor 50: 50 / (50 + 150)."""
    database.add_task(SOFTMAX)
    slow = run_factory.evaluation(SOFTMAX, candidate(1), eager=0.5, floor=50.0)
    database.record_attempt(SOFTMAX.id, 1, candidate(1), None, slow, None)
    summary = summarize(database)
    (row,) = summary.tasks
    assert row.submitted == "eager" and row.speed_of_light_score == pytest.approx(0.25)
    assert row.counted_score == summary.speed_of_light_score == 0.5


def test_without_ceilings_nothing_is_scored(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)
    found = run_factory.evaluation(SOFTMAX, candidate(1), eager=2.0)
    database.record_attempt(SOFTMAX.id, 1, candidate(1), None, found, None)
    summary = summarize(database)
    assert summary.speed_of_light_score is None and summary.counted.score == 0
    assert summary.tasks[0].speed_of_light_score is None


def test_levels_are_aggregated_each(example: RunDatabase) -> None:
    first, second = summarize(example).levels
    assert (first.level, first.correct, first.total, first.fast_1, first.fast_2) == (1, 3, 4, 0.25, 0.25)
    assert first.geomean.eager == pytest.approx(4.04 ** (1 / 3))
    assert (second.level, second.correct, second.total, second.fast_1) == (2, 1, 2, 0.5)
    assert (second.geomean.eager, second.geomean.compile) == (pytest.approx(2.0), None)


def test_tasks_that_measure_nothing_are_apart(example: RunDatabase) -> None:
    summary = summarize(example)
    (apart,) = summary.measures_nothing
    assert apart.task == "builtin:level2/always_zero"
    assert apart.measures_nothing_why == "the output is constant"
    assert apart.task not in {row.task for row in summary.tasks}
    assert summary.measures_nothing_aggregate.total == 1
    assert summary.measures_nothing_aggregate.mean.eager == 900.0


def test_the_best_candidate_has_the_highest_lower_bound(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)
    run_factory.attempt(database, SOFTMAX, 1, eager=Interval(median=3.0, low=0.9, high=5.0))
    steady = run_factory.attempt(database, SOFTMAX, 2, eager=Interval(median=2.0, low=1.9, high=2.1))
    run_factory.attempt(database, SOFTMAX, 3, eager=Interval(median=2.1, low=1.9, high=2.2))
    run_factory.attempt(database, SOFTMAX, 4, Verdict.implausible, eager=50.0)
    run_factory.attempt(database, SOFTMAX, 5)  # correct, never timed
    (row,) = summarize(database).tasks
    assert (row.candidate, row.verdict, row.rounds) == (steady.sha256, Verdict.correct, 5)
    assert row.speedup is not None and row.speedup.eager is not None
    assert row.speedup.eager.median == 2.0
    assert (row.own_kernel_share, row.candidate_us and row.candidate_us.median) == (0.97, 50.0)


def test_a_task_without_a_correct_candidate_keeps_its_last_verdict(example: RunDatabase) -> None:
    rows = {row.task: row for row in summarize(example).tasks}
    conv, attention = rows["builtin:level1/conv"], rows["builtin:level2/attention"]
    assert (conv.verdict, conv.speedup, conv.candidate, conv.rounds) == (Verdict.build_error, None, None, 2)
    assert (attention.verdict, attention.rounds, attention.stop_reason) == (None, 0, None)


def test_candidates_of_one_round_count_as_one(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)
    for number in range(4):
        run_factory.attempt(database, SOFTMAX, 1, eager=1.5, of=candidate(number))
    assert summarize(database).tasks[0].rounds == 1


def test_money_is_null_when_a_price_is_unknown_and_zero_only_without_calls(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)
    database.add_task(RELU)
    assert summarize(database).usd == 0.0
    database.record_llm_call(llm_call(SOFTMAX.id, 0.25))
    database.record_llm_call(llm_call(SOFTMAX.id, 0.5))
    summary = summarize(database)
    assert (summary.usd, summary.tasks[0].usd, summary.tasks[1].usd) == (0.75, 0.75, 0.0)
    database.record_llm_call(llm_call(RELU.id, None))
    database.record_llm_call(llm_call(None, 0.1))
    summary = summarize(database)
    assert (summary.usd, summary.tasks[0].usd, summary.tasks[1].usd) == (None, 0.75, None)
    assert (summary.llm_calls, summary.tasks[0].llm_calls) == (4, 2)
    assert json.loads(summary.model_dump_json())["usd"] is None


def test_a_task_takes_what_its_evaluations_and_calls_take(database: RunDatabase) -> None:
    database.add_task(SOFTMAX)
    run_factory.attempt(database, SOFTMAX, 1, eager=1.5)
    database.record_llm_call(llm_call(SOFTMAX.id, 0.1))
    database.finish_task(SOFTMAX.id, "rounds used up")
    assert summarize(database).seconds == database.seconds(SOFTMAX.id) == 3.5 + 2.0
    assert database.evaluations() == {SOFTMAX.id: 1}


def test_an_empty_run_has_no_numbers(database: RunDatabase) -> None:
    summary = summarize(database)
    assert (summary.correct, summary.fast_1, summary.geomean.eager) == (0, None, None)


def test_summary_json_has_the_keys_others_rely_on(example: RunDatabase) -> None:
    content = json.loads(summarize(example).model_dump_json())
    assert content.keys() >= {"tasks", "correct", "fast_1", "fast_2", "geomean", "usd", "seconds"}
    assert content["geomean"].keys() == {"eager", "compile", "fastest"}
    row = content["tasks"][0]
    assert row.keys() >= {
        "task",
        "verdict",
        "speedup",
        "rounds",
        "stop_reason",
        "llm_calls",
        "usd",
        "seconds",
    }
    assert row["speedup"]["eager"] == {"median": 4.0, "low": 3.92, "high": 4.08}
