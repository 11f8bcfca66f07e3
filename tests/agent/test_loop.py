"""The loop: what it asks, records and confirms. Coder, judge and evaluator are scripted; no process runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from anywhere import TARGET

from agent.loop import Loop, deadline
from agent.protocols import Attempt
from agent.search import Refine
from kernelbench.evaluator import Effort
from kernelbench.records import (
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
        stages=Stages(),
        environment=Environment(sandbox=()),
    )


@dataclass
class ScriptedEvaluator:
    """Answers with the next (verdict, speedup); notes what it was asked."""

    script: list[tuple[Verdict, float]]
    asked: list[tuple[str, tuple[str, ...] | None]] = field(default_factory=list)
    target: Target = TARGET

    def evaluate(self, task: Task, candidate: Candidate, baselines: tuple[str, ...] | None = None,
                 effort: Effort | None = None) -> Evaluation:  # fmt: skip
        self.asked.append((candidate.source, baselines))
        return evaluation_of(candidate, *self.script.pop(0))

    def work(self, task: Task) -> Work:
        return Work(input_bytes=1, weight_bytes=0, output_bytes=1, flops=0)


class Numbers:
    """Proposes "0", "1", …"""

    def propose(self, task: Task, history: Sequence[Attempt], advice: Advice | None) -> Candidate:
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

    def attempt(
        self, task: Task, number: int, attempt: Attempt, advice: Advice | None, confirms: bool
    ) -> None:
        self.kept.append((number, attempt.candidate.source, confirms))


def loop(
    evaluator: ScriptedEvaluator, notes: Notes, judge: object, rounds: int = 3, stop: str | None = None
) -> Loop:
    return Loop(Numbers(), Refine(judge, rounds), evaluator, ("eager", "compile"), notes, lambda: stop)  # type: ignore[arg-type]


def test_every_round_is_recorded_and_the_winner_measured_again() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.0), (right, 2.0), (right, 1.5), (right, 1.9)])
    notes = Notes()
    assert loop(evaluator, notes, Always()).optimize(TASK, []) == "3 rounds"
    assert notes.kept == [(0, "0", False), (1, "1", False), (2, "2", False), (3, "1", True)]
    assert evaluator.asked[0][1] == ("eager",)
    assert evaluator.asked[-1] == ("1", ("eager", "compile"))


def test_the_next_best_follows_a_winner_that_fails_the_second_time() -> None:
    right = Verdict.correct
    evaluator = ScriptedEvaluator([(right, 1.0), (right, 2.0), (Verdict.cheating, 0.0), (right, 1.0)])
    notes = Notes()
    loop(evaluator, notes, Always(), rounds=2).optimize(TASK, [])
    assert notes.kept[2:] == [(2, "1", True), (2, "0", True)]


def test_nothing_correct_is_nothing_to_confirm() -> None:
    evaluator = ScriptedEvaluator([(Verdict.wrong_output, 0.0)])
    notes = Notes()
    assert loop(evaluator, notes, Never()).optimize(TASK, []) == "the judge has nothing left to try"
    assert notes.kept == [(0, "0", False)]


def test_history_counts_as_rounds_after_a_resume() -> None:
    right = Verdict.correct
    first = Candidate(source="0", language="torch", author="test")
    history = [Attempt(first, evaluation_of(first, right, 3.0), None)]
    evaluator = ScriptedEvaluator([(right, 1.0), (right, 2.9)])
    notes = Notes()
    loop(evaluator, notes, Always(), rounds=2).optimize(TASK, history)
    assert notes.kept == [(1, "1", False), (2, "0", True)]


def test_an_exhausted_budget_ends_the_rounds_but_not_the_confirmation() -> None:
    right = Verdict.correct
    first = Candidate(source="0", language="torch", author="test")
    history = [Attempt(first, evaluation_of(first, right, 3.0), None)]
    evaluator = ScriptedEvaluator([(right, 2.9)])
    notes = Notes()
    reason = loop(evaluator, notes, Always(), rounds=5, stop="1 minutes are over").optimize(TASK, history)
    assert reason == "1 minutes are over"
    assert notes.kept == [(1, "0", True)]


def test_the_deadline_says_when_time_is_over() -> None:
    assert deadline(None)() is None
    assert deadline(10.0)() is None
    assert deadline(-1.0)() == "-1 minutes are over"
