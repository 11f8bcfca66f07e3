"""Samples of a running process at equal steps of its CPU time, by `perf record`.

https://man7.org/linux/man-pages/man1/perf-script.1.html
"""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.programs import run_to_end
from kernelwright.profiling.counters.attached import ANSWER_S, Attached, environment, program

SYSTEM = "[system]"
_SAMPLES = (
    *(
        "--no-buildid",
        "--no-buildid-cache",
        "--no-bpf-event",
    ),  # to look at BPF programs takes 0.4 s at the end
    *("-e", "cpu-clock", "-F", "1999"),  # samples a second, of each thread
)
_MAPPED = re.compile(
    r"PERF_RECORD_MMAP2? .*\[(?P<first>0x[\da-f]+)\((?P<size>0x[\da-f]+)\) @ (?P<offset>[\da-fx]+)\b.*\]: "
    r"\S{4} (?P<path>.*)$"
)
_ADDRESS = re.compile(r"[\da-f]{1,16}")


@dataclass(frozen=True)
class SourceLine:
    """Location of an instruction: a file and an offset in it, or SYSTEM; anonymous maps have no file."""

    path: str
    offset: int  # bytes from its beginning


class PerfSampling(Attached[dict[SourceLine, int]]):
    """Number of samples by source location."""

    def __init__(self, pid: int) -> None:
        super().__init__(("record", *_SAMPLES), pid)

    def _read(self, written: Path) -> dict[SourceLine, int]:
        """Locate the samples without letting perf read the libraries, which the candidate may have crafted.

        perf would also read the symbols of every library whether asked to or not: 3 s with torch's.
        """
        nowhere = written.parent / "nowhere"
        nowhere.mkdir()
        words = [program(), "script", "-i", str(written), "--symfs", str(nowhere)]
        words += ["-F", "ip", "--show-mmap-events"]
        try:
            _, said = run_to_end(words, written.parent, environment(), ANSWER_S)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"perf script took longer than {ANSWER_S:g} s") from None
        return located(said)


def located(text: str) -> dict[SourceLine, int]:
    """Return the samples by location from the output of `perf script -F ip --show-mmap-events`."""
    maps: list[tuple[int, int, int, str]] = []  # first and last address, offset in the file, path
    found: Counter[SourceLine] = Counter()
    for line in text.splitlines():
        if (mapped := _MAPPED.search(line)) is not None:
            first, size, offset = (int(mapped[name], 16) for name in ("first", "size", "offset"))
            maps.append((first, first + size, offset, mapped["path"]))
        elif _ADDRESS.fullmatch(line.strip()):
            found[_place(int(line, 16), maps)] += 1
    return dict(found)


def _place(address: int, maps: list[tuple[int, int, int, str]]) -> SourceLine:
    if address >> 63:  # of x86-64 and arm64
        return SourceLine(SYSTEM, 0)
    of = (each for each in reversed(maps) if each[0] <= address < each[1])  # the last that was mapped there
    first, _, offset, path = next(of, (address, address, 0, ""))
    return SourceLine(path, address - first + offset)
