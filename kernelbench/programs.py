"""Programs that are run to their end, or to ours."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_to_end(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout_s: float | None,
    pass_fds: Sequence[int] = (),
) -> tuple[int, str]:
    """Exit status of a program that has no input, and what it printed, errors and all.

    It has a process group of its own, which is killed whole where it is not done in time, or the caller is
    interrupted. Raises subprocess.TimeoutExpired.
    """
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, said.decode(errors="replace")
