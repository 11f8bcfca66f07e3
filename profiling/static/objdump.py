"""objdump's output for a library."""

import subprocess
from pathlib import Path

from kernelwright.kernelbench.errors import Unavailable

MISSING = "install binutils (Debian, Ubuntu: apt-get install binutils), for objdump"
_TIMEOUT_S = 60.0


def output_of(library: Path, *options: str) -> str:
    """Run objdump. Raises Unavailable if it is missing, takes too long, or cannot read the library."""
    words = ["objdump", *options, "--", str(library)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise Unavailable(MISSING) from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"objdump took longer than {_TIMEOUT_S:g} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Unavailable(f"objdump: {last[-1]}")
    return done.stdout
