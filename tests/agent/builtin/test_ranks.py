"""The few largest, or smallest, elements of rows and columns, with their places, as torch's `topk` finds them."""

import math
from pathlib import Path

import pytest
import torch

from tests.helpers.builtin.proving import models, propose, prove, source
from tests.helpers.builtin.ranks import EXPERTS, RANKS

pytestmark = pytest.mark.builds


@pytest.mark.parametrize("schedule", [{}, {"fuse": "apart"}, {"k0__keep": "off"}], ids=str)
@pytest.mark.parametrize("name", RANKS)
def test_the_largest_few(name: str, schedule: dict[str, str], tmp_path: Path) -> None:
    assert prove(RANKS[name], tmp_path, **schedule).schedule["topk"] == "own"


def test_what_is_looked_up_at_the_places_of_the_largest(tmp_path: Path) -> None:
    assert prove(EXPERTS, tmp_path).schedule["topk"] == "own"


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1])
def test_nan_is_the_largest_and_the_first_of_equals_comes_first(
    dim: int, largest: bool, tmp_path: Path
) -> None:
    text = source(f"v, i = x.topk(4, {dim}, largest={largest}); return v, i", "torch.randn(20, 20)")
    model, model_new, (x,) = models(text, propose(text), tmp_path)
    x[0, 3], x[0, 7], x[1] = math.nan, -math.nan, math.nan
    x[2, 5], x[2, 9], x[3] = math.inf, math.inf, -math.inf
    x[4], x[5, :10], x[6] = 0.0, -math.inf, x[6].round()
    x[7], x[8, ::2] = 1e-40, -1e-41
    x[9, :19] = math.nan
    x = x if dim else x.t().contiguous()
    (values, places), (wanted, _) = model_new(x), model(x)
    assert torch.equal(values.nan_to_num(7.0, 8.0, -8.0), wanted.nan_to_num(7.0, 8.0, -8.0))
    assert torch.equal(values.isnan(), wanted.isnan())
    first = x.double().nan_to_num(1e300, 1e299, -1e299).sort(dim=dim, descending=largest, stable=True)[1]
    assert torch.equal(places, first.narrow(dim, 0, 4))


def test_the_sign_of_zero_is_kept(tmp_path: Path) -> None:
    text = source("v, i = x.topk(2); return 1 / v, i", "torch.randn(3, 20)")
    _, model_new, (x,) = models(text, propose(text), tmp_path)
    x[:] = -1.0
    x[:, 4], x[:, 6] = -0.0, 0.0
    assert sorted(model_new(x)[0][0].tolist()) == [-math.inf, math.inf]


def test_what_ranks_cannot_hold_is_left_to_torch(tmp_path: Path) -> None:
    text = source(
        "return x.double().topk(2)[0] + 1, x.topk(9)[0] * 2, x[0].topk(2)[1], (x * 9).long().topk(2)[0]",
        "torch.randn(40, 33)",
    )
    assert "ranked" not in prove(text, tmp_path).source
