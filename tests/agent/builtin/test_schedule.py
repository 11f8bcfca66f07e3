"""Schedules: what is legal, and that every knob changes the code but not the result."""

from pathlib import Path

import pytest

from kernelwright.agent.builtin.schedule import GRAPH_KNOBS, KERNEL_KNOBS, Schedule, legal, up_to
from kernelwright.kernelbench.jit import compile_cpp
from kernelwright.kernelbench.jit.library import path_of
from kernelwright.profiling.static.x86 import functions, mixes
from tests.helpers.builtin.proving import propose, prove, source

NORM = source(
    "return F.gelu(self.norm(self.linear(x)))",
    "torch.randn(300, 64)",
    init="self.linear = nn.Linear(64, 512); self.norm = nn.LayerNorm(512)",
)
SOFTMAX = source("return torch.softmax(torch.tanh(x) * 3, dim=-1)", "torch.randn(300, 1024)")
MODEST = source("return torch.relu(x) * 2", "torch.randn(60, 1024)")
COLUMNS = source("return torch.softmax(x, dim=1)", "torch.randn(3, 40, 700)")
ROWS = source("return torch.softmax(x, -1)", "torch.randn(3, 140001)")
LONG = source("return x.mean(0) + 1, x.amax(0)", "torch.randn(1501, 70)")

IMAGES = source(
    "return F.relu(self.conv(x)) * 2", "torch.randn(2, 16, 7, 9)", init="self.conv = nn.Conv2d(16, 16, 3)"
)

POOLED = source("return F.relu(F.max_pool2d(x, 3, 2, 1)) * 2", "torch.randn(2, 6, 17, 19)")
FEW = source("return F.relu(self.linear(x))", "torch.randn(3, 600)", init="self.linear = nn.Linear(600, 500)")
ROUTED = source("values, places = x.topk(2); return F.softmax(values, -1), places", "torch.randn(300, 64)")
ATTENTION = source(
    "return torch.softmax(x @ y.mT + m, -1) @ z",
    "torch.randn(2, 3, 40, 16), torch.randn(2, 3, 50, 16), torch.randn(2, 3, 50, 16), torch.randn(40, 50)",
    arguments="x, y, z, m",
)

HEAD_AND_LOSS = source(
    "return F.cross_entropy(self.head(x), y)",
    "torch.randn(600, 24), torch.randint(5000, (600,))",
    "self.head = nn.Linear(24, 5000)",
    "x, y",
)
CASES = [
    (POOLED, "windows", "library"),
    (FEW, "products", "library"),
    (ROUTED, "topk", "library"),
    (HEAD_AND_LOSS, "blocks", "4"),
    (ATTENTION, "attention", "apart"),
    (IMAGES, "layout", "channels_last"),
    (SOFTMAX, "fuse", "apart"),
    (SOFTMAX, "vector", "256"),
    (SOFTMAX, "unroll", "on"),
    (SOFTMAX, "k0.block", "128"),
    (SOFTMAX, "k0.streaming", "on"),
    (SOFTMAX, "k0.prefetch", "off"),
    (MODEST, "k0.threads", "1"),
    (SOFTMAX, "k0.keep", "off"),
    (NORM, "k0.in_place", "off"),
    (COLUMNS, "k0.block", "512"),
    (COLUMNS, "k0.keep", "off"),
    (LONG, "k0.parts", "off"),
    (ROWS, "k0.online", "off"),
]


@pytest.mark.parametrize(("text", "knob", "value"), CASES)
def test_a_move_changes_the_source_and_not_the_result(
    text: str, knob: str, value: str, tmp_path: Path
) -> None:
    before = propose(text)
    assert before.schedule[knob] != value
    after = prove(text, tmp_path, **{knob.replace(".", "__"): value})
    assert after.schedule[knob] == value
    assert after.source.split("import torch", 1)[1] != before.source.split("import torch", 1)[1]


ALIGNED, ODD = "torch.randn(2, 16, 9, 9)", "torch.randn(2, 24, 9, 9)"
LAYOUTS = [
    ("return F.relu(self.conv(x))", ALIGNED, "self.conv = nn.Conv2d(16, 16, 3)", "contiguous"),
    ("return F.relu(self.conv(x))", ODD, "self.conv = nn.Conv2d(24, 16, 3)", "channels_last"),
    ("return F.relu(self.conv(x))", ALIGNED, "self.conv = nn.ConvTranspose2d(16, 16, 3)", "channels_last"),
    ("return self.conv(F.relu(self.conv(x)))", ALIGNED, "self.conv = nn.Conv2d(16, 16, 3)", "channels_last"),
    ("return F.relu(self.conv(self.conv(x[0])))", ALIGNED, "self.conv = nn.ConvTranspose2d(16, 16, 3)", None),
]


@pytest.mark.parametrize(("forward", "images", "init", "wanted"), LAYOUTS)
def test_images_begin_in_the_layout_that_costs_less(
    forward: str, images: str, init: str, wanted: str | None
) -> None:
    text = source(forward, images, init=init)
    assert propose(text).schedule.get("layout") == wanted
    if wanted is not None:
        assert propose(text, "triton").schedule["layout"] == "contiguous"  # where nothing was measured


