"""Candidates for a varied dozen of references, really compiled, against float64."""

import math
from pathlib import Path

import pytest
import torch

from tests.helpers.builtin.numerics import EDGES, REFERENCES, marks
from tests.helpers.builtin.proving import assert_right, models, propose, prove, source

pytestmark = pytest.mark.builds


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in REFERENCES])
def test_the_candidate_is_as_exact_as_the_reference(name: str, tmp_path: Path) -> None:
    prove(REFERENCES[name], tmp_path)


@pytest.mark.parametrize("name", EDGES)
def test_nan_infinity_and_large_values_come_out_as_in_the_reference(name: str, tmp_path: Path) -> None:
    text = source(EDGES[name], "torch.randn(12, 80)")
    model, model_new, (x,) = models(text, propose(text), tmp_path)
    x[0, 3] = math.nan
    x[1, 79] = math.inf
    x[2, 5] = -math.inf
    x[3] = -math.inf
    x[4] = 1e4 * x[4]
    x[5] = 1e-40
    x[6, :2] = torch.tensor([math.inf, math.nan])
    x[7] = 88.5 + x[7]
    x[8] = -100.0
    assert_right(model, model_new, [x])


def test_nan_and_infinity_in_columns_that_threads_share(tmp_path: Path) -> None:
    text = source(
        "return x.sum(0), x.amax(0), x.amin(0), x.max(0)[1], torch.softmax(x, 0)", "torch.randn(1500, 33)"
    )
    candidate = propose(text)
    assert candidate.schedule["k0.parts"] == "on"
    model, model_new, (x,) = models(text, candidate, tmp_path)
    x[3, 0], x[1400, 1], x[0, 2], x[7, 3] = math.nan, math.inf, -math.inf, math.inf
    x[1499, 3], x[:, 4] = -math.inf, -math.inf
    assert_right(model, model_new, [x])


@pytest.mark.parametrize(
    "name",
    ["pooling of images", "pooling of what is computed", "depthwise convolution of images", "running sums"],
)
def test_what_windows_hold_never_leaves_the_kernel_that_reduces_it(name: str, tmp_path: Path) -> None:
    prove(REFERENCES[name], tmp_path, fuse="apart")


def test_an_element_of_a_scan_is_picked_after_it(tmp_path: Path) -> None:
    text = source(
        "return torch.gather(torch.cumsum(x, -1) * 2, 1, index)",
        "torch.randn(64, 128), torch.randint(0, 128, (64, 1))",
        arguments="x, index",
    )
    prove(text, tmp_path)


def test_a_chain_of_the_same_operators_is_no_recurrence(tmp_path: Path) -> None:
    text = source(
        "for _ in range(9):\n            x = torch.tanh(x) * 1.5\n        return x", "torch.randn(40, 50)"
    )
    assert "step" not in prove(text, tmp_path).source


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_products_with_few_vectors(precision: str, tmp_path: Path) -> None:
    text = source(
        "return self.linear(x), x.mT @ x[:, :2]",
        f"torch.randn(4, 1000, dtype=torch.{precision})",
        init=f"self.linear = nn.Linear(1000, 600, dtype=torch.{precision})",
    )
    assert prove(text, tmp_path).schedule["products"] == "own"


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_half_precision(precision: torch.dtype, tmp_path: Path) -> None:
    text = source(
        "return F.gelu(self.norm(x)) + x, x.softmax(-1)",
        f"torch.randn(8, 200, dtype={precision})",
        init=f"self.norm = nn.LayerNorm(200).to({precision})",
    )
    prove(text, tmp_path)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_extremes_of_16_bits_are_loaded_unmasked(precision: torch.dtype, tmp_path: Path) -> None:
    """g++ 12 masks a load behind the comparison, without AVX-512, and runs past the row."""
    prove(source("return x.softmax(-1), x.amin(-1)", f"torch.randn(64, 4000, dtype={precision})"), tmp_path)


def test_inputs_that_are_not_contiguous(tmp_path: Path) -> None:
    text = source("return torch.softmax(x + 1, -1)", "torch.randn(40, 30).t()")
    prove(text, tmp_path)


def test_a_library_result_is_overwritten_only_where_nobody_else_reads_it(tmp_path: Path) -> None:
    text = source(
        "y = self.linear(x); return F.relu(y), y",
        "torch.randn(20, 24)",
        init="self.linear = nn.Linear(24, 40)",
    )
    assert "k0.in_place" not in prove(text, tmp_path).schedule
    alone = text.replace("return F.relu(y), y", "return F.relu(y)")
    assert prove(alone, tmp_path).schedule["k0.in_place"] == "on"


def test_an_input_may_have_the_name_of_something_the_coder_makes_up(tmp_path: Path) -> None:
    arguments = "variance, row_sum, lib_out, row, float_, n, checked_"
    inputs = ", ".join(["torch.randn(6, 40)"] * 7)
    body = "return F.layer_norm(variance + row_sum, (40,)) * lib_out + row - float_ / n.abs() + checked_"
    prove(source(body, inputs, arguments=arguments), tmp_path)


VIEWS = {
    "slices": "return x[:, 1:] - x[:, :-1], x[..., ::2] * 2",
    "transposes": "return (x + 1).t().softmax(-1), x.t() * 2",
    "a difference of all pairs": "return (x.unsqueeze(1) - x.unsqueeze(0)).pow(2).sum(-1)",
    "clones": "return x.clone(), x * 1",
    "two axes, one after the other": "return x.softmax(0).softmax(1), x.logsumexp((0, 1))",
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str, tmp_path: Path) -> None:
    prove(source(VIEWS[name], "torch.randn(21, 34)"), tmp_path)


def test_a_single_number(tmp_path: Path) -> None:
    prove(
        source(
            "return torch.exp(s) * 2, F.mse_loss(x, x * 2) * s",
            "torch.randn(()), torch.randn(5, 6)",
            arguments="s, x",
        ),
        tmp_path,
    )
