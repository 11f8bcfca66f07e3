from collections.abc import Iterator

import pytest

from kernelwright.agent.bench.server import Server


@pytest.fixture
def endpoint() -> Iterator[Server]:
    with Server().serving() as made:
        yield made
