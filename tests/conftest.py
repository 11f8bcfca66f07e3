"""Where tests run in parallel (`make test`), each of the processes keeps to CPUs of its own.

Slow tests come first, so that no process is left alone with one at the end.
"""

import os

import pytest

WORKER, COUNT = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def pytest_configure() -> None:
    """What a test starts inherits this: evaluators take as many threads as there are CPUs left to them."""
    if WORKER is not None:
        cpus = sorted(os.sched_getaffinity(0))
        mine = cpus[int(WORKER.removeprefix("gw")) % len(cpus) :: COUNT]
        os.sched_setaffinity(0, mine)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
