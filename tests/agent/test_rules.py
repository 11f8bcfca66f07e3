"""The rules judge: which move it proposes, on what evidence, and when it stops."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from kernelwright.agent.protocols import Attempt
from kernelwright.agent.tuner.advise import RulesJudge, fallback_advice, untried
from kernelwright.kernelbench.records import (
    Advice,
    Candidate,
    Task,
    Verdict,
)
from kernelwright.profiling.records import Finding, FindingKind, Metric, Profile
from kernelwright.profiling.roofline import with_floor
from kernelwright.results.lessons.lessons import Expectation
from tests.helpers.attempts import SCHEDULE, attempt, candidate, over_eager, predicted, slower

TASK = Task(id="file:test", level=1, source="")


def _keywords(schedule: Mapping[str, str]) -> dict[str, str]:
    return {knob.replace(".", "__"): value for knob, value in schedule.items()}


def measured(tried: Candidate, time_us: float, kind: FindingKind, light: float) -> Attempt:
    share = Metric(name="bandwidth_share", value=light, unit="1", provenance="roofline")
    finding = Finding(kind=kind, says=f"It is {kind}.", fix="", cites={"found": 1.5}, most_gain=1 / light)
    profile = Profile(metrics=(share,), bottleneck="unknown", speed_of_light=light, findings=(finding,))
    found = attempt(tried, time_us)
    return Attempt(found.candidate, with_floor(found.evaluation, profile), profile)


def moved(history: Sequence[Attempt], advice: Advice) -> Candidate:
    """What the coder makes of advice."""
    [parent] = {
        a.candidate.sha256: a.candidate for a in history if a.candidate.sha256 == advice.about
    }.values()
    schedule = {**parent.schedule, **advice.schedule}
    return Candidate(source=str(schedule), language="cpp", author="builtin", schedule=schedule)


def test_a_memory_bound_kernel_is_told_about_memory() -> None:
    advice = RulesJudge().advise(TASK, [measured(candidate(), 100.0, "memory", 0.5)])
    assert advice is not None
    assert set(advice.schedule) <= {"k0.keep", "k0.streaming"}
    assert advice.evidence["bandwidth_share"] == 0.5
    assert advice.evidence["candidate_us"] == 100.0 and advice.evidence["found"] == 1.5
    assert advice.bottleneck.startswith("It is memory.") and "50%" in advice.bottleneck


def test_a_compute_bound_kernel_is_told_about_arithmetic() -> None:
    advice = RulesJudge().advise(TASK, [measured(candidate(), 100.0, "compute", 0.5)])
    assert advice is not None and set(advice.schedule) <= {"k0.keep", "vector"}


def test_a_small_kernel_is_told_about_threads() -> None:
    advice = RulesJudge().advise(TASK, [measured(candidate(), 10.0, "launch", 0.1)])
    assert advice is not None and advice.schedule == {"k0.threads": "1"}


def test_no_schedule_is_proposed_twice() -> None:
    judge, history, time_us = (
        RulesJudge(worth_a_try=1.0),
        [measured(candidate(), 1000.0, "memory", 0.1)],
        1000.0,
    )
    tried = [dict(SCHEDULE)]
    for _ in range(30):
        advice = judge.advise(TASK, history)
        assert advice is not None
        found = moved(history, advice)
        assert found.schedule not in tried
        tried.append(dict(found.schedule))
        time_us *= 0.95  # every move helps, so each is kept
        history.append(measured(found, time_us, "memory", 0.1))


def test_a_knob_that_is_held_stays_as_it_is() -> None:
    history, judge = [measured(candidate(), 100.0, "memory", 0.5)], RulesJudge(hold={"streaming", "block"})
    while (advice := judge.advise(TASK, history)) is not None:
        assert not advice.schedule.keys() & {"k0.streaming", "k0.block"}
        history.append(measured(moved(history, advice), 100.0 - len(history), "memory", 0.5))
    assert len(history) > 4


def test_it_stops_near_the_speed_of_light() -> None:
    assert RulesJudge().advise(TASK, [measured(candidate(), 100.0, "memory", 0.93)]) is None


def test_a_ceiling_that_was_measured_too_low_says_nothing_of_what_is_left() -> None:
    found = measured(candidate(), 100.0, "memory", 1.4)
    advice = RulesJudge().advise(TASK, [found])
    assert advice is not None and advice.predicted_gain > 1 / 1.4
    assert "the ceiling is wrong" in advice.bottleneck


def test_it_stops_where_moves_bring_nothing() -> None:
    history = [measured(candidate(), 100.0, "memory", 0.5)]
    judge, moves = RulesJudge(), len(untried(candidate(), []))
    while (advice := judge.advise(TASK, history)) is not None:
        history.append(measured(moved(history, advice), 103.0, "memory", 0.5))
    assert 3 < len(history) < 2 * moves


def test_it_goes_on_from_others_than_the_best() -> None:
    """Where no move on the best is left, and what helps may take two."""
    history = [measured(candidate(), 100.0, "memory", 0.2)]
    for move in untried(candidate(), []):
        made = candidate(**_keywords({move.knob: move.new}))
        history.append(measured(made, 100.0 + len(history), "memory", 0.2))
    advice = RulesJudge(worth_a_try=0.0).advise(TASK, history)
    assert advice is not None and advice.about != history[0].candidate.sha256
    about = next(a for a in history if a.candidate.sha256 == advice.about)
    assert about.evaluation.timing is not None
    assert advice.evidence["candidate_us"] == about.evaluation.timing.candidate_us.median


def with_two_kernels() -> Candidate:
    knobs = {"vector": "512", "k0.streaming": "off", "k1.streaming": "off"}
    return Candidate(
        source="two", language="cpp", author="builtin", schedule=knobs, kernels=("scale", "softmax_rows")
    )


def shares_of(found: Attempt, waiting: float = 0.0, **shares: float) -> Attempt:
    assert found.profile is not None
    added = [
        Metric(name="time_share", value=share, unit="1", provenance="perf", kernel=kernel)
        for kernel, share in shares.items()
    ]
    added.append(Metric(name="time_waiting", value=waiting, unit="1", provenance="perf"))
    profile = found.profile.model_copy(update={"metrics": (*found.profile.metrics, *added)})
    return Attempt(found.candidate, with_floor(found.evaluation, profile), profile)


def test_moves_are_for_the_kernel_that_the_time_goes_to() -> None:
    found = measured(with_two_kernels(), 100.0, "memory", 0.3)
    judge = RulesJudge(hold={"vector"})
    plain = judge.advise(TASK, [found])
    assert plain is not None and set(plain.schedule) == {"k0.streaming"}  # the first of equals
    advice = judge.advise(TASK, [shares_of(found, scale=0.1, softmax_rows=0.6)])
    assert advice is not None and set(advice.schedule) == {"k1.streaming"}
    assert "of softmax_rows from off to on" in advice.plan


def test_where_torch_takes_the_time_no_kernel_is_worth_a_try() -> None:
    found = measured(with_two_kernels(), 100.0, "memory", 0.3)
    assert RulesJudge().advise(TASK, [shares_of(found, scale=0.02, softmax_rows=0.02)]) is None
    assert RulesJudge().advise(TASK, [shares_of(found, 0.95, scale=0.02, softmax_rows=0.02)]) is not None


def test_a_value_that_comes_to_the_same_code_is_not_proposed() -> None:
    among = candidate(k0__block="128").model_copy(update={"alternatives": {"k0.block": ("64", "128")}})
    assert {move.new for move in untried(among, []) if move.knob == "k0.block"} == {"64"}


def test_the_predicted_gain_does_not_pass_the_ceiling() -> None:
    advice = RulesJudge().advise(TASK, [measured(candidate(), 100.0, "launch", 0.88)])
    assert advice is not None and advice.predicted_gain <= 1 / 0.88


def test_a_candidate_without_kernels_of_its_own_gets_no_advice() -> None:
    plain = Candidate(source="", language="torch", author="builtin")
    assert RulesJudge().advise(TASK, [attempt(plain, 100.0)]) is None


def test_with_nothing_correct_it_retreats_once() -> None:
    failed = attempt(candidate(), 0.0, Verdict.wrong_output)
    advice = RulesJudge().advise(TASK, [failed])
    assert advice is not None and advice.schedule["fuse"] == "apart"
    held = RulesJudge(hold={"fuse", "keep"}).advise(TASK, [failed])
    assert held is None or not held.schedule.keys() & {"fuse", "k0.keep"}
    again = attempt(candidate(**_keywords(advice.schedule)), 0.0, Verdict.wrong_output)
    assert RulesJudge().advise(TASK, [failed, again]) is None


@dataclass
class Known:
    """A memory of the effects of changes."""

    found: dict[str, Expectation]

    def expectations(self, task: Task, history: Sequence[Attempt]) -> dict[str, Expectation]:
        return self.found


def test_what_moves_came_to_elsewhere_orders_them() -> None:
    history = [measured(candidate(), 100.0, "memory", 0.1)]
    plain = RulesJudge().advise(TASK, history)
    assert plain is not None and plain.schedule == {"k0.keep": "off"}
    known = {"keep=off": Expectation(1.0, 8), "unroll=on": Expectation(1.5, 4)}
    taught = RulesJudge(memory=Known(known)).advise(TASK, history)
    assert taught is not None and taught.schedule == {"unroll": "on"}
    assert taught.predicted_gain == pytest.approx(1.5 ** (4 / 6), rel=0.03)


def test_a_change_and_its_opposite_are_one_lesson() -> None:
    history = [measured(candidate(), 100.0, "memory", 0.1)]
    known = {"streaming=on": Expectation(1.2, 8), "streaming=off": Expectation(1 / 1.2, 8)}
    advice = RulesJudge(memory=Known(known)).advise(TASK, history)
    assert advice is not None and advice.schedule == {"k0.streaming": "on"}
    assert 1.0 < advice.predicted_gain < 1.2


def test_one_unlucky_reading_does_not_hand_in_the_reference() -> None:
    others = [over_eager(candidate(k0__block=block), 1.1, 1.0, 1.2) for block in ("64", "128", "256", "512")]
    unlucky = over_eager(candidate(), 0.93, 0.9, 0.98)
    assert fallback_advice(unlucky, [unlucky]) is not None
    advice = RulesJudge(rounds=6).advise(TASK, [unlucky, *others])
    assert advice is not None and advice.schedule != {"kernels": "none"}


def test_the_last_candidate_is_the_reference_where_that_is_faster() -> None:
    judge = RulesJudge(rounds=3)
    first = judge.advise(TASK, [slower(0.9)])
    assert first is not None and first.schedule != {"kernels": "none"}
    last = judge.advise(TASK, [slower(0.9), slower(0.9)])
    assert last is not None and last.schedule == {"kernels": "none"}
    unsure = judge.advise(TASK, [slower(1.1), slower(1.1)])
    assert unsure is not None and unsure.schedule != {"kernels": "none"}
    submitted = Candidate(
        source="reference", language="torch", author="builtin", schedule={"kernels": "none"}
    )
    assert judge.advise(TASK, [slower(0.9), over_eager(submitted, 1.0, 0.95, 1.05)]) is None
    behind = judge.advise(
        TASK, [slower(0.9), over_eager(submitted, 0.5, 0.4, 0.6)]
    )  # and was no faster either
    assert behind is not None and behind.schedule != {"kernels": "none"}


def test_where_nothing_is_timed_predictions_rank_schedules() -> None:
    first, slow, fast = candidate(), candidate(k0__block="512"), candidate(k0__keep="off")
    history = [predicted(first, 100.0), predicted(slow, 240.0), predicted(fast, 30.0)]
    advice = RulesJudge().advise(TASK, history)
    assert advice is not None and advice.about == fast.sha256
    assert advice.evidence["predicted_us"] == 30.0 and "candidate_us" not in advice.evidence
    assert moved(history, advice).schedule["k0.keep"] == "off"


def test_a_measurement_counts_for_more_than_any_prediction() -> None:
    timed_one, other = candidate(), candidate(k0__keep="off")
    advice = RulesJudge().advise(TASK, [attempt(timed_one, 100.0), predicted(other, 1.0)])
    assert advice is not None and advice.about == timed_one.sha256
    assert "predicted_us" not in advice.evidence
