"""Precompiled headers that all builders share, made by a process that holds no candidate."""

import contextlib
import json
import os
import stat
from pathlib import Path

from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.evaluator.processes.worker_handle import WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.jit.precompiled import TIMEOUT_S, WISH

_LONGEST_WISH = 1 << 16  # bytes
_MEMORY_BYTES = (
    4 << 30
)  # of g++ with torch's headers, of which 2 GiB are too few; whatever candidates may have


def make_wanted_header(pool: WorkerPool, builds: Path) -> bool:
    """Make the header that a builder, which has ended, found missing; whether its build may go on then.

    Without torch's it cannot; without standard ones it took longer, and the next one has them.
    """
    wish = builds / WISH
    wanted = _read(wish)
    if wanted is None:
        return False
    try:
        with pool.start(
            "toolchain",
            "kernelwright.kernelbench.evaluator.processes.toolchain:serve",
            memory_bytes=max(pool.limits.memory_bytes, _MEMORY_BYTES),
        ) as worker:
            made = bool(worker.ask({"do": "header", **wanted}, TIMEOUT_S + 20).get("ok"))
            return made and not wanted["standard"]
    except (WorkerDied, WorkerTimeout):
        return False
    finally:  # afterwards: another slot may build the same candidate, and wait for the same header
        with contextlib.suppress(OSError):  # it may have made its folder read-only
            wish.unlink()


def _read(wish: Path) -> dict[str, list[str]] | None:
    """Contents of a request that a candidate may have written: no link, no pipe, nothing long; else None."""
    try:
        descriptor = os.open(wish, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        wanted = json.loads(os.read(descriptor, _LONGEST_WISH))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    if not isinstance(wanted, dict) or set(wanted) != {"flags", "standard"}:
        return None
    lists = all(isinstance(words, list) for words in wanted.values())
    return wanted if lists and all(isinstance(w, str) for words in wanted.values() for w in words) else None


def serve(channel: Channel) -> None:
    """Serve as the trusted process: build headers in its cache; flags outside the allowlist are refused."""
    from kernelwright.kernelbench.jit import BuildError, inline, library
    from kernelwright.kernelbench.jit.cache import BuildCache

    while True:
        message, _ = channel.receive_json()
        try:
            if message["standard"]:
                library.make_header(message["standard"], message["flags"], BuildCache())
            else:
                inline.make_header(message["flags"], BuildCache())
            channel.send_json({"ok": True})
        except BuildError as error:
            channel.send_json({"ok": False, "error": str(error)})
