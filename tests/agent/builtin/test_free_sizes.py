"""Kernels for any sizes: right at one row, at a prime number of rows, and at more than were traced."""

from pathlib import Path

import pytest
import torch

from kernelwright.agent.builtin.compile import NothingToFuse
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from tests.helpers.builtin.free import free_graph, free_kernels, free_source, hold
from tests.helpers.builtin.free_tasks import LEAST, OF_ROWS, OF_TWO, ROWS
from tests.helpers.builtin.proving import ruff

pytestmark = pytest.mark.builds

SLOW = {"attention", "rope", "rope_in_halves", "embedding", "loop"}  # to trace at so many sizes


@pytest.mark.parametrize("name", OF_ROWS)
def test_any_number_of_rows(name: str, tmp_path: Path) -> None:
    text = OF_ROWS[name]
    rows = int(text.partition("rows = ")[2].split("\n")[0])
    hold(free_kernels(text, rows=rows), text, tmp_path, *({"rows": n} for n in (1, 7, rows, 1009)))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in OF_TWO]
)
def test_any_batch_and_length(name: str, tmp_path: Path) -> None:
    text = OF_TWO[name]
    sizes = {"batch": int(text.partition("batch = ")[2].split("\n")[0]), "length": 40}
    some = ((1, LEAST.get(name, 1)), (7, 13), (1, 131), (sizes["batch"], 40), (61, 3))
    points = [{"batch": batch, "length": length} for batch, length in some]
    hold(free_kernels(text, **sizes), text, tmp_path, *points)


def test_the_file_is_lint_clean_and_says_what_it_serves(tmp_path: Path) -> None:
    found = free_kernels(OF_TWO["rms_norm"], batch=50, length=40).source
    assert ruff(found, tmp_path) == "All checks passed!\n"
    assert "built for any batch and length" in found
    assert "batch, length = x.shape[0], x.shape[1]" in found
    assert "    const int64_t ROWS = batch * length;\n    constexpr int64_t COLUMNS = 96;\n" in found


def test_what_is_not_served_is_refused(tmp_path: Path) -> None:
    text = OF_ROWS["add_norm"]
    model = hold(free_kernels(text, rows=300), text, tmp_path).ModelNew()
    with pytest.raises(ValueError, match=r"x must be torch.float32 of shape \('n_rows', 96\)"):
        model(torch.randn(3, 95), torch.randn(3, 95))
    with pytest.raises(ValueError, match="x must be"):
        model(torch.randn(3, 4, 96), torch.randn(3, 4, 96))
    with pytest.raises(ValueError, match=r"y must be torch.float32 of shape \(3, 96\)"):
        model(torch.randn(3, 96), torch.randn(4, 96))
    with pytest.raises(ValueError, match=r"got torch.float64"):
        model(torch.randn(3, 96).double(), torch.randn(3, 96))


def test_no_rows_are_an_empty_result(tmp_path: Path) -> None:
    for name in ("rms_norm", "gelu"):
        model = hold(free_kernels(OF_ROWS[name], rows=300), OF_ROWS[name], tmp_path).ModelNew()
        assert model(torch.randn(0, 96)).shape == (0, 96)


@pytest.mark.slow
def test_equal_lengths_of_inputs_that_are_broadcast_are_no_limit(tmp_path: Path) -> None:
    """Torch's notes say that they are equal, or that one is 1; and a product of sizes is a length, too."""
    text = free_source(
        "return torch.baddbmm(z, x, y).relu(), w.view(x.shape[0], 4, 16) * 2",
        "torch.randn(batch, 4, 32), torch.randn(batch, 32, 16), torch.randn(batch, 4, 16), torch.randn(batch * 4, 16)",
        arguments="x, y, z, w",
        batch=8,
    )
    assert free_graph(text, batch=8).limits == {}
    hold(free_kernels(text, batch=8), text, tmp_path, {"batch": 5}, {"batch": 1})


def test_sizes_that_a_table_ends_at_are_limits(tmp_path: Path) -> None:
    text = free_source(
        "return x + self.table[:x.shape[1]]",
        "torch.randn(3, length, 8)",
        "self.table = nn.Parameter(torch.randn(64, 8))",
        length=40,
    )
    model = hold(free_kernels(text, length=40), text, tmp_path, {"length": 1}, {"length": 64}).ModelNew()
    with pytest.raises(ValueError, match="length must be from 1 to 64, got 65"):
        model(torch.randn(3, 65, 8))


def test_a_branch_on_a_size_is_a_limit() -> None:
    text = free_source("return x * 2 if x.shape[0] < 3000 else x * 3", ROWS, rows=300)
    assert free_graph(text, rows=300).limits == {"n_rows": (1, 2999)}


REFUSED = {
    "return x * 2 if x.shape[0] % 3 == 2 else x * 3": "depends on the free sizes",
    "return x * 2 if x.shape[0] == 29 else x * 3": "forward does something else unless",
    "return x * 2 if x.shape[0] > 30 else x * 3": "depends on the free sizes",
    "return x[:, :50] * 2 + float(x.shape[0]) ** 0.5": "depends on the free sizes",
    "return torch.stack([x[i] * 2 for i in range(x.shape[0])])": "depends on the free sizes",
}


@pytest.mark.parametrize("forward", REFUSED)
def test_what_depends_on_a_size_otherwise_is_refused(forward: str) -> None:
    with pytest.raises(Untraceable, match=REFUSED[forward]):
        free_kernels(free_source(forward, ROWS, rows=40), rows=40)


def test_weights_of_a_free_size_are_refused() -> None:
    text = free_source("return x + self.w", ROWS, "self.w = nn.Parameter(torch.randn(rows, 96))", rows=40)
    with pytest.raises(Untraceable, match="the shape of w depends on the free sizes"):
        free_graph(text, rows=40)


def test_a_constant_that_no_input_shows_is_refused() -> None:
    text = free_source("return F.gelu(x)", "torch.randn(2 * rows, 96)", rows=40)
    with pytest.raises(Untraceable, match="rows is not the length of an axis"):
        free_graph(text, rows=40)


def test_library_calls_alone_are_no_kernel() -> None:
    text = free_source("return self.l(x)", ROWS, "self.l = nn.Linear(96, 8)", rows=40)
    with pytest.raises(NothingToFuse):
        free_kernels(text, rows=40)


def test_a_constructor_that_takes_a_free_size_is_refused() -> None:
    text = free_source("return F.gelu(x)", ROWS, "rows: pass", rows=40).replace("return []", "return [rows]")
    with pytest.raises(Untraceable, match="what get_init_inputs returns depends on the free sizes"):
        free_graph(text, rows=40)
