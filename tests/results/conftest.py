from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.results.store.database import RunDatabase
from tests.helpers.results import run_factory


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RunDatabase]:
    """An empty run in its own folder."""
    with run_factory.new_run(tmp_path) as database:
        yield database


@pytest.fixture
def example(database: RunDatabase) -> RunDatabase:
    """The run of `run_factory.record_example`."""
    run_factory.record_example(database)
    return database
