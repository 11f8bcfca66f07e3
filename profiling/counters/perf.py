"""`perf stat` on a running process.

https://man7.org/linux/man-pages/man1/perf-stat.1.html
"""

import contextlib
import subprocess
from pathlib import Path

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.profiling.counters.attached import ANSWER_S, Attached, environment, program, why

HARDWARE = ("cycles", "instructions", "LLC-loads", "LLC-load-misses", "cache-misses", "branch-misses")
SOFTWARE = ("task-clock", "page-faults", "context-switches")
_EVENTS = ("-x", ",", "-e", ",".join((*SOFTWARE, *HARDWARE)))
_NOT_THERE = ("<not supported>", "<not counted>")
_NO_COUNTERS = "this machine exposes no hardware counters: use bare metal, or give the virtual machine a PMU"


def parsed(text: str) -> dict[str, float]:
    """Return event -> count from the output of `perf stat -x,`, without events that were not counted.

    perf has already scaled events counted for only part of the time. "task-clock" is in ms.
    """
    found = {}
    for line in text.splitlines():
        fields = line.split(",")
        if line.startswith("#") or len(fields) < 3 or fields[0] in _NOT_THERE:
            continue
        event, _, modifier = fields[2].partition(":")
        if event == "context-switches" and "u" in modifier:
            continue  # the kernel makes them, and may not be counted: 0 says nothing
        with contextlib.suppress(ValueError):
            found[event] = float(fields[0])
    return found


def granted() -> set[str]:
    """Return the events this machine can count, by trying them. Raises Unavailable if there are none."""
    words = (program(), "stat", *_EVENTS, "--", "true")
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, env=environment(), timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"perf stat took longer than {ANSWER_S:g} s") from None
    found = set(parsed(done.stderr))
    if done.returncode or not found:
        raise Unavailable(why(done.stderr))
    return found


def lacking(events: set[str]) -> str:
    """Return the reason some events are not among the granted `events`; empty if all are."""
    missing = [event for event in (*SOFTWARE, *HARDWARE) if event not in events]
    if not missing:
        return ""
    reason = _NO_COUNTERS if set(missing) >= set(HARDWARE) else "not counted here"
    return f"without {', '.join(missing)}: {reason}"


class PerfCounting(Attached[dict[str, float]]):
    """Event counts of a running process, as `parsed` returns them."""

    def __init__(self, pid: int) -> None:
        super().__init__(("stat", *_EVENTS), pid)

    def _read(self, written: Path) -> dict[str, float]:
        return parsed(written.read_text())
