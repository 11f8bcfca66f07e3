"""The loop: what it asks, records and confirms. Coder, judge and evaluator are scripted; no process runs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kernelwright.agent.loop import TaskLoop
from kernelwright.agent.protocols import Attempt, Judge, NoCandidate
from kernelwright.agent.search import Refine, Request, Stop, StopRules, best_of
from kernelwright.agent.spending.budget import BudgetSpent, Evaluations, ShareSpent, deadline
from kernelwright.agent.tuner.advise import fallback_advice
from kernelwright.agent.tuner.posterior import expected_speedups
from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.records import (
    Advice,
    Candidate,
    Environment,
    Evaluation,
    Interval,
    Speedup,
    Stages,
    Target,
    Task,
    Verdict,
    Work,
)
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Profile, RungOutcome
from tests.helpers.anywhere import TARGET

TASK = Task(id="file:t", level=1, source="")


def evaluation_of(candidate: Candidate, verdict: Verdict, speedup: float) -> Evaluation:
    found = Interval(median=speedup, low=speedup * 0.98, high=speedup * 1.02)
    return Evaluation(
        task=TASK.id,
        candidate=candidate.sha256,
        target=TARGET,
        verdict=verdict,
        reason="",
        speedup=Speedup(eager=found) if verdict is Verdict.correct else None,
        stages=Stages(total_s=1.0),
        environment=Environment(sandbox=()),
    )


@dataclass
class ScriptedEvaluator:
    """Answers with the next (verdict, speedup); notes what it was asked."""

    script: list[tuple[Verdict, float]]
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    to_beat: list[float | None] = field(default_factory=list)
    target: Target = TARGET

    def evaluate(self, task: Task, candidate: Candidate, measurement: Measurement = Measurement()) -> Evaluation:  # fmt: skip
        self.to_beat.append(measurement.to_beat)
        self.asked.append((candidate.source, measurement.baselines))
        return evaluation_of(candidate, *self.script.pop(0))

    def rejected(self, task: Task, candidate: Candidate, reason: str) -> Evaluation:
        return evaluation_of(candidate, Verdict.build_error, 0.0)

    def profile(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, known: Profile | None = None,
        *, closely: bool = False,
    ) -> Profile | None:  # fmt: skip
        return None

    def work(self, task: Task) -> Work:
        return Work(input_bytes=1, weight_bytes=0, output_bytes=1, flops=0)


class Coder:
    """Has nothing to submit instead of a winner."""

    def fallback(self, task: Task, history: Sequence[Attempt], best: Attempt) -> Candidate | None:
        return None


class Numbers(Coder):
    """Proposes "0", "1", …"""

    def propose(
        self, task: Task, history: Sequence[Attempt], advice: Advice | None, sample: int = 0, afresh: bool = False
    ) -> Candidate:  # fmt: skip
        return Candidate(source=str(len(history)), language="torch", author="test")


class Always:
    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        return Advice(bottleneck="memory", method="m", plan="p", predicted_gain=1.1)


class Never:
    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        return None


@dataclass
class Notes:
    kept: list[tuple[int, str, bool]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    extended: list[tuple[int, Profile | None]] = field(default_factory=list)

    def attempt(
        self, task: Task, number: int, attempt: Attempt, advice: Advice | None, confirms: bool
    ) -> None:
        self.kept.append((number, attempt.candidate.source, confirms))
        self.seconds.append(attempt.evaluation.stages.total_s)

    def profile(self, task: Task, number: int, attempt: Attempt) -> None:
        self.extended.append((number, attempt.profile))


def loop(
    evaluator: ScriptedEvaluator,
    notes: Notes,
    judge: Judge,
    rounds: int = 3,
    stop: str | None = None,
    evaluations: int | None = None,
) -> TaskLoop:
    return TaskLoop(
        {"": Numbers()},
        Refine(judge, StopRules(rounds=rounds)),
        evaluator,
        Evaluations(task=evaluations),
        ("eager", "compile"),
        notes,
        lambda task: stop,
        expected_speedups,
    )


def optimized(loop: TaskLoop, history: Sequence[Attempt] = ()) -> str:
    """Take steps until there are no more; why there are none."""
    tried = list(history)
    while (reason := loop.advance(TASK, tried)) is None:
        pass
    return loop.finish(TASK, tried, reason)


def test_every_round_is_recorded_and_the_winner_measured_again() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.0), (right, 2.0), (right, 1.5), (right, 1.9)])
    notes = Notes()
    assert optimized(loop(evaluator, notes, Always())) == "3 rounds"
    assert notes.kept == [(0, "0", False), (1, "1", False), (2, "2", False), (3, "1", True)]
    assert evaluator.asked[0][1] == ("eager",)
    assert evaluator.asked[-1] == ("1", ("eager", "compile"))
    assert evaluator.to_beat == [0.0, 1.0, 2.0, None]


def test_a_ceiling_that_the_winner_passed_is_in_the_reason_why_it_stopped() -> None:
    class Profiling(ScriptedEvaluator):
        def profile(self, task: Task, candidate: Candidate, *_: object, **__: object) -> Profile:
            light = 1.5 if candidate.source == "1" else 0.5
            return Profile(metrics=(), bottleneck="compute", speed_of_light=light, ceiling="bf16 products")

    right = Verdict.correct
    evaluator = Profiling([(right, 1.0), (right, 2.0), (right, 1.5), (right, 1.9)])
    said = optimized(loop(evaluator, Notes(), Always()))
    assert (
        said.startswith("3 rounds; 1.50 times faster")
        and said.count("the ceiling of bf16 products is wrong") == 1
    )


def test_the_next_best_follows_a_winner_that_fails_the_second_time() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.0), (right, 2.0), (Verdict.cheating, 0.0), (right, 1.0)])
    notes = Notes()
    optimized(loop(evaluator, notes, Always(), rounds=2))
    assert notes.kept[2:] == [(2, "1", True), (2, "0", True)]


def test_a_runner_up_that_may_be_as_fast_is_measured_again_too() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.98), (right, 2.0), (right, 1.99), (right, 1.9), (right, 1.95)])
    notes = Notes()
    optimized(loop(evaluator, notes, Always()))
    assert notes.kept[3:] == [(3, "1", True), (3, "2", True)]


def test_no_third_one_is_measured_again() -> None:
    right, cheating = Verdict.correct, (Verdict.cheating, 0.0)
    evaluator = ScriptedEvaluator([(right, 2.0)] * 3 + [cheating, (right, 1.9), (right, 1.8)])
    notes = Notes()
    optimized(loop(evaluator, notes, Always()))
    assert [confirms for *_, confirms in notes.kept] == [False] * 3 + [True] * 3


def test_a_budget_that_allows_one_confirmation_is_no_fault() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 2.0), (right, 2.0), (right, 1.9)])
    notes = Notes()
    reason = optimized(loop(evaluator, notes, Always(), rounds=9, evaluations=3))
    assert "confirm" not in reason
    assert notes.kept[2:] == [(2, "0", True)]


class Builtin:
    """Proposes its kernels, and the reference instead of slower ones."""

    def propose(
        self, task: Task, history: Sequence[Attempt], advice: Advice | None, sample: int = 0, afresh: bool = False
    ) -> Candidate:  # fmt: skip
        return Candidate(source="kernels", language="torch", author="builtin", schedule={"fuse": "all"})

    def fallback(self, task: Task, history: Sequence[Attempt], best: Attempt) -> Candidate | None:
        if not best.candidate.schedule or fallback_advice(best, history) is None:
            return None
        return Candidate(source="reference", language="torch", author="builtin")


@pytest.mark.parametrize(("confirmed", "more"), [(0.9, [(1, "reference", True)]), (0.99, []), (1.3, [])])
def test_the_reference_is_submitted_where_the_winner_was_slower_for_certain(
    confirmed: float, more: list[tuple[int, str, bool]]
) -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.1), (right, confirmed), (right, 1.0)])
    notes = Notes()
    asked = loop(evaluator, notes, Never())
    asked.coders = {"": Builtin()}
    optimized(asked)
    assert notes.kept == [(0, "kernels", False), (1, "kernels", True), *more]


def test_a_model_s_kernel_is_never_replaced_by_the_reference() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.1), (right, 0.5)])
    notes = Notes()
    asked = loop(evaluator, notes, Never())
    asked.coders = {"": Numbers(), "builtin": Builtin()}
    optimized(asked)
    assert notes.kept == [(0, "0", False), (1, "0", True)]


def test_nothing_correct_is_nothing_to_confirm() -> None:
    evaluator = ScriptedEvaluator([(Verdict.wrong_output, 0.0)])
    notes = Notes()
    assert optimized(loop(evaluator, notes, Never())) == "the judge has nothing left to try"
    assert notes.kept == [(0, "0", False)]


def test_history_counts_as_rounds_after_a_resume() -> None:
    right = Verdict.correct
    first = Candidate(source="0", language="torch", author="test")
    history = [Attempt(first, evaluation_of(first, right, 3.0), None)]
    evaluator = ScriptedEvaluator([(right, 1.0), (right, 2.9)])
    notes = Notes()
    optimized(loop(evaluator, notes, Always(), rounds=2), history)
    assert notes.kept == [(1, "1", False), (2, "0", True)]


def test_an_exhausted_budget_ends_the_rounds_but_not_the_confirmation() -> None:
    right = Verdict.correct
    first = Candidate(source="0", language="torch", author="test")
    history = [Attempt(first, evaluation_of(first, right, 3.0), None)]
    evaluator = ScriptedEvaluator([(right, 2.9)])
    notes = Notes()
    reason = optimized(loop(evaluator, notes, Always(), rounds=5, stop="1 minutes are over"), history)
    assert reason == "1 minutes are over"
    assert notes.kept == [(1, "0", True)]


def test_evaluations_that_are_limited_leave_one_for_the_winner() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.0), (right, 2.0), (right, 2.1)])
    notes = Notes()
    reason = optimized(loop(evaluator, notes, Always(), rounds=9, evaluations=3))
    assert reason == "3 evaluations are spent on this task, or kept for its winner"
    assert notes.kept == [(0, "0", False), (1, "1", False), (2, "1", True)]


@dataclass
class AllAtOnce:
    """Asks for three at a time, once."""

    def advised_on(self, task: Task, history: Sequence[Attempt]) -> Sequence[Attempt]:
        return ()

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        return [Request(sample=i) for i in range(len(history), 3)] or Stop("three")


@dataclass
class Samples(Coder):
    """Proposes its sample's number, the later ones sooner; some are no candidates, or too dear."""

    none: int = -1
    dear: int = -1
    for_later: int = -1

    def propose(
        self, task: Task, history: Sequence[Attempt], advice: Advice | None, sample: int = 0, afresh: bool = False
    ) -> Candidate:  # fmt: skip
        assert not history, "what is asked for at a time does not know of each other"
        time.sleep(0.05 * (3 - sample))
        candidate = Candidate(source=str(sample), language="torch", author="test")
        if sample == self.none:
            raise NoCandidate(candidate, "the reply is empty")
        if sample == self.dear:
            raise BudgetSpent("$1 are spent")
        if sample == self.for_later:
            self.for_later = -1
            raise ShareSpent("the task's share is spent")
        return candidate


