"""Sums of rows that have one number at an index, and zeros."""

from pathlib import Path

import pytest

from tests.helpers.builtin.proving import prove, source

pytestmark = pytest.mark.builds

ONE = "one = torch.where(torch.arange(40) == index[:, None], g, 0.0)\n        "
INPUTS = "torch.randn(8, 40), torch.tensor([0, 39, 40, -1, 7, 7, -100, 20]), torch.randn(8, 1)"
BY_ELEMENT = INPUTS.replace("torch.randn(8, 1)", "torch.randn(8, 40)")


def test_the_sum_is_the_number_where_the_index_is_in_the_row(tmp_path: Path) -> None:
    text = source(f"{ONE}return one - x.exp() * one.sum(1, keepdim=True)", INPUTS, arguments="x, index, g")
    assert "sum" not in prove(text, tmp_path).source.partition("import")[0]


@pytest.mark.parametrize(
    ("result", "inputs"),
    [
        ("one.sum(1)", BY_ELEMENT),  # the number depends on the place
        ("one.sum(1)", INPUTS.replace("torch.tensor(", "0.5 + torch.tensor(")),  # at no place of the row
        ("one.sum(0)", INPUTS),
        ("torch.where(torch.arange(40) == index[:, None], g, 1.0).sum(1)", INPUTS),
    ],
)
def test_other_sums_are_computed(result: str, inputs: str, tmp_path: Path) -> None:
    text = source(f"{ONE}return x.exp(), {result}", inputs, arguments="x, index, g")
    assert "sum" in prove(text, tmp_path).source.partition("import")[0]
