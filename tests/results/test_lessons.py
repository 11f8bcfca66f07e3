"""Effects of changes are told where they help: same language, chip and kind of operator, another task."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernelwright.agent import protocols as judged
from kernelwright.agent.tuner.memory import LessonMemory
from kernelwright.kernelbench.records import Advice, Task, Verdict
from kernelwright.profiling.records import Metric, Profile
from kernelwright.results.lessons.lessons import (
    Effect,
    Expectation,
    effects_of,
    expectations,
    lessons_from,
    lines_for,
)
from kernelwright.results.report.page import lineage
from kernelwright.results.store.database import RunDatabase
from tests.helpers.results import run_factory
from tests.helpers.results.run_factory import candidate, evaluation

SOFTMAX = "class Model:\n    def forward(self, x):\n        return torch.softmax(x, -1)\n"
ROWS = Task(id="file:rows", level=1, source=SOFTMAX)
COLUMNS = Task(id="file:columns", level=1, source=SOFTMAX.replace("-1", "0"))


def effect(
    technique: str, gain: float | None, task: str = "file:rows", families: str = "softmax", chip: str = "c"
) -> Effect:
    return Effect(technique, "cpp", task, frozenset(families.split()), chip, gain)


def test_what_helped_comes_first_and_what_never_did_last() -> None:
    effects = [
        effect("vectorize", 2.0), effect("vectorize", 1.5), effect("vectorize", None),
        effect("prefetch", 0.9), effect("prefetch", 1.0),
        effect("unroll", 0.8),  # once is no lesson
        effect("parallelize", 4.0),
    ]  # fmt: skip
    lines = lines_for(COLUMNS, "cpp", "c", effects)
    assert lines == (
        "parallelize, softmax: 1 of 1 faster; time before / after 4.00",
        "vectorize, softmax: 2 of 3 faster, 1 failed; time before / after 1.75 (1.50 to 2.00)",
        "prefetch, softmax: 0 of 2 faster; time before / after 0.95 (0.90 to 1.00)",
    )


def test_other_machines_operators_and_the_task_itself_teach_nothing() -> None:
    others = [
        effect("vectorize", 2.0, task=COLUMNS.id),
        effect("vectorize", 2.0, chip="another"),
        effect("vectorize", 2.0, families="convolution"),
    ]
    assert lines_for(COLUMNS, "cpp", "c", others) == ()
    assert lines_for(COLUMNS, "triton", "c", [effect("vectorize", 2.0)]) == ()


def test_what_helped_nine_times_in_ten_is_told_before_what_did_once() -> None:
    often = [effect("vectorize", 1.1)] * 9 + [effect("vectorize", 0.9)]
    told = lines_for(COLUMNS, "cpp", "c", [*often, effect("parallelize", 9.0)] + [effect("tile", 0.5)] * 50)
    assert [line.partition(",")[0] for line in told] == ["vectorize", "parallelize", "tile"]


def recorded(database: RunDatabase, task: Task, *speedups: float | None) -> None:
    """A task whose candidates, each made from the one before, were so many times as fast as eager."""
    if task.id not in {entry.task.id for entry in database.tasks()}:
        database.add_task(task)
    parent = None
    for number, speedup in enumerate(speedups, len(database.attempts(task.id))):
        made = candidate(number, (parent.sha256,) if parent else ())
        advice = None
        if parent is not None:
            advice = Advice(
                bottleneck="b", method="m", plan="p", technique="vectorize", predicted_gain=2.0,
                about=parent.sha256,
            )  # fmt: skip
        verdict = Verdict.correct if speedup else Verdict.wrong_output
        database.record_attempt(
            task.id, number, made, advice, evaluation(task, made, verdict, eager=speedup), None
        )
        parent = made


def test_a_run_s_effects_are_read_from_its_records(tmp_path: Path) -> None:
    with run_factory.new_run(tmp_path / "run.db") as database:
        recorded(database, ROWS, 1.0, 2.0, None)
        [lesson] = lessons_from(effects_of(database))
    assert (lesson.technique, lesson.faster, lesson.gains, len(lesson.effects)) == ("vectorize", 1, [2.0], 2)
    assert lesson.families == ["softmax"]


def test_a_technique_that_fails_at_first_and_is_corrected_has_helped(tmp_path: Path) -> None:
    """Also for those who learned of the failure first."""
    with run_factory.new_run(tmp_path / "run.db") as database:
        recorded(database, ROWS, 1.0, None)
        memory = LessonMemory(database)
        assert "0 of 1 faster, 1 failed" in str(lessons_from(memory._effects)[0])
        recorded(database, ROWS)
        failed = database.attempts(ROWS.id)[-1]
        made = candidate(2, (failed.candidate.sha256,))
        database.record_attempt(
            ROWS.id, 2, made, failed.advice, evaluation(ROWS, made, Verdict.correct, eager=1.5), None
        )
        memory.learn(ROWS)
        for effects in (memory._effects, list(effects_of(database))):
            [lesson] = lessons_from(effects)
            assert (lesson.gains, len(lesson.effects)) == ([1.5], 1)


def test_a_prompt_is_told_the_same_when_a_run_goes_on_although_more_is_known(tmp_path: Path) -> None:
    with run_factory.new_run(tmp_path / "run.db") as database:
        recorded(database, ROWS, 1.0, 2.0)
        database.add_task(COLUMNS)
        memory = LessonMemory(database)
        first = memory.lines(COLUMNS, 0, "cpp")
        assert first == ("vectorize, softmax: 1 of 1 faster; time before / after 2.00",)
        recorded(database, ROWS, 1.0, 4.0)
        memory.learn(ROWS)
        assert memory.lines(COLUMNS, 0, "cpp") == first
        assert "2 of 2 faster" in memory.lines(COLUMNS, 1, "cpp")[0]
        assert LessonMemory(database).lines(COLUMNS, 0, "cpp") == first


def sized(technique: str, gain: float | None, megabytes: float, task: str = "file:rows") -> Effect:
    return Effect(technique, "cpp", task, frozenset({"softmax"}), "c", gain, megabytes * 1e6)


def test_what_is_expected_of_a_change_comes_from_tasks_of_its_class() -> None:
    effects = [
        sized("streaming=on", 1.4, 60), sized("streaming=on", 1.2, 20), sized("streaming=on", 0.5, 1),
        sized("block=64", 0.8, 60), sized("block=64", None, 60), sized("unroll=on", 3.0, 60, COLUMNS.id),
        effect("keep=off", 2.0),  # of a size that nobody knows
    ]  # fmt: skip
    found = expectations(COLUMNS, "cpp", "c", 50e6, effects)
    assert found == {
        "streaming=on": Expectation(pytest.approx((1.4 * 1.2) ** 0.5), 2),
        "block=64": Expectation(pytest.approx(0.8**0.5), 2),
    }
    assert expectations(COLUMNS, "cpp", "c", None, effects) == {}
    assert Expectation(1.44, 2).likely == pytest.approx(1.2)


def test_a_judge_is_told_the_same_when_a_run_goes_on_although_more_is_known(tmp_path: Path) -> None:
    with run_factory.new_run(tmp_path / "run.db") as database:
        database.add_task(COLUMNS)
        metric = Metric(name="minimal_bytes", value=50e6, unit="bytes", provenance="roofline")
        profile = Profile(metrics=(metric,), bottleneck="memory", speed_of_light=0.5)
        made = candidate(0)
        history = [judged.Attempt(made, evaluation(COLUMNS, made, Verdict.correct, eager=1.0), profile)]
        chip = database.run.target.fingerprint.chip
        before = [replace(sized("streaming stores, twice", 1.5, 60), chip=chip, language=made.language)]
        first = LessonMemory(database, before).expectations(COLUMNS, history)
        assert first == {"streaming stores, twice": Expectation(1.5, 1)}
        assert LessonMemory(database, before * 2).expectations(COLUMNS, history) == first


def test_the_line_of_a_kernel_leads_back_to_the_first(tmp_path: Path) -> None:
    with run_factory.new_run(tmp_path / "run.db") as database:
        recorded(database, ROWS, 1.0, None, 3.0)
        attempts = database.attempts(ROWS.id)
        assert [attempt.round for attempt in lineage(attempts[-1], attempts)] == [0, 1, 2]
        assert lineage(None, attempts) == []
