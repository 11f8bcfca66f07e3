"""What is said of a metric: its name, value and unit, its better direction, its bound, what it tells."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from kernelwright.profiling.catalogue import CATALOGUE, metric
from kernelwright.profiling.diagnosis import diagnose
from kernelwright.profiling.page import show
from kernelwright.profiling.records import Metric, Profile, RungOutcome
from kernelwright.profiling.reference import reference
from kernelwright.profiling.tables import described, tables
from tests.helpers.profiling.evaluated import evaluation_of

COUNTED = (
    metric("launches", 2),
    metric("gpu_time", 47.2),
    metric("gpu_gaps", 3.1),
    metric("traced_share", 0.3, "norm"),
    metric("traced_share", 0.7, "softmax"),
    metric("dram_throughput", 0.41, "softmax"),
    metric("sm_throughput", 0.18, "softmax"),
    metric("memory_throughput", 0.41, "softmax"),
    metric("dram_throughput", 0.83, "norm"),
    metric("local_loads", 0, "softmax"),
)


def profile_of(*metrics: Metric) -> Profile:
    found = Profile(metrics=metrics, bottleneck="memory", speed_of_light=0.4)
    rungs = (RungOutcome(name="ncu", on=True, why="2 launches", seconds=7.25),)
    return found.model_copy(update={"findings": diagnose(found, evaluation_of()), "rungs": rungs})


def test_a_line_for_a_judge_says_what_a_metric_means_and_which_way_is_better() -> None:
    lines = described(COUNTED)
    assert (
        "dram_throughput of softmax = 0.41, of norm = 0.83 (ncu; higher is better, at most 1): DRAM throughput: "
        "share of the peak bandwidth of device memory; above 0.8 only fewer bytes help; below 0.6, with nothing "
        "else busy: bound by latency" in lines
    )
    assert any(
        line.startswith("gpu_time = 47.2 us (cupti; lower is better, at least memory_floor)")
        for line in lines
    )
    assert len(lines) == len({each.name for each in COUNTED})
    assert described([Metric(name="of_old", value=1.0, unit="us", provenance="perf")]) == [
        "of_old = 1 us (perf)"
    ]


def test_tables_have_the_kernels_that_take_longest_first() -> None:
    found = {table.title: table for table in tables(profile_of(*COUNTED))}
    assert list(found) == ["what matters", "the whole call", "on the GPU, in a call", "counted on the GPU"]
    counted = found["counted on the GPU"]
    assert counted.kernels == ("softmax", "norm")
    dram = next(row for row in counted.rows if row.name == "dram_throughput")
    assert (dram.values, dram.better) == (("41%", "83%"), "higher")
    loads = next(row for row in counted.rows if row.name == "local_loads")
    assert loads.values == ("0", "-") and loads.better == "lower"


def test_a_metric_of_an_older_version_has_a_value_and_no_meaning() -> None:
    old = Metric(name="of_old", value=4.2e6, unit="bytes", provenance="perf")
    [table] = tables(Profile(metrics=(old,), bottleneck="memory", speed_of_light=None))
    assert [(row.name, row.values, row.meaning) for row in table.rows] == [("of_old", ("4.2 Mbytes",), "")]


@pytest.mark.parametrize("width", [80, 160])
def test_a_terminal_has_room_for_the_kernels_it_shows(width: int) -> None:
    out = Console(width=width, highlight=False, file=io.StringIO())
    many = [metric("dram_throughput", 0.5, f"a_kernel_{number}") for number in range(7)]
    show(out, evaluation_of(), profile_of(*COUNTED, *many))
    assert isinstance(out.file, io.StringIO)
    text = out.file.getvalue()
    tables_of_it = text[text.index("what matters") : text.index("ncu: 2")]
    assert max(map(len, tables_of_it.splitlines())) <= width
    assert "dram_throughput" in text and "higher" in text and "see --json" in text and "(7.2 s)" in text


def test_every_metric_says_what_it_is() -> None:
    for name, known in CATALOGUE.items():
        assert known.meaning and "  " not in known.meaning, name
        assert known.better == "neither" or known.direction, name
        assert not isinstance(known.bound, str) or known.bound in CATALOGUE, name


def test_the_reference_of_metrics_is_that_of_the_catalogue() -> None:
    """Made again with `python -m kernelwright.profiling.reference > docs/metrics.md`."""
    assert (Path(__file__).parents[2] / "docs" / "metrics.md").read_text() == reference()
