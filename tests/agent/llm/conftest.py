from collections.abc import Iterator

import pytest

from kernelwright.agent.llm.fake_endpoint import FakeEndpoint


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint().serving() as made:
        yield made
