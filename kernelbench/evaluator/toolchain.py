"""What all builders share, made by a process that holds no candidate: `load_inline`'s precompiled headers."""

import contextlib
import json
import os
import stat
from pathlib import Path

from kernelbench.evaluator.channel import Channel
from kernelbench.evaluator.process import WorkerDied, WorkerTimeout
from kernelbench.evaluator.workers import WorkerPool
from kernelbench.jit.precompiled import TIMEOUT_S, WISH

_LONGEST_WISH = 1 << 16  # bytes


def make_wanted_header(pool: WorkerPool, builds: Path) -> bool:
    """Make the header that a builder, which has ended, found missing; False where there is no such wish."""
    wish = builds / WISH
    flags = _read(wish)
    if flags is None:
        return False
    try:
        with pool.start("toolchain", "kernelbench.evaluator.toolchain:serve") as worker:
            return bool(worker.ask({"do": "header", "flags": flags}, TIMEOUT_S + 20).get("ok"))
    except (WorkerDied, WorkerTimeout):
        return False
    finally:  # afterwards: another lane may build the same candidate, and wait for the same header
        with contextlib.suppress(OSError):  # it may have made its folder read-only
            wish.unlink()


def _read(wish: Path) -> list[str] | None:
    """The flags in a file that a candidate may have put there: no link, no pipe, no tome."""
    try:
        descriptor = os.open(wish, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        flags = json.loads(os.read(descriptor, _LONGEST_WISH))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    return flags if isinstance(flags, list) and all(isinstance(flag, str) for flag in flags) else None


def serve(channel: Channel) -> None:
    """Of the trusted process: makes headers in its build cache; flags outside the allowlist are refused."""
    from kernelbench.jit import BuildError, inline
    from kernelbench.jit.cache import BuildCache

    while True:
        message, _ = channel.receive_json()
        try:
            inline.make_header(message["flags"], BuildCache())
            channel.send_json({"ok": True})
        except BuildError as error:
            channel.send_json({"ok": False, "error": str(error)})
