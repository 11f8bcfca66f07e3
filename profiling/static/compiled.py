"""GPU kernels that a candidate has built, read from the machine code in its build cache.

Triton and compile_cuda leave cubins there, load_inline libraries that hold some. They are read inside the
sandbox of a builder, since the candidate may have put anything there.
"""

import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from kernelwright.kernelbench.chips import sass
from kernelwright.kernelbench.chips.occupancy import MOST_REGISTERS
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import Count, ask_builder, validated
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.profiling.gpu.kernels import base_name

_TIMEOUT_S = 60.0
_MOST_FILES, _MOST_KERNELS = 256, 256  # an autotuned kernel has a cubin for each of its configurations


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel of a cubin. Shared memory is as declared; a launch may add to it."""

    name: str  # without its type, namespaces and template arguments
    registers: Annotated[int, Field(ge=0, le=MOST_REGISTERS)]
    stack_bytes: Count
    shared_bytes: Count
    loops: Count  # innermost ones, which `mix` is of
    mix: sass.SassMix
    whole: sass.SassMix


_KERNELS = TypeAdapter(list[CompiledKernel], config=ConfigDict(allow_inf_nan=False))


def compiled(pool: WorkerPool, candidate: str, wanted: Collection[str]) -> list[CompiledKernel]:
    """Return the kernels of these names in the build cache of a candidate, of which there may be several.

    `candidate`: its sha256. Raises Unavailable.
    """
    answer = ask_builder(pool, __name__, candidate, _TIMEOUT_S, {"names": sorted(wanted)})
    return validated(_KERNELS, answer.get("kernels"), "its machine code")


def serve(channel: Channel) -> None:
    """Serve in the worker: answer every message with the kernels of its "names" in the build cache."""
    while True:
        message, _ = channel.receive_json()
        try:
            found = [asdict(kernel) for kernel in _read(frozenset(message["names"]))]
            answer: dict[str, Any] = {"kernels": found[:_MOST_KERNELS]}
        except Unavailable as error:
            answer = {"problem": str(error)}
        channel.send_json(answer)


def _read(names: frozenset[str]) -> Iterator[CompiledKernel]:
    """Yield the kernels that can be read. Raises Unavailable if none can be, though there are some."""
    found, problem = False, None
    for cubin in _cubins(Path(os.environ["KERNELWRIGHT_CACHE"])):
        if not any(name.encode() in cubin for name in names):
            continue
        try:
            kernels = sass.kernels(cubin)
        except Unavailable as error:
            problem = error
            continue
        for kernel in kernels:
            found = True
            if (name := base_name(kernel.name)) in names:
                yield CompiledKernel(
                    name=name,
                    registers=kernel.registers,
                    stack_bytes=kernel.stack_bytes,
                    shared_bytes=kernel.shared_bytes,
                    loops=len(kernel.innermost_loops()),
                    mix=sass.mix(kernel),
                    whole=sass.whole(kernel),
                )
    if problem is not None and not found:
        raise problem


def _cubins(folder: Path) -> Iterator[bytes]:
    for file in sorted(folder.rglob("*.cubin"))[:_MOST_FILES]:
        yield file.read_bytes()
    for library in sorted(folder.rglob("*.so"))[:_MOST_FILES]:
        if b".nv_fatbin" in library.read_bytes():
            yield from _inside(library)


def _inside(library: Path) -> Iterator[bytes]:
    """Yield the cubins of a library that nvcc has linked. Raises Unavailable if cuobjdump is missing."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sass.tool("cuobjdump"), "--extract-elf", "all", str(library.absolute())]
        try:
            subprocess.run(words, cwd=folder, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"cuobjdump took longer than {_TIMEOUT_S:g} s") from None
        for file in sorted(Path(folder).glob("*.cubin"))[:_MOST_FILES]:
            yield file.read_bytes()
