"""Replay of recorded calls under valgrind, which simulates the caches, in a separate program.

Python and torch would take too long in it, and torch does not run: valgrind knows no AVX-512. So the kernels
are built for x86-64-v3 (AVX2 and FMA).
"""

import bisect
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit import compiler
from kernelwright.kernelbench.jit.errors import BuildError
from kernelwright.kernelbench.jit.library import SOURCE_NAME, options_of
from kernelwright.kernelbench.jit.signature import INTEGERS, Parameter
from kernelwright.kernelbench.programs import run_to_end
from kernelwright.profiling.simulated.callgrind import Costs, costs
from kernelwright.profiling.simulated.recording import MemoryRange, RecordedCall, Scalar

ARCHITECTURE = "x86-64-v3"
_C_TYPES = {name: f"{name}_t" for name in INTEGERS} | {n: n for n in ("void", "bool", "float", "double")}
_BUILD_S = 120.0
_PAGE = 4096
_UNKNOWN_INSTRUCTION = re.compile(r"[Uu]nrecognised instruction|SIGILL")


def replay(
    calls: Sequence[RecordedCall], driver: str, caches: Sequence[str], folder: Path, limit_s: float
) -> list[Costs]:
    """Return the costs of each kernel over all calls.

    `driver`: text of driver.cpp; `caches`: valgrind's options. Raises Unavailable if the kernels do not build
    for x86-64-v3, or valgrind cannot run them.
    """
    builds = list(dict.fromkeys(call.build for call in calls))
    try:
        for number, build in enumerate(builds):
            _build_kernels(build, folder, f"kernels{number}")
        (folder / "driver.cpp").write_text(driver)
        (folder / "calls.inc").write_text("\n".join(_lines(calls, builds)))
        words = (*compiler.command(), "-O0", "-std=c++17", "driver.cpp", "-o", "driver", "-ldl")
        compiler.run(words, folder, _BUILD_S)
    except BuildError as error:
        said = next((line for line in error.stderr.splitlines() if "error" in line), error.message)
        raise Unavailable(
            f"its kernels do not build for {ARCHITECTURE}, which valgrind needs: {said}"
        ) from None
    _run(caches, folder, limit_s)
    kernels = {call.signature.name for call in calls}
    found = costs((folder / "counts").read_text(errors="replace"), caller="main")
    return [each for each in found if each.kernel in kernels]


def _build_kernels(build: Path, folder: Path, name: str) -> None:
    """Build the kernels with the candidate's options except for the instruction set. Raises BuildError."""
    shutil.copy(build / SOURCE_NAME, folder / f"{name}.cpp")
    kept = [option for option in options_of(build) if not option.startswith("-m")]
    words = (
        *compiler.command(),
        *kept,
        f"-march={ARCHITECTURE}",
        "-shared",
        f"{name}.cpp",
        "-o",
        f"{name}.so",
    )
    compiler.run(words, folder, _BUILD_S)


def _run(caches: Sequence[str], folder: Path, limit_s: float) -> None:
    """Run the driver under valgrind. Raises Unavailable."""
    tool = ("valgrind", "--tool=callgrind", "--cache-sim=yes", *caches, "--vgdb=no")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}
    words = (*tool, "--callgrind-out-file=counts", "./driver")
    try:
        status, said = run_to_end(words, folder, environment, limit_s)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the simulation took longer than {limit_s:g} s; use smaller sizes") from None
    if status:
        if _UNKNOWN_INSTRUCTION.search(said):
            raise Unavailable("its kernels use instructions that valgrind does not support, such as AVX-512")
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "no output")
        raise Unavailable(f"its kernels exited with status {status} under valgrind: {last}")


def _lines(calls: Sequence[RecordedCall], builds: Sequence[Path]) -> Iterator[str]:
    """Yield C++ statements that make the calls, on memory with the same offsets within its pages."""
    rooms = _rooms(calls)
    starts = [room.address for room in rooms]

    def place(memory: MemoryRange) -> str:
        number = max(bisect.bisect_right(starts, memory.address) - 1, 0)
        return f"(room{number} + {memory.address - starts[number] + starts[number] % _PAGE})"

    for number, room in enumerate(rooms):
        yield f"char* const room{number} = driver::room({room.size + _PAGE});"
    for number in range(len(builds)):
        yield f'void* const library{number} = driver::library("./kernels{number}.so");'
    for call in calls:
        for memory, file in call.contents:
            if memory.size:
                yield f'driver::fill({place(memory)}, "{file}", {memory.size});'
        yield _statement(call, f"library{builds.index(call.build)}", place)


def _statement(call: RecordedCall, library: str, place: Callable[[MemoryRange], str]) -> str:
    """Return the call in C++. `place`: an expression for the address of memory."""
    signature = call.signature
    arrays: list[str] = []
    passed: list[str] = []
    for parameter, argument in zip(signature.parameters, call.arguments, strict=True):
        if isinstance(argument, tuple):
            passed.append(f"a{len(arrays)}")
            arrays.append(f"void* {passed[-1]}[] = {{{', '.join(map(place, argument)) or 'nullptr'}}};")
        elif isinstance(argument, MemoryRange):
            passed.append(place(argument))
        else:
            passed.append(_literal(parameter, argument))
    types = ", ".join(_c_type(parameter) for parameter in signature.parameters)
    function = f'driver::function({library}, "{signature.name}")'
    cast = f"reinterpret_cast<{_C_TYPES[signature.returns]} (*)({types})>({function})"
    return f"{{ {' '.join(arrays)} {cast}({', '.join(passed)}); }}"


def _rooms(calls: Sequence[RecordedCall]) -> list[MemoryRange]:
    """Return pieces of memory that hold everything the calls work on; overlapping tensors share one."""
    merged: list[MemoryRange] = []
    every = {memory for call in calls for memory in call.memory}
    for memory in sorted(every, key=lambda memory: (memory.address, memory.size)):
        last = merged[-1] if merged else None
        if last is not None and memory.address < last.address + last.size:
            end = max(last.address + last.size, memory.address + memory.size)
            merged[-1] = MemoryRange(last.address, end - last.address)
        else:
            merged.append(memory)
    return merged


def _c_type(parameter: Parameter) -> str:
    return ("void*", "void**")[parameter.pointers - 1] if parameter.pointers else _C_TYPES[parameter.type]


def _literal(parameter: Parameter, value: Scalar) -> str:
    if parameter.type not in ("float", "double"):
        return f"static_cast<{_C_TYPES[parameter.type]}>({int(value) & (1 << 64) - 1}u)"
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"({float(value).hex()})"