def test_the_parts_of_a_model_have_one_layout() -> None:
    text = source(
        "x = self.up(x)\n        if x.sum() > 1e9:\n            x = x * 2\n        return self.down(x)",
        ALIGNED,
        init="self.up = nn.Sequential(nn.ConvTranspose2d(16, 16, 3), nn.ReLU()); "
        "self.down = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU())",
    )
    first = propose(text)
    again = propose(text, layout=first.schedule["layout"])
    assert (again.source, again.schedule) == (first.source, first.schedule)


@pytest.mark.parametrize(("forward", "wanted"), [("x * 2", "on"), ("(x * 2) @ x.mT", "off")])
def test_what_is_read_again_at_once_is_not_stored_past_the_caches(forward: str, wanted: str) -> None:
    assert propose(source(f"return {forward}", "torch.randn(2200, 2048)")).schedule["k0.streaming"] == wanted


def test_values_beyond_what_there_is_are_no_alternatives() -> None:
    first = propose(SOFTMAX)
    assert first.alternatives == {"k0.block": ("64", "128", "256", "512", "1024")}
    assert first.schedule["k0.block"] == "1024"
    assert propose(SOFTMAX, k0__block="16384").source == first.source
    assert len({propose(SOFTMAX, k0__block=block).source for block in first.alternatives["k0.block"]}) == 5


def test_a_knob_with_one_value_is_none() -> None:
    schedule = propose(source("return torch.relu(x).sum(1)", "torch.randn(3, 40, 60)")).schedule
    assert "k0.block" not in schedule


def test_the_kernels_of_a_schedule_are_named() -> None:
    inputs = "torch.randn(300, 70), torch.randn(90, 700)"
    found = propose(source("return torch.softmax(x, 0), F.gelu(y)", inputs, arguments="x, y"))
    numbers = {knob.partition(".")[0] for knob in found.schedule if "." in knob}
    assert numbers <= {f"k{number}" for number in range(len(found.kernels))} and len(found.kernels) == 2
    assert all(f"void {kernel}(" in found.source for kernel in found.kernels)


def test_up_to_what_there_is() -> None:
    assert up_to("k0.rows", 5) == ("1", "2", "4", "8")
    assert up_to("k0.rows", 8) == ("1", "2", "4", "8")
    assert up_to("k0.block", 1) == ("64",)
    assert up_to("k0.block", 1 << 20) == legal("k0.block")


def test_every_knob_has_a_case() -> None:
    of_gpus = {"rows", "warps", "split", "tile", "across", "stages", "group", "precision"}
    elsewhere = of_gpus | {"kernels", "gemm"}  # and the next test, and of CPUs with tiles
    assert {knob.rpartition(".")[2] for _, knob, _ in CASES} | elsewhere == {*GRAPH_KNOBS, *KERNEL_KNOBS}


def test_the_reference_may_be_submitted_as_it_is() -> None:
    candidate = propose(SOFTMAX, kernels="none")
    assert candidate.language == "torch" and candidate.schedule == {"kernels": "none"}
    assert candidate.source.startswith('"""The reference unchanged: kernels of our own were slower."""')


def test_a_schedule_survives_the_round_trip() -> None:
    values = {"fuse": "apart", "k3.block": "64"}
    assert Schedule.from_dict(values).to_dict() == values


@pytest.mark.parametrize(
    ("knob", "value"), [("k0.block", "7"), ("warp", "1"), ("k0.warps", "3"), ("fuse", "on")]
)
def test_an_illegal_schedule_is_refused_with_the_legal_values(knob: str, value: str) -> None:
    with pytest.raises(ValueError, match=legal(knob)[0] if legal(knob) else "no such knob"):
        Schedule.from_dict({knob: value})


def test_the_same_schedule_gives_the_same_file() -> None:
    assert (
        propose(SOFTMAX).source
        == propose(SOFTMAX, **{k.replace(".", "__"): v for k, v in propose(SOFTMAX).schedule.items()}).source
    )


@pytest.mark.parametrize(
    ("rows", "expression", "parallel"),
    [(1, "x + 1", False), (1000, "x + 1", True), (100, "x.exp().softmax(-1)", True)],
)
def test_threads_are_no_question_where_work_is_little_or_much(
    rows: int, expression: str, parallel: bool
) -> None:
    candidate = propose(source(f"return {expression}", f"torch.randn({rows}, 1024)"))
    assert "k0.threads" not in candidate.schedule
    assert ("#pragma omp parallel" in candidate.source) is parallel


def test_blocks_that_fill_a_row_have_no_rest() -> None:
    assert "std::min" not in propose(source("return x + 1", "torch.randn(64, 1024)")).source
    assert "std::min" in propose(source("return x + 1", "torch.randn(64, 1025)")).source
    assert "std::min" not in propose(SOFTMAX, k0__block="256").source
    assert "std::min" in propose(SOFTMAX.replace("1024", "1000"), k0__block="256").source


def test_prefetching_does_not_keep_loops_from_being_vectorized(tmp_path: Path) -> None:
    """As it did with g++ 12 where rows are two blocks between bursts: 4 times slower."""
    text = propose(source("return x.var(dim=-1)", "torch.randn(300, 512)"), k0__prefetch="on").source
    code = text.split('r"""')[1].split('"""')[0]
    library = path_of(compile_cpp(code))
    [mix] = [mix for mix in mixes(functions(library)) if mix.kernel == "variance_rows"]
    assert mix.prefetches > 0 and mix.packed_share is not None and mix.packed_share > 0.5
