"""Fixtures of tests on a GPU: one referee, and the folder of traced references."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.evaluator import Effort, Protocol, Referee
from tests.helpers.builtin.proving import TRACES


@pytest.fixture(scope="session")
def brief(home: Path) -> Iterator[Referee]:
    """A referee that times as little as it can, for tests that ask what is right."""
    effort = Effort(rounds=1, processes=1, most_processes=1, half_width=1.0)
    with Referee.start(cache=home, device="cuda:0", protocol=Protocol(effort=effort, min_rounds=1)) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRACES, str(tmp_path_factory.mktemp("traces")))
        yield
