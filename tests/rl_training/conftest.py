"""Models are so small that one thread is the fastest."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute with one thread in modules that are marked training."""
    if request.node.get_closest_marker("training") is None:
        yield
        return
    pytest.importorskip("trl")
    import torch
    import transformers

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()
    torch.set_num_threads(threads)
