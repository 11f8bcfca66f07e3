"""Lookups: what an index says is read where it is needed, and an index that says too much is refused."""

from pathlib import Path

import pytest
import torch

from tests.helpers.builtin.lookups import LOOKUPS, TOKENS
from tests.helpers.builtin.proving import assert_right, models, propose, prove, source

pytestmark = pytest.mark.builds


@pytest.mark.parametrize("fuse", ["all", "apart"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups_are_as_exact_as_the_reference(name: str, fuse: str, tmp_path: Path) -> None:
    prove(LOOKUPS[name], tmp_path, fuse=fuse)


def test_lookups_share_the_kernel_of_what_is_computed_from_them() -> None:
    text = source(
        "return self.norm(self.word(i) + self.place(torch.arange(5)))",
        TOKENS,
        arguments="i",
        init="self.word = nn.Embedding(50, 33); self.place = nn.Embedding(8, 33); self.norm = nn.LayerNorm(33)",
    )
    candidate = propose(text)
    assert candidate.source.count('extern "C"') == 1 and "aten" not in candidate.source


@pytest.mark.parametrize("index", [50, -1, 2**40])
@pytest.mark.parametrize("result", ["self.e(i)", "self.e.weight.index_select(0, i[0])"])
def test_what_is_not_there_is_refused(result: str, index: int, tmp_path: Path) -> None:
    text = source(f"return {result} * 2", TOKENS, arguments="i", init="self.e = nn.Embedding(50, 33)")
    model, model_new, (i,) = models(text, propose(text), tmp_path)
    i[0, 3] = index
    for one in (model, model_new):
        with pytest.raises(IndexError, match="out of range"):
            one(i)


@pytest.mark.parametrize("index", [50, -51])
def test_indices_count_from_the_end_as_far_as_there_is_something(index: int, tmp_path: Path) -> None:
    text = source("return w[i] * 2", f"torch.randn(50, 33), {TOKENS}", arguments="w, i")
    model, model_new, (w, i) = models(text, propose(text), tmp_path)
    i[2, 2] = -50
    assert_right(model, model_new, [w, i])
    i[1, 4] = index
    with pytest.raises(IndexError, match=f"index {index} is out of range for 50 elements"):
        model_new(w, i)


def test_a_gather_refuses_what_a_row_does_not_have(tmp_path: Path) -> None:
    text = source(
        "return x.gather(1, i).exp()", "torch.randn(4, 9), torch.randint(0, 9, (4, 5))", arguments="x, i"
    )
    _, model_new, (x, i) = models(text, propose(text), tmp_path)
    for index in (-1, 9):
        i[3, 4] = index
        with pytest.raises(IndexError, match="out of range for 9"):
            model_new(x, i)


def test_nothing_is_looked_up(tmp_path: Path) -> None:
    text = source(
        "return w[i] * 2, w.sum(0)",
        "torch.randn(50, 33), torch.zeros(0, 4, dtype=torch.int64)",
        arguments="w, i",
    )
    prove(text, tmp_path)


def test_what_a_table_holds_comes_out_as_it_is(tmp_path: Path) -> None:
    text = source(
        "return w[i], w.gather(1, j)",
        "torch.randn(9, 33), torch.arange(9), torch.arange(33).expand(9, 33)",
        arguments="w, i, j",
    )
    model, model_new, (w, i, j) = models(text, propose(text), tmp_path)
    w[0, 0], w[1, 5], w[2, 7], w[3, 1] = float("nan"), float("inf"), -float("inf"), -0.0
    for found, wanted in zip(model_new(w, i, j), model(w, i, j), strict=True):
        assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
