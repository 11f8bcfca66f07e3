"""Products that are reduced away, in blocks of rows: right for any number of rows, and never all in memory."""

import copy
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from kernelwright.agent.builtin.codegen.render import Rendered
from kernelwright.agent.builtin.coder import LANGUAGES
from kernelwright.agent.builtin.schedule import Schedule
from kernelwright.agent.builtin.sizes.blocks import compiled
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.sources import task_of_text
from kernelwright.results.dropin.gradient_tasks import gradient_tasks, training_tasks
from kernelwright.results.dropin.runtime.accuracy import first_excess
from tests.helpers.builtin.free import Tracer, free_graph, free_source, hold
from tests.helpers.builtin.proving import coder, load, propose, prove, ruff, source, task

pytestmark = pytest.mark.builds

WORDS = 5000
BIAS, NO_BIAS = (f"self.head = nn.Linear(24, {WORDS}{rest})" for rest in ("", ", bias=False"))
TARGET = f"torch.randint({WORDS}, (rows,)).masked_fill(torch.arange(rows) % 3 == 1, -100)"
INPUTS = f"torch.randn(rows, 24), {TARGET}"
LOSSES = {
    "mean": ("return F.cross_entropy(self.head(x), y)", NO_BIAS),
    "sum": ("return F.cross_entropy(self.head(x), y, reduction='sum')", NO_BIAS),
    "bias": ("return F.cross_entropy(self.head(x), y)", BIAS),
    "each": ("return F.cross_entropy(self.head(x), y, reduction='none')", NO_BIAS),
    "smoothed": ("return F.cross_entropy(self.head(x), y, label_smoothing=0.1)", NO_BIAS),
    "with_z_loss": (
        "z = self.head(x); return F.cross_entropy(z, y) + 1e-4 * z.logsumexp(1).square().sum()",
        NO_BIAS,
    ),
    "capped": ("return F.cross_entropy(30 * torch.tanh(self.head(x) / 30), y)", NO_BIAS),
}


def text_of(name: str, rows: int = 40) -> str:
    forward, init = LOSSES[name]
    return free_source(forward.replace("; ", "\n        "), INPUTS, init, "x, y", rows=rows)


def blocks(text: str, language: str = "cpp", **schedule: str) -> Rendered:
    graph = free_graph(text, language, rows=40)
    return compiled(graph, text, Schedule.from_dict(schedule), LANGUAGES[language])


def training(text: str) -> str:
    workload = '\n\nworkload = [{"rows": 40}, {"rows": 33}]\n'
    return training_tasks(task_of_text("file:head", text + workload))["_training.py"]


def hold_training(found: Rendered, text: str, folder: Path, *points: dict[str, int]) -> None:
    """Compare a loss and its gradients with autograd's, in float64, at each of these sizes."""
    new = load(found.source, folder)
    for point in points:
        reference = load(Tracer(text).at(point), folder)
        torch.manual_seed(0)
        model, inputs, ours = reference.Model(), reference.get_inputs(), new.ModelNew()
        ours.load_state_dict(model.state_dict())

        def stock(model: Any, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
            x = x.clone().requires_grad_()
            loss = model(x, y)
            return [loss, *torch.autograd.grad(loss, [x, *model.parameters()])]

        wide = copy.deepcopy(model).double()
        exact = stock(wide, inputs[0].double(), inputs[1])
        assert first_excess(ours(*inputs), stock(model, *inputs), exact) == ""


# 300 rows are two blocks of 128 and one of 44.
POINTS = [{"rows": rows} for rows in (1, 40, 128, 300)]
LATER = pytest.mark.slow


def first_quick(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=() if not place else LATER) for place, name in enumerate(names)]


@pytest.mark.parametrize("name", first_quick(LOSSES))
def test_a_loss_of_any_rows(name: str, tmp_path: Path) -> None:
    text = text_of(name)
    found = blocks(text, blocks="4")
    assert "for first in range(0, n_rows, 128):" in found.source
    assert ruff(found.source, tmp_path) == "All checks passed!\n"
    hold(found, text, tmp_path, *POINTS)


@pytest.mark.parametrize("name", first_quick(["mean", "sum", "bias"]))
def test_a_loss_with_its_gradients(name: str, tmp_path: Path) -> None:
    text = text_of(name)
    found = blocks(training(text), blocks="4")
    assert "for first in range(0, n_rows, 128):" in found.source
    hold_training(found, text, tmp_path, *POINTS)


@LATER
def test_a_gradient_that_computes_the_product_again(tmp_path: Path) -> None:
    text, _ = gradient_tasks(Task(id="file:head", level=1, source=text_of("mean")))
    found = blocks(text, blocks="4")
    assert "for first in range(0, n_rows, 128):" in found.source
    model, new = load(text, tmp_path).Model(), load(found.source, tmp_path).ModelNew()
    weight, x, y = torch.randn(WORDS, 24), torch.randn(300, 24), torch.randint(WORDS, (300,))
    given = (torch.tensor(2.0), x, y, weight)
    for ours, theirs in zip(new(*given), model(*given), strict=True):
        torch.testing.assert_close(ours, theirs)


