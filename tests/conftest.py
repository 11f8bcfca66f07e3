"""Where tests run in parallel (`make test`), each of the processes keeps to CPUs of its own, as far as they go.
What holds measured times against each other is marked timed, and runs alone afterwards.

Slow tests come first in each, so that no process is left alone with one at the end. Tests marked gpu are skipped
where torch finds none.
"""

import os
import signal
from pathlib import Path

import pytest

WORKER, COUNT = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more process than there are CPUs: many tests wait for children, or for a limit to run out."""
    return min(4, len(os.sched_getaffinity(0)) + 1)


def pytest_configure() -> None:
    """What a test starts inherits this: evaluators take as many threads as there are CPUs left to them.

    A shell has what it starts in the background ignore Ctrl-C, which some tests send.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if WORKER is not None:
        cpus = sorted(os.sched_getaffinity(0))
        mine = cpus[int(WORKER.removeprefix("gw")) % len(cpus) :: COUNT]
        os.sched_setaffinity(0, mine)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = _dealt(items)
    for_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if for_gpu and not _has_gpu():
        for item in for_gpu:
            item.add_marker(pytest.mark.skip(reason="torch finds no GPU here"))


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that all processes share, so that headers are compiled and the machine is measured once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if WORKER is None else base.parent) / "home"
    os.environ["KERNELWRIGHT_HOME"] = str(folder)
    return folder


def _dealt(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order tests so that each process, which gets a contiguous share, starts with slow ones of whole files."""
    slow: dict[Path, list[pytest.Item]] = {}
    rest = []
    for item in items:
        if item.get_closest_marker("slow") is None:
            rest.append(item)
        else:
            slow.setdefault(item.path, []).append(item)
    shares: list[list[pytest.Item]] = [[] for _ in range(COUNT)]
    for tests in sorted(slow.values(), key=len, reverse=True):
        min(shares, key=len).extend(tests)
    for number, share in enumerate(shares):
        size = len(items) * (number + 1) // COUNT - len(items) * number // COUNT
        more = max(0, size - len(share))
        share += rest[:more]
        del rest[:more]
    return [item for share in shares for item in share] + rest


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
