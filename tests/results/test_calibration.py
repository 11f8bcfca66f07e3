"""Predicted gains are held against what was timed, and against what failed."""

import pytest

from kernelwright.kernelbench.records import Advice, Verdict
from kernelwright.results.lessons.calibration import calibration, corrects, measured_gain
from kernelwright.results.store.records import RecordedAttempt
from tests.helpers.results.run_factory import candidate, evaluation, task

TASK = task("softmax")


def attempt(number: int, time_us: float | None, gain: float | None = None, parent: RecordedAttempt | None = None,
            confirms: bool = False) -> RecordedAttempt:  # fmt: skip
    """A candidate that took so long (None: it failed), asked for with advice that predicted `gain`."""
    made = candidate(number, (parent.candidate.sha256,) if parent is not None else ())
    verdict = Verdict.correct if time_us is not None else Verdict.wrong_output
    found = evaluation(TASK, made, verdict, eager=100 / time_us if time_us is not None else None)
    advice = Advice(bottleneck="b", method="m", plan="p", predicted_gain=gain) if gain is not None else None
    return RecordedAttempt(
        id=number, task=TASK.id, round=number, confirms=confirms, candidate=made, advice=advice,
        evaluation=found, profile=None,
    )  # fmt: skip


def test_a_gain_is_over_the_candidate_it_was_made_from() -> None:
    first = attempt(1, 100.0)
    second = attempt(2, 200.0, 1.5, first)
    third = attempt(3, 80.0, 1.2, first)
    assert measured_gain(third, [first, second, third]) == pytest.approx(1.25)
    assert measured_gain(first, [first, second, third]) is None


def test_predictions_are_summed_up() -> None:
    first = attempt(1, 100.0)
    tried = [first, attempt(2, 50.0, 4.0, first), attempt(3, 200.0, 2.0, first), attempt(4, None, 3.0, first)]
    found = calibration([tried, [attempt(1, 10.0)]])
    assert found is not None
    assert (len(found.predictions), len(found.came), found.faster) == (3, 2, 1)
    assert found.off_by == pytest.approx(8**0.5)  # 4.0 came to 2.0, and 2.0 to 0.5: factors of 2 and 4
    assert found.rows() == [
        ("from 2", "3", "2", "1", "3.00×", "1.25×", "2.83×"),
        ("all", "3", "2", "1", "3.00×", "1.25×", "2.83×"),
    ]


def test_corrections_and_confirmations_predict_nothing() -> None:
    first = attempt(1, 100.0)
    assert (
        calibration([[first, attempt(2, 50.0, 1.0, first), attempt(3, 50.0, 2.0, first, confirms=True)]])
        is None
    )


def test_an_idea_that_is_right_once_it_is_corrected_is_one_prediction() -> None:
    """As `calibration` has it in its example: two failures, of which a repair has the same advice."""
    first = attempt(1, 10.0)
    broken = attempt(2, None, 1.5, first)
    repaired = attempt(3, None, 1.5, broken)
    right = attempt(4, 8.0, 1.0, repaired)
    later = attempt(5, 5.0, 2.0, right)
    tried = [first, broken, repaired, right, later]
    assert measured_gain(broken, tried) == measured_gain(right, tried) == pytest.approx(1.25)
    assert [corrects(each, tried) for each in tried] == [False, False, True, True, False]
    found = calibration([tried])
    assert found is not None and found.came == pytest.approx([1.25, 1.6])
    given_up = calibration([[first, broken, repaired]])
    assert given_up is not None and (len(given_up.predictions), given_up.came) == (1, [])
