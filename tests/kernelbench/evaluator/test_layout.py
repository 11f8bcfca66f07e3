"""The bytes that describe a worker's outputs: exact for honest workers, refused otherwise."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelbench.evaluator.layout import DTYPES, Arena, SlotLayout, TensorLayout, pack_outputs, unpack_outputs


def test_descriptors_survive_the_wire() -> None:
    calls = [[torch.randn(3, 4).T, torch.arange(5)], [torch.randn(4, 3), torch.arange(5)]]
    for sent, received in zip(calls, unpack_outputs(pack_outputs(calls)), strict=True):
        assert [d.layout for d in received] == [TensorLayout.of(t) for t in sent]
        assert [d.address for d in received] == [t.data_ptr() for t in sent]


@given(st.binary(max_size=600))
def test_any_other_bytes_are_refused_or_harmless(payload: bytes) -> None:
    try:
        calls = unpack_outputs(payload)
    except ValueError:
        return
    for outputs in calls:
        for output in outputs:
            assert output.layout.dtype in DTYPES
            assert output.layout.span_bytes >= 0


@given(st.integers(0, 600))
def test_truncated_bytes_are_refused(cut: int) -> None:
    whole = pack_outputs([[torch.zeros(2, 2)], [torch.zeros(2, 2)]])
    if cut < len(whole):
        with pytest.raises(ValueError):
            unpack_outputs(whole[:cut])


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
