"""Steps, each run in a process of its own: one that fails or hangs ends with all that it has started."""

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from kernelwright.kernelbench.evaluator.sandbox import layers, process_tree
from tests.gpu.acceptance.bench import Bench
from tests.gpu.acceptance.records import Check, Outcome

_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Step:
    """One step of a stage. `limit_s`: after which it is killed; `on_cpu`: whether a dry run can do without a GPU."""

    run: Callable[[Bench], None]
    limit_s: float
    on_cpu: bool = False

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def what(self) -> str:
        return (self.run.__doc__ or "").strip()


def outcome_of(step: Step, bench: Bench, limit_s: float) -> Outcome:
    """Run a step, and return how it ended; its checks are in the bench's journal."""
    began, begin = time.monotonic(), bench.journal.size()
    child = os.fork()
    if child == 0:
        _run(step, bench)
    ended = 0
    try:
        while not ended and time.monotonic() < began + limit_s:
            time.sleep(_LOOK_EVERY_S)
            ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        if not ended:
            process_tree.kill(child)
            _, status = os.waitpid(child, 0)
    if not ended:
        bench.journal.add(Check(step.name, "limit", False, f"it was killed after {limit_s:.0f} s"))
    elif status != 0:
        bench.journal.add(Check(step.name, "end", False, f"its process ended with {_in_words(status)}"))
    tried = [check.passed for check in bench.journal.checks(begin) if check.passed is not None]
    seconds = time.monotonic() - began
    if not tried:
        return Outcome(step.name, "not tried", seconds, "nothing of it could be tried")
    return Outcome(step.name, "passed" if all(tried) else "failed", seconds)


def _run(step: Step, bench: Bench) -> None:
    """Run a step as the child, and end it with whatever it has left behind."""
    status = 1
    try:
        layers.become_subreaper()
        step.run(bench)
        status = 0
    except Exception as error:  # noqa: BLE001 - the next step is tried
        traceback.print_exc(limit=-6)
        bench.check(False, "error", f"{type(error).__name__}: {str(error)[:600]}")
        status = 0
    finally:
        bench.close()
        process_tree.kill_descendants()
        os._exit(status)


def _in_words(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"status {code}"
