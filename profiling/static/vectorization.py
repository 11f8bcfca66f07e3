"""Loops that g++ has vectorized, those it has not, and why: its own record of each build.

The source is compiled once more with the same options and -fsave-optimization-record, in the sandbox of its
builder.
https://gcc.gnu.org/onlinedocs/gcc/Developer-Options.html
"""

import gzip
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from kernelwright.kernelbench.errors import MissingPrerequisite, Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import ask_builder, kernel_name, plain, validated
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.jit import compiler
from kernelwright.kernelbench.jit.errors import BuildError
from kernelwright.kernelbench.jit.library import FLAGS_NAME, SOURCE_NAME, options_of
from kernelwright.kernelbench.machine import compiler as compiler_in_words
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Metric, Remark
from kernelwright.profiling.rung import Reading, Subject
from kernelwright.profiling.static.gcc_record import SourceLoop, parsed

_TIMEOUT_S = 120.0
_MOST_SOURCES, _MOST_LOOPS = 8, 400
_LONGEST_CODE, _LONGEST_REASON = 100, 200
_LOOPS = TypeAdapter(list[SourceLoop], config=ConfigDict(allow_inf_nan=False))


class Vectorization:
    """Vectorized and missed loops of C++ kernels, by g++'s own record."""

    name = "vectorization"

    def available(self) -> str:
        found = compiler_in_words()
        if found is None:
            raise Unavailable("install g++ (Debian, Ubuntu: apt-get install g++) or set CXX")
        if "clang" in found:
            raise Unavailable(f"only GCC writes the record, not {found}: install g++, or set CXX to it")
        return f"vectorized loops, and the reasons for the others, by {found}"

    def read(self, subject: Subject) -> Reading:
        if not subject.on_cpu:
            raise Unavailable("only for candidates on a CPU")
        self.available()
        answer = ask_builder(subject.evaluator.sessions.pool, __name__, subject.candidate.sha256, _TIMEOUT_S)
        found = validated(_LOOPS, answer.get("loops"), "its loops")[:_MOST_LOOPS]
        return Reading(tuple(_metrics(found)), "g++'s own record of its loops", tuple(_remarks(found)))


def _metrics(found: Sequence[SourceLoop]) -> Iterator[Metric]:
    for kernel in dict.fromkeys(loop.kernel for loop in found):
        widths = [loop.vector_bytes for loop in found if loop.kernel == kernel]
        yield metric("loops_vectorized", sum(width > 0 for width in widths), kernel)
        yield metric("loops_missed", sum(width == 0 for width in widths), kernel)


def _remarks(found: Sequence[SourceLoop]) -> Iterator[Remark]:
    for loop in found:
        if not loop.vector_bytes:
            yield Remark(
                kernel=kernel_name(loop.kernel),
                line=loop.line,
                code=plain(loop.code, _LONGEST_CODE),
                text=plain(loop.reason, _LONGEST_REASON),
                provenance="static",
            )


def serve(channel: Channel) -> None:
    """Serve in the worker: answer any message with the loops of the sources in its build cache."""
    while True:
        channel.receive_json()
        entries = sorted(path.parent for path in Path(os.environ["KERNELWRIGHT_CACHE"]).rglob(FLAGS_NAME))
        try:
            found = [loop for entry in entries[:_MOST_SOURCES] for loop in _loops(entry)]
            problem = "" if entries else "the candidate has built no source with compile_cpp"
            channel.send_json({"loops": [asdict(loop) for loop in found[:_MOST_LOOPS]], "problem": problem})
        except (Unavailable, BuildError, MissingPrerequisite, OSError, ValueError) as error:
            channel.send_json({"problem": str(error)})


def _loops(entry: Path) -> list[SourceLoop]:
    """Return the loops of the source in a folder of a build cache.

    Raises Unavailable, BuildError, MissingPrerequisite.
    """
    source = (entry / SOURCE_NAME).read_text(errors="replace")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / SOURCE_NAME).write_text(source)
        words = (*compiler.command(), *options_of(entry), "-fsave-optimization-record")
        compiler.run((*words, "-S", SOURCE_NAME, "-o", "kernel.s"), folder, _TIMEOUT_S)
        record = next(folder.glob("*.opt-record.json.gz"), None)
        if record is None:
            raise Unavailable(f"{words[0]} writes no optimization record; set CXX to GCC 9 or newer")
        return list(parsed(gzip.decompress(record.read_bytes()).decode(errors="replace"), source))
