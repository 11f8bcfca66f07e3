"""A check builds and verifies a candidate, and times nothing."""

import pytest

from kernelwright.kernelbench.evaluator import CHECK, Referee
from kernelwright.kernelbench.records import Evaluation
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of

pytestmark = pytest.mark.builds


def check(evaluator: Referee, source: str) -> Evaluation:
    return evaluator.evaluate(task_of(REFERENCE), candidate_of(source), CHECK)


def test_what_is_right_is_unmeasured_and_says_so(evaluator: Referee) -> None:
    found = check(evaluator, REFERENCE.replace("Model", "ModelNew"))
    assert found.only_checked and found.verdict == "unmeasured"
    assert found.correctness is not None and found.correctness.inputs_tried >= 6
    assert found.timing is None and found.speedup is None and found.stages.time_s == 0 < found.stages.verify_s


def test_what_is_wrong_is_found_as_when_it_is_measured(evaluator: Referee) -> None:
    wrong = REFERENCE.replace("Model", "ModelNew").replace("return ", "return 1.01 * ", 1)
    found = check(evaluator, wrong)
    assert found.verdict == "wrong_output" and not found.only_checked
    broken = check(evaluator, "class ModelNew(:")
    assert broken.verdict == "build_error" and not broken.only_checked
