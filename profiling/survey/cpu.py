"""Ceilings of a CPU: compiled loops, and torch's matrix products on the same threads."""

import ctypes
import os
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.evaluator.timing.products import Product, product_of
from kernelwright.profiling.survey.products import Rate, best_flops_s
from kernelwright.profiling.survey.records import Kind

_FLAGS = ("-mprefer-vector-width=512",)
_BLOCK_BYTES = 256  # as in loops.cpp
_SWEPT_BYTES = 32 << 20  # by each thread in a trial: short, so that some are not interrupted
_SOME_S, _FEWEST = 0.03, 5  # of trials for one number at least
_MOST_S, _ALIKE = 0.3, 0.03  # until it is over, or the two best are that near to each other
_PAUSE_S = 0.004  # at most: about as long as a program keeps a CPU while others want it
_ARRAYS: dict[Kind, int] = {"copy": 2, "read": 1, "triad": 3}
_PAGE_BYTES = 4096
_SKEW_BYTES = 5 * _BLOCK_BYTES  # arrays a power of two apart would share sets of the caches
_STEPS = 20_000  # of the chains in a trial
_CALLS, _CONTENDED = 1000, 200
_SIZES = (256, 512, 1024, 1536, 4096)  # of matrices
_EXECUTED = re.compile(r"^onednn_verbose,v\d+,primitive,exec,cpu,(\w+),([^,]*),", re.MULTILINE)
_INSTRUCTIONS = {"bf16": "vdpbf16ps", "int8": "vpdpbusd"}


class CpuBench:
    def __init__(self) -> None:
        self._loops = jit.compile_cpp((Path(__file__).parent / "loops.cpp").read_text(), flags=_FLAGS)

    def bandwidth(self, kind: Kind, working_set_bytes: int, streaming: bool) -> float:
        """Return bytes/s; the arrays together take `working_set_bytes`."""
        blocks = working_set_bytes // _ARRAYS[kind] // _BLOCK_BYTES
        arrays = [_array(blocks, number) for number in range(_ARRAYS[kind])]
        for array in arrays:
            self._loops.fill(array, blocks)  # each thread has its share nearby
        loop = getattr(self._loops, kind)
        stores = () if kind == "read" else (streaming,)
        moved = _ARRAYS[kind] * blocks * _BLOCK_BYTES
        passes = max(1, _SWEPT_BYTES * torch.get_num_threads() // moved)
        return _best(lambda: loop(*arrays, blocks, passes, *stores), max)

    def matmul(self, precision: str) -> Rate:
        here = torch.device("cpu")
        product = product_of(precision, here)
        return Rate(best_flops_s(product, _SIZES, here), _path(precision, product))

    def vector_units(self, precision: str) -> Rate | None:
        """Return the peak of the vector units; None if the CPU has no instructions for this precision."""
        loop = getattr(self._loops, precision)
        found = _best(lambda: loop(_STEPS, 1 if precision == "int8" else 0.5), max)
        bits = self._loops.vector_bits()
        path = f"{_INSTRUCTIONS.get(precision, 'fused multiply-add')}, {bits} bits"
        return Rate(found, path) if found else None

    def overhead(self, name: str) -> float | None:
        """Return the overhead in seconds; None if it could not be measured."""
        return _OVERHEADS[name](self._loops)


def _array(blocks: int, number: int) -> torch.Tensor:
    """Return an aligned array of `blocks` blocks of floats, skewed against arrays of other numbers."""
    count, skew = blocks * _BLOCK_BYTES // 4, number * _SKEW_BYTES // 4
    whole = torch.empty(count + skew + _PAGE_BYTES // 4)
    start = -whole.data_ptr() % _PAGE_BYTES // 4 + skew
    return whole[start : start + count]


def _best(call: Callable[[], float], best: Callable[[Sequence[float]], float]) -> float:
    """Return the highest or lowest of several trials; `best`: max or min.

    Trials below 0, in which threads did not work together, count only if there are no others. Threads may
    keep missing each other from trial to trial, until a pause has them meet.
    """
    together: list[float] = []
    apart: list[float] = []
    start = time.perf_counter()
    while True:
        found = call()
        if found < 0:
            apart.append(-found)
            if len(apart) % _FEWEST == 0:
                time.sleep(random.uniform(0, _PAUSE_S))
        else:
            together.append(found)
        passed = time.perf_counter() - start
        if passed > _MOST_S or (passed > _SOME_S and _settled(together, best)):
            return best(together or apart)


def _settled(found: list[float], best: Callable[[Sequence[float]], float]) -> bool:
    """Return True if there are enough trials, and the two best are close to each other."""
    if len(found) < _FEWEST:
        return False
    first = best(found)
    rest = found.copy()
    rest.remove(first)
    return abs(best(rest) - first) <= _ALIKE * first


def _path(precision: str, multiply: Product) -> str:
    """Return the library and instruction set behind torch's product, as oneDNN reports them."""
    found = _EXECUTED.findall(_said(multiply(_SIZES[0])))
    if found:
        primitive, implementation = found[-1]
        return f"oneDNN {implementation or primitive}"
    return _blas() if precision == "fp32" else "torch, not by oneDNN"


def _blas() -> str:
    named = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return {"mkl": "MKL", "open": "OpenBLAS"}.get(named[1], named[1]) if named else "torch"


def _said(call: Callable[[], object]) -> str:
    """Return oneDNN's output during this call."""
    reading, writing = os.pipe()
    libc, before = ctypes.CDLL(None), os.dup(1)
    libc.fflush(None)
    os.dup2(writing, 1)
    try:
        with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            call()
        libc.fflush(None)
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(writing)
    with os.fdopen(reading) as file:
        return file.read()


def _called(loops: jit.CppLibrary) -> float:
    return _python_call(loops.nothing)


def _operator(_: jit.CppLibrary) -> float:
    one = torch.ones(1)
    return _python_call(one.neg)


def _python_call(call: Callable[[], object]) -> float:
    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        return (time.perf_counter() - start) / _CALLS

    return _best(seconds, min)


def _contended(loops: jit.CppLibrary) -> float | None:
    """Return the median of trials in which all threads took part; the others seem too fast."""
    if torch.get_num_threads() == 1:
        return None
    trials = (loops.contended_atomic_add(10 * _CALLS) for _ in range(_CONTENDED))
    found = [seconds for seconds in trials if seconds > 0]
    return statistics.median(found) if found else None


_OVERHEADS: dict[str, Callable[[jit.CppLibrary], float | None]] = {
    "call of a compiled function": _called,
    "torch operator, one element": _operator,
    "parallel region": lambda loops: _best(lambda: loops.parallel_region(_CALLS), min),
    "barrier": lambda loops: _best(lambda: loops.barrier(_CALLS), min),
    "atomic add": lambda loops: _best(lambda: loops.atomic_add(_CALLS), min),
    "contended atomic add": _contended,
}