def at_once(coder: Samples, evaluator: ScriptedEvaluator, notes: Notes) -> TaskLoop:
    return TaskLoop(
        {"": coder},
        AllAtOnce(),
        evaluator,
        Evaluations(),
        ("eager",),
        notes,
        lambda task: None,
        expected_speedups,
    )


def test_what_is_asked_for_at_a_time_is_recorded_in_its_order() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.0), (right, 3.0), (right, 2.0), (right, 3.0)])
    notes = Notes()
    assert optimized(at_once(Samples(), evaluator, notes)) == "three"
    assert notes.kept == [(0, "0", False), (1, "1", False), (2, "2", False), (3, "1", True)]


def test_what_is_no_candidate_is_turned_away_and_the_rest_evaluated() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.0), (right, 2.0), (right, 2.0)])
    notes = Notes()
    optimized(at_once(Samples(none=1), evaluator, notes))
    assert notes.kept == [(0, "0", False), (1, "1", False), (2, "2", False), (3, "2", True)]
    assert [source for source, _ in evaluator.asked] == ["0", "2", "2"]


def test_money_that_is_spent_in_between_ends_it_once_what_was_paid_for_is_evaluated() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.5), (right, 1.7), (right, 1.65)])
    notes = Notes()
    assert optimized(at_once(Samples(dear=1), evaluator, notes)) == "$1 are spent"
    assert notes.kept == [(0, "0", False), (1, "2", False), (2, "2", True)]


