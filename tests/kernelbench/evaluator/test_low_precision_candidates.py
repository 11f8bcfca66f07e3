"""Kernels in eight and four bits, written by hand, before the whole referee: right ones pass, faults do not."""

import pytest

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.evaluator import CHECK, Referee
from kernelwright.kernelbench.evaluator.interface import LocalEvaluator
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from kernelwright.kernelbench.sources import resolve
from kernelwright.kernelbench.without_gpu import EmulatedEvaluator
from tests.helpers.evaluator.low_precision_kernels import KERNELS, SMALLER, WRONG
from tests.helpers.installed import require

pytestmark = [pytest.mark.builds, pytest.mark.slow]
CASES = [(name, language, "") for name, language in KERNELS]
CASES += [(*key, fault) for key, faults in WRONG.items() for fault in faults]


def small(name: str) -> Task:
    """A task of the suite, small."""
    (task,) = resolve([f"builtin:lowprec/{name}"])
    lines = task.source.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if (constant := line.partition(" = ")[0]) in SMALLER:
            lines[number] = f"{constant} = {SMALLER[constant]}\n"
    return task.model_copy(update={"source": "".join(lines)})


def judged(evaluator: Referee, task: Task, name: str, language: str, fault: str) -> Evaluation:
    source = f"{task.source}\n{KERNELS[name, language]}"
    if fault:
        old, new = WRONG[name, language][fault]
        assert old in source
        source = source.replace(old, new)
    candidate = Candidate(source=source, language=language_of(source), author="test")
    assert candidate.language == language
    judge: LocalEvaluator = EmulatedEvaluator(evaluator) if language == "triton" else evaluator
    return judge.evaluate(task, candidate, CHECK)


@pytest.mark.parametrize(("name", "language", "fault"), CASES)
def test_a_kernel_is_right_and_its_faults_are_wrong(
    name: str, language: str, fault: str, evaluator: Referee
) -> None:
    require("triton")
    found = judged(evaluator, small(name), name, language, fault)
    if fault:
        assert found.verdict is Verdict.wrong_output, found.reason
    else:
        assert found.right and found.correctness is not None, (found.verdict, found.reason)
