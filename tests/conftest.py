"""The lanes of the tests, and how each uses a machine.

Where tests run in parallel (`make test`), each of the processes keeps to a CPU, or to several where there are more
CPUs than processes. What holds measured times against each other is marked timed, and runs alone afterwards. Slow
tests come first in each, so that no process is left alone with one at the end. Tests marked gpu are skipped where
torch finds none, and with `--suite=changed` those of task files that are as they were. With `--part=K` a tenth
is chosen of all files of tests, and of single tests of task files and of the red team: ten numbers in turn run
all. CI runs one part of the slow tests for each commit. Slow are tests with that mark, and those of slow.txt, which
`--note-slow` writes: tests that took more than three seconds beside others, and files that set up for as long. What
took more than one it writes to not_fast.txt: `make test-fast` leaves it out.
"""

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

WORKER, COUNT = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
ROOT = Path(__file__).parents[1]
PROCESS_BYTES = 3 << 30  # of a process of the tests, with the evaluator and the workers that it starts
BUILDERS = {"evaluator", "interpreter"}  # fixtures whose tests build kernels or run workers
PARTS = 10
SECONDS = {"slow": 3.0, "not_fast": 1.0}  # what a test, or what its file sets up, may take without the mark
LISTED = {mark: Path(__file__).with_name(f"{mark}.txt") for mark in SECONDS}
SLOW_TIMEOUT_S = 900.0  # precompiling torch's header takes up to 90 s alone, and far more beside others
SUITE = "tests/kernelbench/test_suite.py"  # whose tests, with the mark suite, have a task file each


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--suite",
        choices=("all", "changed"),
        default="all",
        help="Test all task files of the suite, or those that differ from the main branch.",
    )
    names = " and ".join(path.name for path in LISTED.values())
    parser.addoption("--note-slow", action="store_true", help=f"Add tests that took long to {names}.")
    parser.addoption(
        "--part", type=int, help=f"Choose the part of this number, modulo {PARTS}, of the tests."
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    from kernelwright.kernelbench.machine import memory_bytes, usable_cpus

    # Two for each CPU: tests wait for half of their time, for processes, timeouts and disks. Fast ones do not.
    processes = usable_cpus() if config.option.numprocesses == "logical" else 2 * usable_cpus()
    return max(1, min(processes, memory_bytes() // PROCESS_BYTES))


def pytest_configure(config: pytest.Config) -> None:
    """What a test starts inherits this: evaluators take as many threads as there are CPUs left to them.

    A shell has what it starts in the background ignore Ctrl-C, which some tests send.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if WORKER is None and config.option.note_slow:
        config.pluginmanager.register(NotedTests())
    cpus = sorted(os.sched_getaffinity(0))
    if WORKER is not None:
        os.sched_setaffinity(0, cpus[int(WORKER.removeprefix("gw")) % len(cpus) :: COUNT])


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    listed = {mark: set(path.read_text().split("\n")) for mark, path in LISTED.items()}
    for item in items:
        for mark, names in listed.items():
            if item.nodeid in names or item.nodeid.partition("::")[0] in names:
                item.add_marker(mark)
        if isinstance(item, pytest.Function) and not BUILDERS.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.builds)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
    if config.option.suite == "changed":
        changed = _changed_files()
        unchanged = [
            item for item in items if item.get_closest_marker("suite") and not _may_differ(item, changed)
        ]
        config.hook.pytest_deselected(items=unchanged)
        items[:] = [item for item in items if item not in set(unchanged)]
    if config.option.part is not None:
        others = [item for item in items if _part(item) != config.option.part % PARTS]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
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


class NotedTests:
    """Plugin that adds tests that took long to the lists of those."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid if report.when == "call" else report.nodeid.partition("::")[0]
        self.seconds[name] = max(self.seconds[name], report.duration)

    def pytest_sessionfinish(self) -> None:
        slow: set[str] = set()  # is in one list
        for mark, least_s in SECONDS.items():
            found = {name for name, seconds in self.seconds.items() if seconds > least_s}
            names = {*LISTED[mark].read_text().splitlines(), *found} - slow
            LISTED[mark].write_text("".join(f"{name}\n" for name in sorted(names)))
            slow |= names


def _part(item: pytest.Item) -> int:
    """Return the part that a test is in; tests of a file share what it sets up, so they are in one."""
    alone = any(item.get_closest_marker(name) for name in ("suite", "redteam"))
    return crc32((item.nodeid if alone else item.nodeid.partition("::")[0]).encode()) % PARTS


def _changed_files() -> set[str] | None:
    """Files that differ from where the main branch was left, or are not committed; None where git cannot tell."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    try:
        (base,) = git("merge-base", "HEAD", "main")
        return {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}
    except (OSError, subprocess.CalledProcessError):
        return None


def _may_differ(item: pytest.Item, changed: set[str] | None) -> bool:
    assert isinstance(item, pytest.Function)
    file = item.callspec.params["path"].resolve().relative_to(ROOT)
    return changed is None or not changed.isdisjoint({str(file), SUITE})


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
