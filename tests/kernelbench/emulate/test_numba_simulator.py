"""Threads of numba.cuda, simulated in turns: barriers, and what is wrong with them."""

import pytest
import torch

from kernelwright.kernelbench.emulate import history
from kernelwright.kernelbench.emulate.findings import KernelFault
from kernelwright.kernelbench.emulate.numba_simulator import simulate

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
simulate()
cuda = pytest.importorskip("numba.cuda")

THREADS = 32


@cuda.jit
def reversed_in_blocks(x, y, wait):
    shared = cuda.shared.array(THREADS, x.dtype)
    thread, at = cuda.threadIdx.x, cuda.grid(1)
    shared[thread] = x[at]
    if wait:
        cuda.syncthreads()
    y[at] = shared[THREADS - 1 - thread]


@cuda.jit
def half_waits(x):
    if cuda.threadIdx.x < 16:
        cuda.syncthreads()
    x[cuda.threadIdx.x] = 1.0


@cuda.jit
def positive(x, count):
    votes = cuda.syncthreads_count(x[cuda.threadIdx.x] > 0)
    if cuda.threadIdx.x == 0:
        count[0] = votes


def test_threads_meet_at_a_barrier() -> None:
    x, y = torch.randn(64), torch.empty(64)
    reversed_in_blocks[2, THREADS](x, y, True)
    assert torch.equal(y, x.view(2, THREADS).flip(1).view(-1))
    assert history.launched["reversed_in_blocks"]


def test_a_missing_barrier_shows() -> None:
    x, y = torch.randn(64) + 100, torch.empty(64)
    reversed_in_blocks[2, THREADS](x, y, False)
    assert not torch.equal(y, x.view(2, THREADS).flip(1).view(-1))


def test_a_barrier_that_some_threads_do_not_reach_is_a_fault() -> None:
    with pytest.raises(KernelFault, match=r"Barrier error: thread .* has returned"):
        half_waits[1, THREADS](torch.zeros(THREADS))


def test_votes_are_counted() -> None:
    x, count = torch.randn(THREADS), torch.zeros(1, dtype=torch.int32)
    positive[1, THREADS](x, count)
    assert count.item() == (x > 0).sum()


def test_an_index_out_of_bounds_is_a_fault() -> None:
    with pytest.raises(KernelFault, match=r"Invalid access by thread \(\d+, 0, 0\) in block \(0, 0, 0\)"):
        reversed_in_blocks[1, THREADS](torch.zeros(8), torch.zeros(8), False)
