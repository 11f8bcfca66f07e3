"""Values whose axes lie in memory in another order, and images whose channels lie last."""

from pathlib import Path

import pytest
import torch

from tests.helpers.builtin.order_of_axes import GRADIENTS, IMAGES, INPUTS, TURNED
from tests.helpers.builtin.proving import assert_right, models, propose, prove, source

pytestmark = pytest.mark.builds


@pytest.mark.parametrize("name", TURNED)
def test_what_lies_in_another_order(name: str, tmp_path: Path) -> None:
    candidate = prove(TURNED[name], tmp_path)
    assert "aten" not in candidate.source


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_are_read_as_they_lie(name: str, tmp_path: Path) -> None:
    candidate = prove(INPUTS[name], tmp_path)
    assert ".permute(" in candidate.source


@pytest.mark.parametrize("given", ["x", "x.transpose(0, 1)"])
def test_a_copy_of_an_input_has_memory_of_its_own(given: str, tmp_path: Path) -> None:
    text = source(f"return {given}.clone(), torch.exp(x)", "torch.randn(9, 4, 64).transpose(0, 1)")
    _, new, inputs = models(text, propose(text), tmp_path)
    with torch.no_grad():
        copy, _ = new(*inputs)
    assert copy.untyped_storage().data_ptr() != inputs[0].untyped_storage().data_ptr()


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_parts_are_computed_where_they_lie(name: str, tmp_path: Path) -> None:
    prove(GRADIENTS[name], tmp_path)


def test_gradients_of_two_halves_are_one_pass() -> None:
    candidate = propose(GRADIENTS["halves"])
    assert candidate.source.count("extern") == 1 and "torch.ops" not in candidate.source


@pytest.mark.parametrize("fuse", ["all", "apart"])
@pytest.mark.parametrize("name", IMAGES)
def test_images_whose_channels_lie_last(name: str, fuse: str, tmp_path: Path) -> None:
    candidate = prove(IMAGES[name], tmp_path, layout="channels_last", fuse=fuse)
    assert candidate.schedule["layout"] == "channels_last"


def test_a_convolution_alone_in_another_layout_is_torch_calls(tmp_path: Path) -> None:
    text = source("return self.conv(x)", "torch.randn(2, 16, 7, 5)", init="self.conv = nn.Conv2d(16, 4, 3)")
    assert propose(text).schedule == {"layout": "contiguous"}
    candidate = propose(text, layout="channels_last")
    assert (candidate.language, candidate.schedule) == ("torch", {"layout": "channels_last"})
    model, new, inputs = models(text, candidate, tmp_path)
    assert_right(model, new, inputs)
    with torch.no_grad():
        assert new(*inputs).is_contiguous()
