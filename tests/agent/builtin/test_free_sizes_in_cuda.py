"""CUDA C++ kernels for any sizes: right in the emulator at several, and built for a chip that is not there."""

from pathlib import Path

import pytest
import torch

from kernelwright.agent.builtin.coder import LANGUAGES
from kernelwright.agent.builtin.schedule import Schedule
from kernelwright.agent.builtin.sizes.free import compile_free
from kernelwright.kernelbench.jit import cubin
from tests.helpers.builtin.free import free_graph, free_kernels, free_source, hold
from tests.helpers.builtin.free_tasks import LEAST, OF_ROWS, OF_TWO
from tests.helpers.builtin.proving import ruff
from tests.helpers.installed import require

pytestmark = pytest.mark.builds

KINDS = ("gelu", "softmax", "mean_of_all", "sum_of_rows", "swiglu")  # of kernels


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in KINDS else pytest.mark.slow) for n in OF_ROWS]
)
def test_any_number_of_rows(name: str, tmp_path: Path) -> None:
    text = OF_ROWS[name]
    rows = int(text.partition("rows = ")[2].split("\n")[0])
    hold(free_kernels(text, "cuda", rows=rows), text, tmp_path, *({"rows": n} for n in (1, 7, rows, 331)))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in ("transposed", "contiguous_where_it_is_not") else pytest.mark.slow)
        for n in OF_TWO
        if n != "attention"  # which is torch's
    ],
)
def test_any_batch_and_length(name: str, tmp_path: Path) -> None:
    text = OF_TWO[name]
    sizes = {"batch": int(text.partition("batch = ")[2].split("\n")[0]), "length": 40}
    some = ((1, LEAST.get(name, 1)), (7, 13), (1, 131), (sizes["batch"], 40), (61, 3))
    points = [{"batch": batch, "length": length} for batch, length in some]
    hold(free_kernels(text, "cuda", **sizes), text, tmp_path, *points)


@pytest.mark.slow
def test_products_by_tiles(tmp_path: Path) -> None:
    text = free_source(
        "return torch.relu(x @ y) * 2",
        "torch.randn(rows, length, 40), torch.randn(rows, 40, 24)",
        arguments="x, y",
        rows=20,
        length=30,
    )
    graph = free_graph(text, "cuda", rows=20, length=30)
    found = compile_free(graph, text, Schedule.from_dict({"products": "tiled"}), LANGUAGES["cuda"])
    assert "const long long ROWS = length;\n    constexpr long long COLUMNS = 24, DEPTH = 40;" in found.source
    points = [{"rows": rows, "length": length} for rows, length in ((1, 1), (7, 45), (33, 32))]
    hold(found, text, tmp_path, *points)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_they_are_built_by_nvrtc(name: str) -> None:
    require("cuda.bindings")
    text = OF_ROWS[name]
    rows = int(text.partition("rows = ")[2].split("\n")[0])
    source = free_kernels(text, "cuda", rows=rows).source.split('"""')
    code = next(part for part in source if "__global__" in part)
    assert "    long long rows" in code
    assert cubin.build(code, (), "sm_90")[:4] == b"\x7fELF"


def test_the_file_is_lint_clean(tmp_path: Path) -> None:
    found = free_kernels(OF_ROWS["gelu"], "cuda", rows=300).source
    assert ruff(found, tmp_path) == "All checks passed!\n"
    assert "    const long long NUMEL = rows * 96;\n" in found


def test_no_rows_are_an_empty_result(tmp_path: Path) -> None:
    for name in ("rms_norm", "gelu"):
        model = hold(free_kernels(OF_ROWS[name], "cuda", rows=300), OF_ROWS[name], tmp_path).ModelNew()
        assert model(torch.randn(0, 96)).shape == (0, 96)
