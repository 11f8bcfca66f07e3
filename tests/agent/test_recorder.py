"""Recording of attempts: what is kept of a profile, and what is said of profilers that read nothing."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernelwright.agent.display.progress import RunProgress
from kernelwright.agent.protocols import Attempt
from kernelwright.agent.recorder import DatabaseRecorder, Stopped
from kernelwright.kernelbench.evaluator.processes.timing_lock import TimingLock
from kernelwright.profiling.records import Profile, RungOutcome
from tests.helpers.results import run_factory
from tests.helpers.results.run_factory import candidate, new_run, task

TASK = task("softmax")
OFF = RungOutcome(name="ncu", on=False, why="install Nsight Compute", for_all=True)


@dataclass
class Said(RunProgress):
    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)


def attempt(*rungs: RungOutcome) -> Attempt:
    profile = Profile(metrics=(), bottleneck="memory", speed_of_light=0.5, rungs=rungs)
    return Attempt(candidate(1), run_factory.evaluation(TASK, candidate(1), eager=2.0), profile)


def test_why_a_profiler_reads_nothing_is_said_once_in_a_run(tmp_path: Path) -> None:
    said, on = Said(), RungOutcome(name="cupti", on=True, why="3 events")
    with new_run(tmp_path) as database:
        database.add_task(TASK)
        recorder = DatabaseRecorder(database, TimingLock(), said, threading.Event(), None)
        recorder.attempt(TASK, 0, attempt(on), None, confirms=False)
        assert not any("profiler" in line for line in said.lines)
        recorder.profile(TASK, 0, attempt(on, OFF))
        recorder.attempt(TASK, 1, attempt(on, OFF), None, confirms=False)
        told = [line for line in said.lines if "profiler" in line]
        assert told == [f"{TASK.id}: profiler ncu reads nothing: install Nsight Compute"]
        recorded = [each.profile for each in database.attempts(TASK.id)]
        assert all(profile is not None and profile.rungs == (on, OFF) for profile in recorded)


def test_a_run_that_is_being_ended_keeps_no_profile(tmp_path: Path) -> None:
    stopped = threading.Event()
    with new_run(tmp_path) as database:
        database.add_task(TASK)
        recorder = DatabaseRecorder(database, TimingLock(), Said(), stopped, None)
        recorder.attempt(TASK, 0, attempt(), None, confirms=False)
        stopped.set()
        with pytest.raises(Stopped):
            recorder.profile(TASK, 0, attempt(OFF))
        assert database.attempts(TASK.id)[0].profile == attempt().profile
