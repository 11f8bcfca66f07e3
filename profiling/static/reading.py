"""Reading a candidate's libraries, behind the fence of what built them: it may have put anything there."""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from kernelbench.evaluator.channel import Channel
from kernelbench.evaluator.process import WorkerDied, WorkerTimeout
from kernelbench.evaluator.workers import WorkerPool
from profiling.catalogue import metric
from profiling.records import Metric
from profiling.static.unreadable import Unreadable
from profiling.static.x86 import Mix, functions, mixes

_MIXES = TypeAdapter(list[Mix], config=ConfigDict(allow_inf_nan=False))
_ODD = re.compile(r"[^\w.$@]")  # in the name of a function
_LONGEST_NAME, _LONGEST_PROBLEM, _MOST_KERNELS = 80, 500, 64
_TIMEOUT_S = 90.0
_MOST_LIBRARIES = 8
_COUNTED = ("divisions", "gathers", "spills", "streaming_stores", "prefetches")
_SHARES = ("packed_share", "zmm_share", "fma_share")


def static_metrics(pool: WorkerPool, candidate: str) -> tuple[Metric, ...]:
    """What the loops of a candidate's kernels consist of. `candidate`: the sha256 of one that was built.

    Raises Unreadable where there is no objdump, or it cannot read what was built.
    """
    try:
        pool.import_first([__name__])  # behind the fence it could not be read
        with pool.start("builder", f"{__name__}:serve", candidate) as worker:
            answer = worker.ask({"do": "read"}, _TIMEOUT_S)
    except (WorkerDied, WorkerTimeout) as error:
        raise Unreadable(f"reading the kernels failed: {error}") from None
    if answer.get("problem"):
        raise Unreadable(str(answer["problem"])[:_LONGEST_PROBLEM])
    try:
        found = _MIXES.validate_python(answer.get("mixes"))
    except ValidationError:
        raise Unreadable("what was read from the kernels is none of what there is to read") from None
    return tuple(each for mix in found[:_MOST_KERNELS] for each in _metrics(mix))


def _metrics(mix: Mix) -> Iterator[Metric]:
    kernel = _ODD.sub("?", mix.kernel)[:_LONGEST_NAME]
    yield metric("loops", mix.loops, kernel)
    yield metric("vector_bits", mix.vector_bits, kernel)
    for name in _SHARES:
        share = getattr(mix, name)
        if share is not None:
            yield metric(name, share, kernel)
    for name in _COUNTED:
        yield metric(name, getattr(mix, name), kernel)
    yield metric("calls_in_loops", len(mix.calls), kernel)


def serve(channel: Channel) -> None:
    """The worker's side: answers "read" with the mixes of the libraries in its build cache."""
    while True:
        channel.receive_json()
        folder = Path(os.environ["KERNELWRIGHT_CACHE"])
        libraries = sorted(folder.rglob("*.so"))[:_MOST_LIBRARIES]
        try:
            found = [mix for library in libraries for mix in mixes(functions(library))]
            problem = "" if libraries else "it has built no library"
            channel.send_json({"mixes": [asdict(mix) for mix in found], "problem": problem})
        except Unreadable as error:
            channel.send_json({"problem": str(error)})
