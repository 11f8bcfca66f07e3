"""kill -9 of any worker at any moment: no wrong verdict, nothing left behind, and the referee goes on.

Twelve evaluations by default; KERNELWRIGHT_KILLS=200 for as many.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import KernelwrightError
from kernelwright.kernelbench.evaluator import EAGER, Referee
from kernelwright.kernelbench.evaluator.sandbox.process_tree import tree
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of, variant

KILLS = int(os.environ.get("KERNELWRIGHT_KILLS", "12"))
RETURN = "return torch.nn.functional.gelu(self.norm(x))"
HONEST = candidate_of(variant("Model", "Model"))
WRONG = candidate_of(variant(RETURN, "return torch.nn.functional.gelu(self.norm(x)) + 0.1"))


@contextlib.contextmanager
def killing_one_of(evaluator: Referee, chosen: random.Random) -> Iterator[list[str]]:
    """Kill a worker that runs, after a random part of an evaluation; the list names its role when it did."""
    killed: list[str] = []

    def kill() -> None:
        time.sleep(chosen.uniform(0, 1.0))
        alive = [worker for worker in evaluator.sessions.pool._workers if worker.alive]
        if alive:
            worker = chosen.choice(alive)
            victim = chosen.choice(tree(worker.init_pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                killed.append(worker.scratch.name.split("-")[0])

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        thread.join()
        time.sleep(0.05)  # what was killed is gone by then


def memory_files() -> int:
    """How many anonymous shared files this process holds."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += "memfd" in str(Path("/proc/self/fd", name).readlink())
    return found


@pytest.mark.slow
def test_killed_workers_are_no_wrong_verdict(evaluator: Referee) -> None:
    task = task_of("# killed\n" + REFERENCE)
    chosen = random.Random(0)
    evaluator.evaluate(task, HONEST, EAGER)
    descriptors, memories = len(os.listdir("/proc/self/fd")), memory_files()
    outcomes: Counter[str] = Counter()
    for number in range(KILLS):
        candidate = WRONG if number % 3 == 2 else HONEST
        with killing_one_of(evaluator, chosen) as killed:
            try:
                verdict = evaluator.evaluate(task, candidate, EAGER).verdict
            except (
                KernelwrightError
            ) as error:  # the oracle or the baseline died: nothing is said of the candidate
                outcomes[type(error).__name__] += 1
                continue
        outcomes[str(verdict)] += 1
        allowed = {Verdict.wrong_output} if candidate is WRONG else {Verdict.correct}
        if killed:
            allowed |= {Verdict.runtime_error, Verdict.build_error}
        assert verdict in allowed, (verdict, killed)
    print(dict(outcomes))
    assert evaluator.evaluate(task, HONEST, EAGER).verdict is Verdict.correct
    assert settled(lambda: len(os.listdir("/proc/self/fd")) <= descriptors and memory_files() <= memories)
    evaluator.sessions.release()
    fork_server = evaluator.sessions.pool._fork_server.pid
    assert settled(lambda: tree(fork_server) == [fork_server])


def settled(condition: Callable[[], bool]) -> bool:
    """Whether it comes to hold: last words are read, and killed processes end, in their own time."""
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()
