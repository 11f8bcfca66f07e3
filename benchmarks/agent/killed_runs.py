"""A run of `kernelwright run` that is killed with kill -9 again and again, and resumed until it ends.

Its process group is killed while a model is asked, an answer is recorded, a candidate is evaluated or the
database is written. What was done is kept in a file, so that a benchmark that is killed itself
goes on.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Literal, get_args

from benchmarks.agent.faulty_model import FaultyModel
from benchmarks.publishing import log
from kernelwright.kernelbench.records import Record
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder, write_atomically
from kernelwright.results.store.records import TaskState

Moment = Literal["a call", "an answer", "an evaluation", "a write"]
_MOST_EPOCHS = 16
# A limit is reached; more often a task is left because no model has answered.
_NOT_BEGUN = re.compile(r" (\S+): (?:not begun, |left for --resume: )(.* (?:spent|over|winners?))$")
_LONGEST_S = 1800.0  # of a process


class Kill(Record):
    """Kill of a process: at this moment, after so many requests, answers or writes, and `delay_s` later."""

    moment: Moment
    after: int
    delay_s: float

    @classmethod
    def some(cls, number: int, seed: int) -> list["Kill"]:
        """Return so many kills, of each kind in turn."""
        chance = Random(f"kills {seed}")
        moments = get_args(Moment)
        delays = {"a call": 0.0, "an answer": 0.03, "an evaluation": 3.0, "a write": 0.003}
        return [
            cls(moment=moment, after=chance.randint(3, 12), delay_s=chance.uniform(0, delays[moment]))
            for moment in (moments[(i + seed) % len(moments)] for i in range(number))
        ]


class Epoch(Record):
    """A process of the run: how it ended, and the calls that were recorded by then."""

    killed: str  # at which moment; "" if it was not
    status: int
    calls: int
    seconds: float
    not_begun: tuple[tuple[str, str], ...] = ()  # tasks, and why
    told: str = ""  # its last line


class KilledRun(Record):
    """The processes of a run so far. `pid`: of the one that is running, or was when the benchmark ended."""

    epochs: tuple[Epoch, ...] = ()
    pid: int | None = None


def carried_out(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    model: FaultyModel,
    kills: Sequence[Kill],
    state: Path,
) -> KilledRun:
    """Begin a run, or go on with it, until a process that is not killed has left nothing to do."""
    known = KilledRun.model_validate_json(state.read_text()) if state.exists() else KilledRun()
    if known.pid is not None:
        if str(folder) in _command_of(known.pid):  # and no other process that has its number now
            _kill_group(known.pid)
        known = _ended(known, folder, Epoch(killed="the benchmark", status=-9, calls=0, seconds=0.0))
    while not _is_over(known, folder):
        number = len(known.epochs)
        kill = kills[number] if number < len(kills) else None
        model.begin(number)
        resumed = RunFolder(folder).holds_run
        command = ["run", "--resume", str(folder)] if resumed else ["run", *words, "--out", str(folder)]
        again = [word for word in words if resumed and word in _GIVEN_AGAIN]
        options = [each for word in again for each in words[words.index(word) : words.index(word) + 2]]
        known = _epoch([*command, *options], environment, folder, model, kill, known, state)
        write_atomically(state, known.model_dump_json())
        last = known.epochs[-1]
        how = f"killed during {last.killed}" if last.killed else f"status {last.status}"
        log(f"{folder.name}, process {number}: {how}, {last.seconds:.0f} s")
    return known


# Options of execution, which a run does not keep.
_GIVEN_AGAIN = ("--price", "--silence-limit", "--call-limit", "--retry-limit", "--tasks-at-once", "--workers")


def _is_over(known: KilledRun, folder: Path) -> bool:
    if not known.epochs:
        return False
    last = known.epochs[-1]
    if last.killed:
        return False
    if len(known.epochs) >= _MOST_EPOCHS or last.status not in (0, 2):
        return True
    # Nothing but a larger limit lets go on what a process has not even begun.
    return last.status == 0 and pending(folder) <= {name for name, _ in last.not_begun}


def pending(folder: Path) -> set[str]:
    """Return the tasks that are not done. Raises StorageError before the run has begun."""
    with RunDatabase.open(folder, read_only=True) as database:
        return {entry.task.id for entry in database.tasks() if entry.state is TaskState.pending}


def _epoch(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    model: FaultyModel,
    kill: Kill | None,
    known: KilledRun,
    state: Path,
) -> KilledRun:
    told = folder.with_name(f"{folder.name}-{len(known.epochs)}.log")
    began = time.monotonic()
    with told.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.agent.brief_timing", *command],
            env=dict(environment), stdout=subprocess.DEVNULL, stderr=output, start_new_session=True,
        )  # fmt: skip
    write_atomically(state, known.model_copy(update={"pid": process.pid}).model_dump_json())
    due = threading.Event()
    model.heard = _listener(kill, due)
    writes, stamp = 0, None
    wal = folder / "run.db-wal"
    killed = ""
    while process.poll() is None:
        if kill is not None and kill.moment == "a write":
            now = _stamp(wal)
            writes, stamp = writes + (now != stamp), now
            if writes > 3 * kill.after:
                due.set()
        if due.is_set() or time.monotonic() - began > _LONGEST_S:
            assert kill is not None, f"a process takes more than {_LONGEST_S:g} s: {told}"
            time.sleep(kill.delay_s)
            if process.poll() is None:
                _kill_group(process.pid)
                process.wait()
                killed = kill.moment
            break
        time.sleep(0.005)
    lines = told.read_text().splitlines()
    reasons = [_NOT_BEGUN.search(line) for line in lines]
    epoch = Epoch(
        killed=killed,
        status=process.returncode,
        calls=0,
        seconds=time.monotonic() - began,
        not_begun=tuple((match[1], match[2]) for match in reasons if match),
        told=lines[-1] if lines else "",
    )
    return _ended(known, folder, epoch)


def _listener(kill: Kill | None, due: threading.Event) -> Callable[[int, bool, str], None]:
    """Return what is told of each request, and says when the kill is due."""
    answers = 0

    def heard(number: int, is_whole: bool, role: str) -> None:
        nonlocal answers
        answers += is_whole and role != "preflight"
        if kill is None:
            return
        if kill.moment == "a call" and number >= kill.after:
            due.set()
            time.sleep(1.0)  # it is killed before it is answered
        elif kill.moment in ("an answer", "an evaluation") and answers >= kill.after:
            due.set()

    return heard


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        time.sleep(0.01)


def _ended(known: KilledRun, folder: Path, epoch: Epoch) -> KilledRun:
    """Return the run with this process, and the calls that are recorded now."""
    calls = 0
    if RunFolder(folder).holds_run:
        with RunDatabase.open(folder, read_only=True) as database:
            calls = len(database.llm_calls())
    return KilledRun(epochs=(*known.epochs, epoch.model_copy(update={"calls": calls})))
