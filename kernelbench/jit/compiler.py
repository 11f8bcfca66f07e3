"""The C++ compiler of this machine: its command, its identity, and its runs."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.jit.errors import BuildError
from kernelwright.kernelbench.programs import run_to_end

# Each makes the compiler read or write files that no key covers.
_MEDDLING = {
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "DEPENDENCIES_OUTPUT",
    "SUNPRO_DEPENDENCIES",
}
_CPU_FIELDS = re.compile(
    "vendor_id|cpu family|model|model name|stepping|flags|"
    "Features|CPU (implementer|architecture|variant|part)"
)
_DIAGNOSTICS = ("-fdiagnostics-color=never", "-fmax-errors=10")


def command() -> tuple[str, ...]:
    """Return the words that start the compiler: CXX, or g++. Raises MissingPrerequisite if there is none."""
    words = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    found = shutil.which(words[0])
    if found is None:
        raise MissingPrerequisite(
            f"no C++ compiler: {words[0]} is not on PATH",
            "install g++ (Debian/Ubuntu: apt-get install g++) or set CXX",
        )
    return (found, *words[1:])


def identity(words: tuple[str, ...]) -> str:
    """Return what a build depends on besides source and flags: the compiler and, for -march=native, the CPU.

    Read from files, so that a process that may not start others can still find a finished build.
    """
    binary = Path(words[0]).resolve()
    status = binary.stat()
    return f"{' '.join(words)}\n{binary} {status.st_size} {status.st_mtime_ns}\n{_cpu()}"


@cache
def _cpu() -> str:
    fields: list[str] = []
    with Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            if not line.strip():
                break  # the cores that follow are the same
            name, _, value = line.partition(":")
            if _CPU_FIELDS.fullmatch(name.strip()):
                fields.append(f"{name.strip()}={value.strip()}")
    return "\n".join((os.uname().machine, *fields))


def run(words: Sequence[str], folder: Path, timeout_s: float) -> None:
    """Run the compiler in `folder`, temporary files included. Raises BuildError, as `output_of` does."""
    output_of((*words, *_DIAGNOSTICS), folder, timeout_s)


def output_of(words: Sequence[str], folder: Path, timeout_s: float) -> str:
    """Run a program of the compiler in `folder` and return its output.

    Raises BuildError if it fails or takes longer than `timeout_s`, not counting the time that this process
    was stopped; its whole process group is then killed.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _MEDDLING}
    environment |= {"LC_ALL": "C", "TMPDIR": str(folder)}
    try:
        status, text = run_to_end(list(words), folder, environment, timeout_s)
    except subprocess.TimeoutExpired:
        raise BuildError(f"the compiler took longer than {timeout_s:g} s and was stopped") from None
    except FileNotFoundError:
        raise BuildError(f"{words[0]} is not installed; it comes with the compiler's binutils") from None
    if status:
        raise BuildError(f"{Path(words[0]).name} failed (exit status {status})", text)
    return text
