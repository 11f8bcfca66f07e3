"""Nsight Compute over a candidate: counters of its own kernels, in one call after those that warm up.

The tool runs in the candidate's sandbox. Kernels are replayed, once for each group of counters that fit
together, at the GPU's current clocks; the counts are a report by the candidate's process.
https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html
"""

import os
import re
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.records import Candidate
from kernelwright.profiling.catalogue import CATALOGUE
from kernelwright.profiling.gpu import under_tool
from kernelwright.profiling.gpu.counted import LaunchCounters, Wanted, launches, listed, metrics_of, wanted
from kernelwright.profiling.gpu.kernels import declared, is_own
from kernelwright.profiling.rung import NotHere, Reading, Subject
from kernelwright.profiling.selection import Selection, stored

_LIMIT_S, _QUERY_S = 120.0, 60.0  # of all attempts together; of a list of counters
_MOST_LAUNCHES, _ATTEMPTS = 32, 4
_PARAMETERS, _RESTRICTED = Path("/proc/driver/nvidia/params"), re.compile(r"RmProfilingAdminOnly: 1\b")
# As ncu calls the chips of compute capabilities.
_CHIPS = {"75": "tu102", "80": "ga100", "86": "ga102", "89": "ad102", "90": "gh100", "100": "gb100",
          "120": "gb202"}  # fmt: skip
_UNKNOWN = re.compile(r"Failed to find metric (?:regex:\^?)?([a-z][a-z0-9_]*)")
_ADMINISTRATORS = (
    "the driver restricts counters to administrators: on the host, put 'options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0' in a file in /etc/modprobe.d and restart; CAP_SYS_ADMIN does not "
    "help here, since candidates run without capabilities"
)
_NOT_HERE = (
    ("ERR_NVGPUCTRPERM", _ADMINISTRATORS),
    ("concurrently collecting|resource was unavailable",
     "another tool uses this GPU's counters: stop it, or pause it (dcgmi profiling --pause)"),
    ("not compatible with Nsight Compute", "this ncu does not support the driver: install a newer ncu"),
    ("not supported on device|not supported on this device|Unsupported GPU|LibraryNotFound",
     "this ncu does not support the GPU: install a newer one"),
    ("[Ff]ailed to connect|free port|No such host",
     "ncu cannot connect to the process it starts, in a sandbox without a network"),
)  # fmt: skip


class NsightCompute:
    """Counters of a candidate's own kernels, by the ncu command."""

    name = "ncu"

    def available(self) -> str:
        tool = _tool()
        if _RESTRICTED.search(_text(_PARAMETERS)):
            raise Unavailable(_ADMINISTRATORS)
        return f"counters of a GPU's kernels, by {tool} {_version(tool)}"

    def read(self, subject: Subject) -> Reading:
        under_tool.require_kernels(subject)
        tool = _tool()
        evaluator = subject.evaluator
        with evaluator.sessions.computing():
            session = evaluator.sessions.open(subject.task)
            asked = wanted(
                names(stored(evaluator.sessions.pool.cache, subject.device)), _known(tool, _chip(subject))
            )
            found, asked = count(tool, session, subject.candidate, asked)
        own = declared(subject.candidate.source)
        mine = [launch for launch in found if is_own(launch.kernel, own)]
        if not mine:
            raise Unavailable("no kernel of its own ran in the call")
        how = f"{len(mine)} launches of its own kernels in a call, counted by ncu {_version(tool)}"
        if len(found) >= _MOST_LAUNCHES:
            how += f", only the first {_MOST_LAUNCHES}"
        if asked.lacking:
            how += f"; unknown there: {', '.join(asked.lacking)}"
        return Reading(tuple(metrics_of(mine)), how)


def names(selection: Selection | None) -> list[str]:
    """Return the ncu metrics to ask for: those of `selection`, or all if no selection has been made."""
    return [
        name
        for name, known in CATALOGUE.items()
        if known.names and (known.of_time or selection is None or selection.keeps(name))
    ]


def count(
    tool: str, session: TaskSession, candidate: Candidate, asked: Wanted
) -> tuple[list[LaunchCounters], Wanted]:
    """Return all counted launches, and the metrics that could be asked for. Raises Unavailable."""
    ends = time.monotonic() + _LIMIT_S
    for _ in range(_ATTEMPTS):
        before = command(tool, asked, declared(candidate.source), session.protocol.caches == "cold")
        ran = under_tool.run(session, candidate, "marked", before, max(1.0, ends - time.monotonic()))
        unknown = set(_UNKNOWN.findall(ran.log + ran.output))
        if not unknown:
            break
        asked = asked.without(unknown)
    if (problem := explained(ran.log + ran.output)) is not None:
        raise problem
    under_tool.require_success(ran, "ncu")
    return launches(ran.output, asked)[:_MOST_LAUNCHES], asked


def command(tool: str, asked: Wanted, own: frozenset[str], cold: bool) -> list[str]:
    """Return the ncu command that precedes the program.

    If `own` names kernels, only their launches are counted.
    """
    pattern = f"regex:(^|:)({'|'.join(sorted(own))})"
    return [
        tool,
        *("--profile-from-start", "off"),
        *("--target-processes", "all"),
        *("--replay-mode", "kernel"),
        *("--clock-control", "none"),
        *("--cache-control", "all" if cold else "none"),
        *("--launch-count", str(_MOST_LAUNCHES)),
        *(("--kernel-name-base", "function", "--kernel-name", pattern) if own else ()),
        *("--metrics", ",".join(dict.fromkeys(asked.names.values()))),
        *("--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", under_tool.OUTPUT),
    ]


def explained(said: str) -> Unavailable | None:
    """Return the problem in ncu's output, with its fix; None if there is none."""
    for pattern, words in _NOT_HERE:
        if re.search(pattern, said):
            return NotHere(words)
    if "No kernels were profiled" in said:
        return Unavailable("no kernel of its own ran in the call")
    errors = [line for line in said.splitlines() if line.startswith("==ERROR==")]
    return Unavailable(f"ncu: {errors[0].removeprefix('==ERROR==').strip()[:300]}") if errors else None


def _tool() -> str:
    """Return the path of ncu. Raises Unavailable."""
    toolkits = (os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    places = [str(Path(folder) / "bin") for folder in toolkits if folder]
    found = shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join(places))
    if found is None:
        raise NotHere("install Nsight Compute, which comes with the CUDA toolkit, and put ncu on PATH")
    return found


def _text(file: Path) -> str:
    """Return the text of a file that may not be there."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _version(tool: str) -> str:
    """Return ncu's version. Raises Unavailable."""
    found = re.search(r"Version (\S+)", _said(tool, "--version"))
    if found is None:
        raise NotHere(f"{tool} --version prints no version; is it Nsight Compute?")
    return found[1]


def _chip(subject: Subject) -> str:
    """Return ncu's name of the chip; empty if unknown."""
    return _CHIPS.get(subject.architecture.removeprefix("sm_"), "")


@cache
def _known(tool: str, chip: str) -> frozenset[str]:
    """Return the counters of a chip; empty if ncu lists none. Raises Unavailable."""
    return listed(_said(tool, "--query-metrics", "--chips", chip)) if chip else frozenset()


def _said(*command: str) -> str:
    """Run a command and return its output. Raises Unavailable."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_QUERY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHere(f"{command[0]} cannot be run: {error}") from None
    return done.stdout
