from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.agent.llm.endpoint.fake_endpoint import FakeEndpoint
from kernelwright.results.store.database import RunDatabase
from tests.helpers.anywhere import TARGET


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint().serving() as made:
        yield made


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RunDatabase]:
    with RunDatabase.create(tmp_path / "run.db", settings={}, target=TARGET) as made:
        yield made