@LATER
@pytest.mark.parametrize("language", ["triton", "cuda"])
@pytest.mark.parametrize("trains", [False, True])
def test_other_languages(
    language: str, trains: bool, interpreter: ProcessPoolExecutor, tmp_path: Path
) -> None:
    text = text_of("mean")
    found = blocks(training(text) if trains else text, language, blocks="4")
    assert "for first in range(0, rows, 128):" in found.source
    given = (hold_training if trains else held, found, text, tmp_path, {"rows": 1}, {"rows": 140})
    interpreter.submit(*given).result()  # CUDA C++ is emulated there as elsewhere


def held(found: Rendered, text: str, folder: Path, *points: dict[str, int]) -> None:
    hold(found, text, folder, *points)  # which returns a module, and this no other process can


@pytest.mark.parametrize("trains", [False, True])
def test_bfloat16_sums_in_float32(trains: bool, tmp_path: Path) -> None:
    forward = "return F.cross_entropy(self.head(x).float(), y)"
    inputs = INPUTS.replace("24)", "24, dtype=torch.bfloat16)")
    text = free_source(forward, inputs, f"{NO_BIAS}.to(torch.bfloat16)", "x, y", rows=40)
    found = blocks(training(text) if trains else text, blocks="4")
    if trains:
        assert "mm_1 = torch.zeros((5000, 24), dtype=torch.float32" in found.source
    (hold_training if trains else hold)(found, text, tmp_path, *POINTS, {"rows": 600})


def test_one_size(tmp_path: Path) -> None:
    text = source(LOSSES["mean"][0], INPUTS.replace("rows", "600"), NO_BIAS, "x, y")
    candidate = prove(text, tmp_path, blocks="4")
    assert "for first in range(0, 600, 128):" in candidate.source
    assert candidate.schedule["blocks"] == "4"
    whole = prove(text, tmp_path, blocks="off")
    assert "range(0, 600" not in whole.source and whole.schedule["blocks"] == "off"
    few = source(LOSSES["mean"][0], INPUTS.replace("rows", "40"), NO_BIAS, "x, y")
    assert "range(" not in coder().propose(task(few), [], None).source


WHOLE = {
    "over_rows": "return torch.softmax(self.head(x), 0).square().sum()",
    "logits_are_returned": "z = self.head(x); return z, F.cross_entropy(z, y)",
    "mean_of_rows_is_needed_again": "z = self.head(x); return (z - z.sum(0, keepdim=True)).square().sum()",
    "rows_multiplied": "z = self.head(x); return (z @ z.t()).sum()",
    "in_order": "return torch.cumsum(self.head(x), 0).square().sum()",
}


@pytest.mark.parametrize("name", WHOLE)
def test_rows_that_need_each_other_stay_together(name: str, tmp_path: Path) -> None:
    text = free_source(WHOLE[name].replace("; ", "\n        "), INPUTS, NO_BIAS, "x, y", rows=40)
    found = blocks(text)
    assert "range(0, n_rows" not in found.source
    hold(found, text, tmp_path, {"rows": 7})


def peak(model: Any, inputs: Any) -> int:
    """Most bytes that torch holds in a call beside what it is given."""
    with torch.no_grad():
        model(*inputs)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            model(*inputs)
    now = most = 0
    memory = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("trains", [False, True])
def test_memory_is_that_of_a_block(trains: bool, tmp_path: Path) -> None:
    text = training(text_of("mean")) if trains else text_of("mean")
    new, reference = load(blocks(text, blocks="4").source, tmp_path), load(text, tmp_path)
    inputs = [torch.randn(2048, 24), torch.randint(WORDS, (2048,))]
    logits, block, weight = 2048 * WORDS * 4, 128 * WORDS * 4, WORDS * 24 * 4
    assert peak(reference.Model(), inputs) >= 2 * logits
    assert peak(new.ModelNew(), inputs) <= 2 * block + 2 * weight + (1 << 20)


@pytest.mark.parametrize(("products", "in_blocks"), [("tiled", True), ("all", False)])
def test_what_only_follows_a_product_in_tiles_needs_no_blocks(products: str, in_blocks: bool) -> None:
    text = source(
        "return F.gelu(self.up(x))",
        "torch.randn(2048, 64, dtype=torch.bfloat16)",
        "self.up = nn.Linear(64, 8192).to(torch.bfloat16)",
    )
    candidate = propose(text, "triton", products=products, blocks="4")
    assert ("def block_of_rows" in candidate.source) == in_blocks
    assert ("tl.dot(" in candidate.source) == (products == "all")
