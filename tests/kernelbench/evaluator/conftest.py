"""One evaluator for all evaluator tests, with a short protocol: these tests are about verdicts, not numbers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.evaluator import EAGER, Effort, Limits, Protocol, Referee
from kernelwright.kernelbench.records import Evaluation
from tests.helpers.evaluator.trial import REFERENCE, Evaluate, candidate_of, task_of


@pytest.fixture(scope="session")
def evaluator(home: Path) -> Iterator[Referee]:
    protocol = Protocol(
        effort=Effort(rounds=4, processes=1, most_processes=1, half_width=1.0, timing_s=10),
        min_rounds=3,
        block_s=0.005,
        verified_blocks=3,
    )
    limits = Limits(build_s=180, load_s=20, call_s=3, memory_bytes=2 << 30, processes=64)
    with Referee.start(cache=home, protocol=protocol, limits=limits) as made:
        yield made


@pytest.fixture
def evaluate(evaluator: Referee) -> Evaluate:
    """evaluate(candidate source, reference source) against eager only."""

    def call(source: str, reference: str = REFERENCE) -> Evaluation:
        return evaluator.evaluate(task_of(reference), candidate_of(source), EAGER)

    return call