def test_a_share_that_is_spent_in_between_leaves_the_rest_for_later_in_its_order() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.5), (right, 1.6), (right, 1.7), (right, 1.7)])
    notes = Notes()
    assert optimized(at_once(Samples(for_later=1), evaluator, notes)) == "three"
    assert notes.kept[:3] == [(0, "0", False), (1, "1", False), (2, "2", False)]


def test_a_coder_sees_no_more_of_the_history_after_a_kill() -> None:
    right = Verdict.correct
    first = Candidate(source="0", language="torch", author="test")
    history = [Attempt(first, evaluation_of(first, right, 3.0), None)]
    evaluator = ScriptedEvaluator([(right, 1.5), (right, 1.7), (right, 3.0)])
    notes = Notes()
    optimized(at_once(Samples(), evaluator, notes), history)  # Samples does not want to see any
    assert notes.kept == [(1, "1", False), (2, "2", False), (3, "0", True)]


def test_a_file_that_was_evaluated_is_not_evaluated_again() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.5), (right, 1.4)])
    notes = Notes()

    class Same(Samples):
        def propose(self, *_: object, **__: object) -> Candidate:  # type: ignore[override]
            return Candidate(source="same", language="torch", author="test")

    optimized(at_once(Same(), evaluator, notes))
    assert [number for number, _, _ in notes.kept] == [0, 1, 2, 3] and len(evaluator.asked) == 2
    assert [seconds > 0 for seconds in notes.seconds] == [True, False, False, True]  # it took no time


