"""One evaluator for all evaluator tests, with a short protocol: these tests are about verdicts, not numbers."""

import textwrap
from collections.abc import Callable, Iterator

import pytest

from kernelbench.candidates import language_of
from kernelbench.evaluator import Evaluator, Limits, Protocol
from kernelbench.records import Candidate, Evaluation, Task

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(x))

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return [1024]
"""

Evaluate = Callable[..., Evaluation]


def task_of(source: str, name: str = "reference") -> Task:
    return Task(id=f"file:{name}", level=1, source=textwrap.dedent(source))


def candidate_of(source: str) -> Candidate:
    source = textwrap.dedent(source)
    return Candidate(source=source, language=language_of(source), author="test")


def variant(old: str, new: str) -> str:
    """The reference as a candidate, with one piece of its text replaced."""
    assert old in REFERENCE
    return REFERENCE.replace("class Model(", "class ModelNew(").replace(old, new)


@pytest.fixture(scope="session")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    protocol = Protocol(rounds=5, min_rounds=3, block_s=0.005, timing_s=10, verified_blocks=3)
    limits = Limits(build_s=180, load_s=20, call_s=3, memory_bytes=2 << 30, processes=64)
    with Evaluator(cache=tmp_path_factory.mktemp("cache"), protocol=protocol, limits=limits) as made:
        yield made


@pytest.fixture
def evaluate(evaluator: Evaluator) -> Evaluate:
    """evaluate(candidate source, reference source) against eager only."""

    def call(source: str, reference: str = REFERENCE) -> Evaluation:
        return evaluator.evaluate(task_of(reference), candidate_of(source), ("eager",))

    return call
