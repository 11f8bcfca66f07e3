"""The memory budget of a session: what fits, in how many calls, and what takes the bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.kernelbench.evaluator.memory.blocks import row_blocks
from kernelwright.kernelbench.evaluator.memory.budget import (
    CallSizes,
    HostBudget,
    on_device,
    on_host,
)

GIB = 1 << 30
H100 = int(79.1 * GIB)
bytes_of = st.integers(0, 12 * GIB)
sizes = st.builds(
    CallSizes,
    inputs=bytes_of,
    outputs=st.lists(st.integers(1, 6 * GIB), min_size=1, max_size=3).map(tuple),
    weights=st.integers(0, 4 * GIB),
    live=bytes_of,
    largest=st.just(1),
    widening=st.sampled_from([2, 4]),
)
memory = st.integers(8 * GIB, 200 * GIB)
crew = st.integers(1, 6)
calls = st.integers(1, 4096)


@given(sizes, memory, crew, calls)
def test_what_fits_is_never_more_than_the_device_has(s: CallSizes, m: int, w: int, most: int) -> None:
    budget = on_device(s, m, w, most)
    assert 1 <= budget.calls <= most
    assert budget.calls <= budget.block <= 2 * budget.calls and budget.slots == budget.block
    assert budget.total_bytes == sum(budget.parts.values()) <= m or (budget.block == 1 and not budget.fits)


@given(sizes, memory, memory, crew, calls)
def test_more_memory_never_means_fewer_calls(s: CallSizes, a: int, b: int, w: int, most: int) -> None:
    less, more = (on_device(s, m, w, most) for m in sorted((a, b)))
    assert less.calls <= more.calls and less.block <= more.block and less.fits <= more.fits


@given(sizes, memory, crew, calls)
def test_further_workers_never_mean_more_calls(s: CallSizes, m: int, w: int, most: int) -> None:
    assert on_device(s, m, w + 1, most).calls <= on_device(s, m, w, most).calls


@given(sizes, memory, crew, calls)
def test_no_call_more_would_fit_unless_it_were_of_no_use(s: CallSizes, m: int, w: int, most: int) -> None:
    budget = on_device(s, m, w, most)
    moved = budget.calls * (s.inputs + s.output_bytes)
    if budget.calls < most and moved < 6 * GIB:
        larger = type(budget)(s, m, w, budget.calls + 1, 2 * budget.calls + 2)
        assert not larger.fits


@given(sizes, memory, crew, calls)
def test_a_heap_holds_what_a_block_needs(s: CallSizes, m: int, w: int, most: int) -> None:
    budget = on_device(s, m, w, most)
    needed = budget.block * s.output_bytes + s.temporaries
    assert needed <= sum(budget.room_bytes(budget.block)) <= budget.heap_bytes
    assert budget.aside_bytes >= budget.block * s.output_bytes


@pytest.mark.parametrize("mib", [1, 16, 64, 256, 1024])
def test_a_block_on_an_h100_moves_enough_to_be_timed(mib: int) -> None:
    size = mib << 20
    budget = on_device(CallSizes(size, (size,), live=size), H100, 3, 4096)
    assert budget.fits and budget.block == 2 * budget.calls
    assert budget.calls * 2 * size >= 6 * GIB  # 2 ms at 3 TB/s


def test_six_gib_in_and_out_fit_on_an_h100_and_eight_do_not() -> None:
    for gib, fits in ((6, True), (8, False)):
        size = gib * GIB
        assert on_device(CallSizes(size, (size,), live=size), H100, 3, 4096).fits is fits


def test_a_cpu_s_budget_is_a_share_of_the_machine() -> None:
    s = CallSizes(inputs=1 << 20, outputs=(1 << 20,), largest=1 << 20)
    budget = on_host(s, memory_bytes=16 * GIB, most_calls=64, inputs_bytes=GIB, outputs_bytes=GIB)
    assert (budget.calls, budget.block, budget.slots) == (64, 128, 192)
    assert budget.room_bytes(2) == 6 * [1 << 20] + 2 * [1 << 20]
    small = on_host(s, memory_bytes=64 << 20, most_calls=64, inputs_bytes=GIB, outputs_bytes=GIB)
    assert isinstance(small, HostBudget) and small.calls == 2 and small.outputs_bytes == 8 << 20


@given(st.lists(st.integers(0, 6), max_size=4), st.integers(1, 40))
def test_blocks_cover_every_row_once(shape: list[int], most: int) -> None:
    seen = torch.zeros(shape)
    for at in row_blocks(shape, most):
        assert seen[at].numel() <= max(most, shape[-1] if len(shape) > 1 else seen.numel())
        seen[at] += 1
    assert bool((seen == 1).all())
