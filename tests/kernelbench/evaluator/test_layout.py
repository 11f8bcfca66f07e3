"""The bytes that describe a worker's outputs: exact for honest workers, refused otherwise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.kernelbench.evaluator.memory.layout import (
    DTYPES,
    Arena,
    SlotLayout,
    TensorLayout,
    pack_outputs,
    unpack_outputs,
)


def test_descriptors_survive_the_wire() -> None:
    calls = [[torch.randn(3, 4).T, torch.arange(5)], [torch.randn(4, 3)], [], [torch.zeros(2, 0)]]
    found, seconds = unpack_outputs(pack_outputs(calls, torch.Tensor.data_ptr, lambda: 0.25))
    assert seconds == 0.25
    for sent, received in zip(calls, found, strict=True):
        assert [d.layout for d in received] == [TensorLayout.of(t) for t in sent]
        assert [d.address for d in received] == [t.data_ptr() for t in sent]


@given(st.binary(max_size=600))
def test_any_other_bytes_are_refused_or_harmless(payload: bytes) -> None:
    try:
        calls, _ = unpack_outputs(payload)
    except ValueError:
        return
    for outputs in calls:
        for output in outputs:
            assert output.layout.dtype in DTYPES
            assert output.layout.span_bytes >= 0


@given(st.integers(0, 600))
def test_truncated_bytes_are_refused(cut: int) -> None:
    whole = pack_outputs([[torch.zeros(2, 2)], [torch.zeros(2, 2)]], torch.Tensor.data_ptr)
    if cut < len(whole):
        with pytest.raises(ValueError):
            unpack_outputs(whole[:cut])


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4).flatmap(
        lambda shape: st.tuples(
            st.just(shape),
            st.permutations(range(len(shape))),
            st.tuples(*(st.integers(1, 3) for _ in shape)),  # steps between the elements that are taken
        )
    )
)
def test_runs_gather_the_elements_of_any_view(how: tuple[list[int], list[int], tuple[int, ...]]) -> None:
    shape, order, steps = how
    whole = torch.arange(math.prod(a * b for a, b in zip(shape, steps, strict=True)))
    whole = whole.view([a * b for a, b in zip(shape, steps, strict=True)])
    view = whole[tuple(slice(None, None, step) for step in steps)].permute(order)
    starts, length, layout = TensorLayout.of(view).runs(most=256)
    memory = whole.view(-1)[view.storage_offset() :]
    gathered = torch.cat([memory[start : start + length] for start in starts])
    assert torch.equal(gathered.as_strided(layout.shape, layout.strides), view)


def test_a_view_in_more_pieces_than_wanted_is_an_error_and_not_a_list() -> None:
    with pytest.raises(ValueError, match="1073741824 pieces"):
        TensorLayout("float32", (1 << 15, 1 << 15), (1 << 17, 2)).runs(most=1 << 16)


def test_elements_that_share_memory() -> None:
    x = torch.randn(8, 16)
    apart = [x, x.T, x[:, ::2], x[:0], x[:1].expand(1, 16), x.permute(1, 0)[:, None], torch.tensor(1.0)]
    shared = [x[:1].expand(4, 16), x.flatten().unfold(0, 4, 1), x[:, :1].expand(8, 4)]
    for tensors, expected in ((apart, False), (shared, True)):
        for tensor in tensors:
            layout = TensorLayout("float32", tuple(tensor.shape), tuple(tensor.stride()))
            assert layout.overlaps is expected, layout


def test_no_two_slots_begin_at_the_same_place_within_a_page() -> None:
    layout = SlotLayout((TensorLayout("float32", (1024, 1024), (1024, 1)),))
    begins = [layout.offsets(slot)[0] for slot in range(64)]
    assert len({begin % 4096 for begin in begins}) == 64
    assert all(begin % 64 == 0 for begin in begins)
    room = zip(begins, [*begins[1:], 64 * layout.slot_bytes], strict=True)
    assert all(end - begin >= 4 << 20 for begin, end in room)


def test_slots_lie_apart_and_keep_strides() -> None:
    tensors = [torch.randn(5, 7).T, torch.arange(3), torch.zeros(0, 4), torch.tensor(2.0)]
    layout = SlotLayout(tuple(TensorLayout.of(t) for t in tensors))
    arena = Arena.create("test", 2 * layout.slot_bytes)
    for slot in (0, 1):
        for view, value in zip(layout.views(arena, slot), tensors, strict=True):
            view.copy_(value if slot == 0 else torch.zeros_like(value))
    for view, value in zip(layout.views(arena, 0), tensors, strict=True):
        assert torch.equal(view, value) and view.stride() == value.stride()
    arena.close()