QUICK = Profile(metrics=(metric("launches", 2),), bottleneck="memory", speed_of_light=0.5)


@dataclass
class ProfilingEvaluator(ScriptedEvaluator):
    """Profiles what it has evaluated, and closely what it is asked to, once."""

    closely: list[str] = field(default_factory=list)

    def profile(
        self, task: Task, candidate: Candidate, evaluation: Evaluation, known: Profile | None = None,
        *, closely: bool = False,
    ) -> Profile | None:  # fmt: skip
        if not closely or known is None or known.rungs:
            return known or QUICK
        self.closely.append(candidate.source)
        counted = (*known.metrics, metric("dram_read", 1e6, "k"))
        return known.model_copy(
            update={"metrics": counted, "rungs": (RungOutcome(name="ncu", on=True, why=""),)}
        )


@dataclass
class Reader(Always):
    """Notes which metrics of the best attempt there are when it is asked for advice."""

    read: list[set[str]] = field(default_factory=list)

    def advise(self, task: Task, history: Sequence[Attempt]) -> Advice | None:
        best = best_of(history)
        assert best is not None and best.profile is not None
        self.read.append({each.name for each in best.profile.metrics})
        return super().advise(task, history)


def test_what_the_judge_advises_on_is_profiled_closely_before_and_once() -> None:
    right = Verdict.correct
    evaluator = ProfilingEvaluator([(right, 1.0), (right, 2.0), (right, 1.5), (right, 1.6), (right, 1.9)])
    notes, judge = Notes(), Reader()
    optimized(loop(evaluator, notes, judge, rounds=4))
    assert judge.read == 3 * [{"launches", "dram_read"}]
    assert evaluator.closely == ["0", "1"]  # "1" is the best from then on
    assert [number for number, _ in notes.extended] == [0, 1]
    assert all(profile is not None and profile.value("launches") == 2 for _, profile in notes.extended)


def test_a_run_that_goes_on_does_not_profile_again_what_was() -> None:
    right = Verdict.correct
    first = Candidate(source="0", language="torch", author="test")
    closely = QUICK.model_copy(update={"rungs": (RungOutcome(name="ncu", on=True, why=""),)})
    history = [Attempt(first, evaluation_of(first, right, 3.0), closely)]
    evaluator = ProfilingEvaluator([(right, 1.0), (right, 2.9)])
    notes = Notes()
    optimized(loop(evaluator, notes, Always(), rounds=2), history)
    assert evaluator.closely == [] and notes.extended == []


def test_without_a_round_left_nothing_is_profiled_closely() -> None:
    evaluator = ProfilingEvaluator([(Verdict.correct, 1.0), (Verdict.correct, 1.0)])
    optimized(loop(evaluator, Notes(), Never(), rounds=1))
    assert evaluator.closely == []


def test_the_deadline_says_when_time_is_over() -> None:
    assert deadline(None)() is None
    assert deadline(10.0)() is None
    assert deadline(-1.0)() == "-1 minutes are over"
