"""Fixtures of a step: the device, a folder for tables, referees, and the journal of its checks."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.evaluator import EAGER, Effort, Limits, Measurement, Protocol, Referee, trial
from kernelwright.kernelbench.evaluator.timing.statistics import Timings
from kernelwright.kernelbench.records import Candidate, Evaluation, Task
from tests.gpu.acceptance.records import Check, Journal

BRIEF = Effort(rounds=5, processes=1, most_processes=2, half_width=1.0)
_SMALL_BYTES = 16 << 20  # of inputs, and of outputs, of a block of a dry run
REFERENCE = """
import torch
from torch import nn

rows = {rows}

class Model(nn.Module):
    def forward(self, x):
        return {expression}

def get_inputs():
    return [torch.randn(rows, 4096)]

def get_init_inputs():
    return []
"""
ONCE = "torch.relu(x * 2.0) + 1.0"
THRICE = "torch.relu(x * 2.0) + 1.0 + 0.0 * torch.relu(x.flip(0).flip(0))"


@dataclass
class Bench:
    """Environment of a stage. `small`: a dry run, whose times mean nothing; `step`: the one that runs."""

    device: str
    out: Path
    home: Path
    journal: Journal
    small: bool = False
    without: Sequence[str] = ()  # layers of the sandbox
    step: str = ""
    _referees: dict[str, Referee] = field(default_factory=dict)

    def at(self, step: str) -> "Bench":
        return replace(self, step=step, _referees={})

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    def check(self, passed: bool | None, name: str, what: object = "", **values: object) -> None:
        """Record a check, and print its line. `passed` is None for what cannot be tried here."""
        said = " ".join(str(what).split())
        self.journal.add(Check(self.step, name, passed, said, values))
        print({True: "   PASS", False: "   FAIL", None: "   ----"}[passed], f"{name}: {said}", flush=True)

    def referee(self, limits: Limits | None = None, **options: Any) -> Referee:
        """Return a referee with these options of the protocol, one for each set of them, until the step ends."""
        key = repr((limits, options))
        if key not in self._referees:
            if self.small:
                options = {"inputs_bytes": _SMALL_BYTES, "outputs_bytes": _SMALL_BYTES} | options
            protocol = Protocol(**{"effort": BRIEF} | options)
            self._referees[key] = Referee.start(
                cache=self.home, device=self.device, without=self.without, protocol=protocol, limits=limits
            )
        return self._referees[key]

    def evaluate(
        self, task: Task, candidate: Candidate, measurement: Measurement = EAGER, **options: Any
    ) -> tuple[Evaluation, Timings | None]:
        """Return an evaluation, and the timings that it rests on, if there are any."""
        referee = self.referee(**options)
        with _timings() as seen:
            return referee.evaluate(task, candidate, measurement), (seen or [None])[-1]

    def close(self) -> None:
        """End the processes of all referees."""
        while self._referees:
            self._referees.popitem()[1].close()


@contextlib.contextmanager
def _timings() -> Iterator[list[Timings]]:
    """Have the list hold the timings of all evaluations in the block."""
    seen: list[Timings] = []
    measure = trial.measure

    def watched(*args: Any, **kwargs: Any) -> Timings:
        seen.append(measure(*args, **kwargs))
        return seen[-1]

    trial.measure = watched
    try:
        yield seen
    finally:
        trial.measure = measure


def task(rows: int, expression: str = ONCE) -> Task:
    """A task of `rows` times 4096 floats, 16 KiB a row."""
    return Task(id=f"acceptance:{rows}", level=1, source=REFERENCE.format(rows=rows, expression=expression))


def candidate(source: str) -> Candidate:
    return Candidate(source=source, language=language_of(source), author="acceptance")


def itself(rows: int) -> Candidate:
    """The reference of a task, as a candidate."""
    return candidate(task(rows).source.replace("class Model(", "class ModelNew("))


def kernel(name: str) -> Candidate:
    """The candidate of a file in kernels/."""
    return candidate((Path(__file__).parent / "kernels" / f"{name}.py").read_text())


def told(found: Evaluation) -> str:
    """An evaluation in a line."""
    said = [f"{found.verdict}: {found.reason[:300]}"]
    if (timing := found.timing) is not None:
        times = {"eager": timing.eager_us, "compile": timing.compile_us}
        said += [f"{timing.candidate_us.median:.1f} us"]
        said += [f"{name} {time.median:.1f}" for name, time in times.items() if time is not None]
        said += [f"by the device {timing.device_us:.1f}"] if timing.device_us is not None else []
        said += [f"failed: {timing.failed_baselines}"] if timing.failed_baselines else []
    share = "unknown" if found.own_kernel_share is None else f"{found.own_kernel_share:.0%}"
    return "; ".join([*said, f"own kernels {share}", f"{found.stages.total_s:.1f} s"])


def machine(device: str) -> str:
    """The device, its driver, and torch, for a table."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    if (index := device.partition(":")[2]) and not os.environ.get("CUDA_VISIBLE_DEVICES"):
        words += ["-i", index]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
        chip, driver = found.splitlines()[0].split(", ")
        what = f"{chip} (driver {driver})"
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        what = f"{device}, without nvidia-smi"
    return f"{what}, torch {version('torch')}"
