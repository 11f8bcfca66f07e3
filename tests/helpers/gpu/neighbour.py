"""Another process on the tests' own GPU, which holds memory there or keeps it busy."""

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.gpu.fake_driver import ROOT, library

WORK_S, AHEAD_S = 0.01, 0.03  # of one kernel, and of the kernels that it has launched ahead


@contextlib.contextmanager
def neighbour(folder: Path, held_bytes: int = 0, busy: bool = False) -> Iterator[None]:
    """Have another process use the device whose page lies in `folder`, in the block."""
    environment = {**os.environ, "FAKE_CUDA_PAGE": str(folder / "page"), "FAKE_CUDA": str(library())}
    words = [sys.executable, "-m", "tests.helpers.gpu.neighbour", str(held_bytes), str(int(busy))]
    process = subprocess.Popen(words, env=environment, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.wait()


def main(held_bytes: int, busy: bool) -> None:
    driver = ctypes.CDLL(os.environ["FAKE_CUDA"])
    address = ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    assert not held_bytes or driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(held_bytes)) == 0
    print("ready", flush=True)
    until = time.monotonic()
    while True:
        if busy:
            driver.fake_work(ctypes.c_int64(int(1e9 * WORK_S)))
        until += WORK_S
        time.sleep(max(0.0, until - AHEAD_S - time.monotonic()))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1")
