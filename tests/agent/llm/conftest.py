from collections.abc import Iterator

import pytest

from agent.bench.endpoint import Endpoint


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint().serving() as made:
        yield made
