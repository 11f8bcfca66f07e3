"""Programs that are run to their end, or to a deadline."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_LOOK_EVERY_S = 0.25


class Awake:
    """A clock for deadlines that pauses while this process is stopped, by a signal or a control group.

    Ask it often: of the time between two questions at most a second counts.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return the seconds since it was created."""
        now = time.monotonic()
        self._seconds += min(now - self._last, 4 * _LOOK_EVERY_S)
        self._last = now
        return self._seconds


def run_to_end(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout_s: float | None,
    pass_fds: Sequence[int] = (),
) -> tuple[int, str]:
    """Run a program without input; return its exit status and its output, errors included.

    It has its own process group, which is killed as a whole if it is not done in time, or the caller is
    interrupted. Time in which the caller was stopped does not count. Raises subprocess.TimeoutExpired.
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
    awake, said = Awake(), None
    try:
        while said is None:
            left = None if timeout_s is None else timeout_s - awake.seconds()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(words, timeout_s or 0.0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                said, _ = process.communicate(timeout=None if left is None else min(left, _LOOK_EVERY_S))
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, said.decode(errors="replace")
