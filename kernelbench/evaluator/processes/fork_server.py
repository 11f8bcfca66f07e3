"""Fork server: the process that all workers are forked from, which has imported torch and holds no secret.

A worker starts in milliseconds instead of the seconds that importing torch takes. Each request starts three
processes: one that enters new namespaces, the worker's `init` (first process of its PID namespace, or a
subreaper without one), which every descendant belongs to and whose end ends them all, and the worker itself,
which calls the entry function named in the request.

Run as `python -m kernelwright.kernelbench.evaluator.processes.fork_server FD DEVICE`, with FD the referee's
socket.
"""

import contextlib
import ctypes
import functools
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.evaluator.processes.channel import Channel, ChannelClosed
from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.evaluator.sandbox import process_tree

# Threads of numpy's BLAS would not survive the fork; torch's OpenMP pool starts on first use, after it.
_PRELOAD = (
    "numpy",
    "torch",
    "kernelwright.jit",
    "kernelwright.kernelbench.jit.device",
    "kernelwright.kernelbench.emulate.launching",
    "kernelwright.kernelbench.evaluator.processes.worker",
    "kernelwright.kernelbench.evaluator.correctness.oracle",
)


def keep_freed_memory() -> None:
    """Tell glibc's malloc to reuse freed memory instead of giving it back to the system.

    Otherwise every large output costs its page faults again: on the development machine a 64 MB
    ReLU takes 24 ms, of which 18 are page faults. Baselines and candidates get the same allocator.
    """
    mmap_max, trim_threshold, arena_max = -4, -1, -8
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, -1)
        mallopt(arena_max, 1)


def serve(channel: Channel, device: str) -> None:
    keep_freed_memory()
    _preload(device)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the first of the three is reaped by the kernel
    channel.send_json({"ready": True})
    while True:
        try:
            request, fds = channel.receive_json()
        except ChannelClosed:
            # A referee that was killed left its workers stopped: then this process ends by the alarm, and
            # they die with it.
            signal.alarm(2)
            with contextlib.suppress(ChildProcessError):
                os.wait()  # ignoring SIGCHLD, it returns when the last child is gone
            return
        if "import" in request:
            _import(request["import"])
            channel.send_json({"ready": True})
            continue
        child = os.fork()
        if child == 0:
            channel.close()
            try:
                _start(request, fds)
            except BaseException:  # noqa: BLE001 - the referee sees that its worker has ended
                traceback.print_exc()
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)


def _preload(device: str) -> None:
    """Import what workers need, and what torch imports on first use: its compiler, in older releases."""
    _import(_PRELOAD)
    import torch

    look_up_gpus_elsewhere()
    take_old_imports()
    from kernelwright.kernelbench.evaluator.processes.own_kernels import own_kernel_share
    from kernelwright.kernelbench.jit import inline

    own_kernel_share(lambda: torch.zeros(2) + 1)
    inline.install()
    if device != "cpu":
        from kernelwright.kernelbench.evaluator.memory.worker_memory import heap_library

        heap_library()


def take_old_imports() -> None:
    """Make `from kernelbench import jit`, the former name, import kernelwright's own."""
    from kernelwright import jit, kernelbench

    sys.modules |= {"kernelbench": kernelbench, "kernelbench.jit": jit}


def look_up_gpus_elsewhere() -> None:
    """Query NVML for GPUs in a process that ends, once, and give torch its answer.

    NVML starts a thread, which forked workers would lack. torch asks whenever it, or Triton, imports
    something that looks for a GPU.
    """
    import torch

    for name, unknown in (("_raw_device_count_nvml", -1), ("_raw_device_uuid_nvml", None)):
        look_up = functools.partial(_elsewhere, getattr(torch.cuda, name), unknown)
        setattr(torch.cuda, name, functools.cache(look_up))


def _elsewhere(call: Callable[[], object], default: object) -> Any:
    """Return the result of `call` in a forked process, if JSON can hold it; `default` where it fails."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writer, json.dumps(call()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    with contextlib.suppress(ChildProcessError):  # the kernel may have reaped it
        os.waitpid(child, 0)
    return json.loads(answer) if answer else default


def _import(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)
    threads = [comm.read_text().strip() for comm in Path("/proc/self/task").glob("*/comm")]
    assert len(threads) == 1, f"threads do not survive a fork: {', '.join(threads)}"


def _start(request: dict[str, Any], fds: list[int]) -> None:
    """Run in the first child: `fds` are the worker's socket, its stderr and the status pipe."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sandbox.die_with_parent()
    os.setsid()
    sock_fd, stderr_fd, status_fd = fds
    spec = sandbox.SandboxSpec(**request["sandbox"])
    sandbox.join_groups(spec.entrances)
    sandbox.unshare_namespaces(spec.layers)
    fenced_r, fenced_w = os.pipe()
    init = os.fork()
    if init != 0:
        os.close(sock_fd)
        os.close(fenced_w)
        if os.read(fenced_r, 1):  # else there is no worker, which is not the candidate's doing
            os.write(status_fd, f"{init}\n".encode())
        os.waitpid(init, 0)
        os._exit(0)
    os.close(fenced_r)
    sandbox.die_with_parent()
    sandbox.become_subreaper()
    if "mount_namespace" in spec.layers:
        sandbox.mount(spec)
    os.write(fenced_w, b".")
    os.close(fenced_w)
    worker = os.fork()
    if worker != 0:
        os.close(sock_fd)
        os._exit(_reap(worker, status_fd))
    os.close(status_fd)
    sandbox.die_with_parent()
    _run(request["entry"], spec, sock_fd, stderr_fd)


def _reap(worker: int, status_fd: int) -> int:
    """Run as init: wait for the worker among all orphans, end what it left, report its wait status."""
    while True:
        pid, status = os.wait()
        if pid == worker:
            if os.getpid() != 1:  # as the first of a PID namespace it takes all with it anyway
                process_tree.kill_descendants()
            with contextlib.suppress(BrokenPipeError):  # the referee is gone
                os.write(status_fd, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            return 0


def _run(entry: str, spec: sandbox.SandboxSpec, sock_fd: int, stderr_fd: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(stderr_fd, 1)
    os.dup2(stderr_fd, 2)
    os.close(stderr_fd)
    code = 1
    try:
        sandbox.apply(spec)
        module, function = entry.split(":")
        target: Callable[[Channel], None] = getattr(importlib.import_module(module), function)
        target(Channel(socket.socket(fileno=sock_fd)))
        code = 0
    except ChannelClosed:
        code = 0
    except BaseException:  # noqa: BLE001 - the last frame of the process: print and leave
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(Channel(socket.socket(fileno=int(sys.argv[1]))), sys.argv[2])
    os._exit(0)  # tidying torch away takes half a second
