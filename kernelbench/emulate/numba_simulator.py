"""numba.cuda in its own simulator, where there is no GPU: with torch's tensors, in order, its launches noted.

The simulator has a Python thread for each of a block's, all running at once, which takes a millisecond a
thread. Here they take turns, each up to the next barrier, in another random order after each barrier: a
missing barrier shows, and a thread that meets none costs microseconds.
"""

import importlib
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kernelwright.kernelbench.emulate import history
from kernelwright.kernelbench.emulate.findings import RETURNED, Dim, KernelFault, KernelFinding, Unsupported

_ENDED: dict[int, bool] = {}
_BLOCKING = ("sync", "this_grid")  # names of what makes a thread wait for others begin so


def simulate() -> None:
    """Have numba.cuda's kernels simulated from now on; nothing is changed without it."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before it is imported
    try:
        cuda: Any = importlib.import_module("numba.cuda")
        kernels: Any = importlib.import_module("numba.cuda.simulator.kernel")
        arrays: Any = importlib.import_module("numba.cuda.simulator.cudadrv.devicearray")
    except ImportError:
        return
    function = kernels.FakeCUDAKernel
    if hasattr(function, "kernelwright"):
        return
    call = function.__call__

    def noted(kernel: Any, *arguments: Any) -> Any:
        if kernel._device or kernels._get_kernel_context():
            return call(kernel, *arguments)
        name = kernel.fn.__name__
        with history.watched():
            try:
                call(kernel, *(_array(each) for each in arguments))
            except Exception as error:
                raise _said(name, error) from error
        history.has_run(name)
        return None

    function.kernelwright, function.__call__ = True, noted
    kernels.BlockManager.run = _run
    cuda.as_cuda_array = lambda tensor, sync=True: arrays.FakeCUDAArray(_array(tensor))


def _array(argument: Any) -> Any:
    """Return a tensor's memory as numpy's array, which the simulator takes; anything else as it is."""
    if not isinstance(argument, torch.Tensor):
        return argument
    try:
        return argument.numpy()
    except TypeError as error:  # bf16
        raise Unsupported(f"{argument.dtype} in numba's simulator ({error})") from None


def _said(kernel: str, error: Exception) -> Exception:
    """Return an error of a kernel in terms of the evaluator's."""
    if isinstance(error, IndexError) and "out of bounds" in str(error):
        place: Dim = (0, 0, 0)  # its words have it
        finding = KernelFinding("out_of_bounds", f"Invalid access by {error}.", 0, place, place, 1)
        return KernelFault(kernel, (finding,))
    if isinstance(error, AttributeError) and ("FakeCUDA" in str(error) or "numba.cuda" in str(error)):
        return Unsupported(f"what numba's simulator lacks ({error})")
    return error


class _Thread(threading.Thread):
    """A thread of a block, which runs when it is its turn, up to a barrier."""

    def __init__(self, place: Any, work: Callable[[], object], votes: dict[int, bool]) -> None:
        super().__init__(daemon=True)
        self.threadIdx, self.blockIdx, self.thread_id = place
        self.work = work
        self.turn, self.over = threading.Semaphore(0), threading.Semaphore(0)
        self.done = False
        self.error: Exception | None = None
        self.votes = votes

    def run(self) -> None:
        self.turn.acquire()
        try:
            self.work()
        except SystemExit:  # ended while it waited
            return
        except Exception as error:  # noqa: BLE001 - the kernel's, for whoever launched it
            self.error = error
        self.done = True
        self.over.release()

    def syncthreads(self) -> None:
        self.over.release()
        self.turn.acquire()
        if self.votes is _ENDED:
            raise SystemExit

    def syncthreads_count(self, value: Any) -> int:
        self.votes[self.thread_id] = bool(value)
        self.syncthreads()
        count = sum(self.votes.values())
        self.syncthreads()
        return count

    def syncthreads_and(self, value: Any) -> int:
        return int(self.syncthreads_count(not value) == 0)

    def syncthreads_or(self, value: Any) -> int:
        return int(self.syncthreads_count(value) > 0)

    def end(self) -> None:
        """End a thread that waits."""
        self.votes = _ENDED
        self.turn.release()


def _run(manager: Any, block: tuple[int, ...], *arguments: Any) -> None:
    """Run the threads of a block. Raises what one of them does, and KernelFault if a barrier is not met."""
    kernel = manager._f
    dim3: Any = importlib.import_module("numba.cuda.simulator.kernelapi").Dim3
    sizes = tuple(manager._block_dim)
    points = list(np.ndindex(*sizes))
    order = random.Random(0)
    order.shuffle(points)

    def place(point: tuple[int, ...]) -> tuple[Any, Any, int]:
        number = point[0] + sizes[0] * (point[1] + sizes[1] * point[2])
        return dim3(*point), dim3(*block), number

    if not _blocks(kernel):
        current: Any = threading.current_thread()
        for point in points:
            current.threadIdx, current.blockIdx, current.thread_id = place(point)
            try:
                kernel(*arguments)
            except Exception as error:
                raise _placed(error, point, block) from error
        return
    votes: dict[int, bool] = {}
    threads = {point: _Thread(place(point), lambda: kernel(*arguments), votes) for point in points}
    for thread in threads.values():
        thread.start()
    try:
        _in_turns(kernel.__name__, block, threads, order)
    finally:
        for thread in threads.values():
            thread.end()


def _in_turns(name: str, block: Any, threads: dict[Any, _Thread], order: random.Random) -> None:
    waiting = list(threads)
    while waiting:
        for point in waiting:
            thread = threads[point]
            thread.turn.release()
            thread.over.acquire()
            if thread.error is not None:
                raise _placed(thread.error, point, block) from thread.error
        left = [point for point in waiting if not threads[point].done]
        if left and len(left) < len(waiting):
            other = next(point for point in waiting if threads[point].done)
            says = f"Barrier error: thread {left[0]} in block {block} waits, thread {other} {RETURNED}."
            raise KernelFault(name, (KernelFinding("divergent_barrier", says, 0, left[0], block, 1),))
        order.shuffle(left)
        waiting = left


def _placed(error: Exception, thread: tuple[int, ...], block: tuple[int, ...]) -> Exception:
    """Return a kernel's error with the place of its thread."""
    return type(error)(f"thread {thread} in block {block}: {error}")


def _blocks(function: Any, known: frozenset[Any] = frozenset()) -> bool:
    """Return True if a kernel, or a function that it calls, may wait for other threads."""
    code = function.__code__
    if any(name.startswith(_BLOCKING) for name in code.co_names):
        return True
    called = (function.__globals__.get(name) for name in code.co_names)
    inner = [getattr(each, "fn", None) for each in called]
    known |= {function}
    return any(_blocks(each, known) for each in inner if hasattr(each, "__code__") and each not in known)
