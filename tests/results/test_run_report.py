"""What a report says, in each of its formats."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from kernelwright.kernelbench.errors import KernelwrightError, StorageError
from kernelwright.kernelbench.evaluator.workloads import combined
from kernelwright.kernelbench.records import Fingerprint, Interval, Size, Task, Verdict
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.diagnosis import diagnose
from kernelwright.profiling.records import Profile, RungOutcome
from kernelwright.results import cli as results_cli
from kernelwright.results import formatting
from kernelwright.results.report import round_text
from kernelwright.results.report.contents import RunReport
from kernelwright.results.report.formats import TEXTS, ReportFormat, render, table
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.summary import summarize
from tests.helpers.results import run_factory
from tests.helpers.results.page import Page
from tests.helpers.results.run_factory import TARGET, candidate, interval, llm_call, new_run, task


def shown(database: RunDatabase, format: ReportFormat) -> str:
    return render(RunReport.read(database), format)


@pytest.mark.parametrize("format", [ReportFormat.table, ReportFormat.md])
def test_people_read_the_same_facts_everywhere(example: RunDatabase, format: ReportFormat) -> None:
    text = shown(example, format)
    softmax, *_ = (line for line in text.splitlines() if "builtin:level1/softmax" in line)
    speedups = "4.00× [3.92, 4.08]", "2.00× [1.96, 2.04]"
    for fact in ("correct", *speedups, "97%", "0.89", "25 µs", "rounds used up"):
        assert fact in softmax
    relu, *_ = (line for line in text.splitlines() if "builtin:level1/relu" in line)
    assert "≈1 [0.970, 1.040]" in relu  # its median is 1.01
    matmul, *_ = (line for line in text.splitlines() if "builtin:level1/matmul" in line)
    assert "reference (by eager)" in matmul and matmul.count("reference") == 3 and "0.50×" not in matmul
    assert text.index("2 of 6 faster than eager, 1 not distinguishable") < text.index("builtin:level1")
    (overall,) = (line for line in text.splitlines() if "all tasks" in line and "4/6" in line)
    means = "1.69× · 2.00× · 1.50× (n=4)", "1.00× · 1.17× · 1.00× (n=3)"
    for fact in ("33%", "17%", *means, "0.73 (n=3)"):
        assert fact in overall
    for fact in ("Testium 9000", "g++ 12.2.0", "landlock (this kernel lacks it)", "cold", "2.9.0"):
        assert fact in text
    assert "kernelwright run --suite builtin --rounds 3" in text
    apart = text.index("builtin:level2/always_zero")
    assert text.index("measure nothing (counted apart)") < apart
    assert "the output is constant" in text[apart:]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_terminal_shows_whole_words(example: RunDatabase, width: int) -> None:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(table(RunReport.read(example), width))
    assert isinstance(screen.file, io.StringIO)
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    softmax = next(line for line in lines if "level1/softmax" in line)
    assert "4.00× [3.92, 4.08]" in softmax and "2.00× [1.96, 2.04]" in softmax and "25 µs" in softmax
    assert "0.89" in softmax.split() and "0.73 (n=3)" in "\n".join(lines)
    assert any("level1/conv" in line and "build_error" in line for line in lines)
    assert any("rounds used up" in line for line in lines)
    overall = next(line for line in lines if "all tasks" in line)
    assert "1.69×" in overall and overall.count("(n=4)") == 2 and "33%" in overall


@pytest.fixture
def several() -> Task:
    """A task of a size that is called nine times, one that is called once, and a hidden one."""
    rows = (("64", 9.0, False), ("1024", 1.0, False), ("7", 1.0, True))
    sizes = tuple(Size(constants={"rows": n}, weight=w, hidden=h) for n, w, h in rows)
    return task("softmax").model_copy(update={"workload": sizes})


@pytest.mark.parametrize("format", [ReportFormat.table, ReportFormat.md, ReportFormat.html])
def test_a_task_of_several_sizes_has_a_table_of_them(
    database: RunDatabase, several: Task, format: ReportFormat
) -> None:
    database.add_task(several)
    each = [run_factory.evaluation(several, candidate(1), eager=over) for over in (4.0, 2.0, 1.0)]
    found = combined(several, each)
    database.record_attempt(several.id, 0, candidate(1), None, found, None)
    text = shown(database, format)
    assert found.speedup is not None and found.speedup.eager is not None
    assert (
        formatting.with_bounds(found.speedup.eager).partition(" ")[0] in text
    )  # (9 + 1 + 1) x 100 µs / 375 µs
    assert found.speedup.eager.median == pytest.approx(1100 / 375)
    table = text[text.index("by size") :] if format is not ReportFormat.table else text
    for fact in ("rows=64", "rows=1024", "rows=7 (hidden)", "25 µs", "4.00×", "2.00×"):
        assert fact in table
    (row,) = summarize(database).tasks
    assert [str(result.size) for result in row.sizes] == ["rows=64", "rows=1024", "rows=7"]


@pytest.mark.parametrize("format", [ReportFormat.table, ReportFormat.md, ReportFormat.html])
@pytest.mark.parametrize(
    ("floor", "cell"),
    [(20.0, "0.94"), (24.0, "0.99"), (30.0, ">1"), (None, "—")],  # of a kernel of 25 µs; eager takes 100
)
def test_a_time_below_the_floor_is_marked_and_an_unknown_floor_is_blank(
    database: RunDatabase, format: ReportFormat, floor: float | None, cell: str
) -> None:
    database.add_task(task("softmax"))
    found = run_factory.evaluation(task("softmax"), candidate(1), eager=4.0, floor=floor)
    database.record_attempt(task("softmax").id, 0, candidate(1), None, found, None)
    text = shown(database, format)
    if format is ReportFormat.html:
        rows = text[text.index("<h2>Tasks") : text.index("<h2>Aggregates")]
        cells = re.findall(r'<td class="number" data-value="[^"]*">([^<]*)</td>', rows)
        assert cells[:3] == ["97%", cell.replace(">", "&gt;"), "25 µs"]
    else:
        row = next(line for line in text.splitlines() if "builtin:level1/softmax" in line)
        assert f" {cell} " in row[row.index("97%") : row.index("25 µs")]


@pytest.mark.parametrize("width", [160, 170, 180])
def test_a_wide_terminal_cuts_no_word_off(example: RunDatabase, width: int) -> None:
    """Stop reasons are there beside a long name, too, which is folded."""
    example.add_task(task("a_name_of_more_letters_than_there_is_room_for"))
    screen = Console(file=io.StringIO(), width=width)
    screen.print(table(RunReport.read(example), width))
    assert isinstance(screen.file, io.StringIO)
    text = screen.file.getvalue()
    assert "builtin:level1/a_name_of_more_lett" in text and "ers_than_there_is_room_for" in text
    words = text[: text.index("aggregates")].split()
    assert words.count("rounds") == 6 and words.count("used") == words.count("up") == 5
    assert words.count("running") == words.count("interrupted") == 2


def test_a_round_says_what_failed_at_a_hidden_size(database: RunDatabase, several: Task) -> None:
    database.add_task(several)
    wrong = run_factory.evaluation(
        several, candidate(1), Verdict.wrong_output, reason="shape (7, 8) is wrong"
    )
    right = run_factory.evaluation(several, candidate(1), eager=2.0)
    found = combined(several, [right, right, wrong])
    assert "(7, 8)" not in found.reason
    database.record_attempt(several.id, 0, candidate(1), None, found, None)
    said = round_text.render(RunReport.read(database), several.id, 0, ReportFormat.md)
    assert "at rows=64, weight 9: 50 µs a call, 2.00× [1.96, 2.04] vs eager" in said
    assert "at rows=7 (hidden), weight 1: wrong output" in said and "shape (7, 8) is wrong" in said
    assert [each.verdict for each in summarize(database).tasks[0].sizes][-1] is Verdict.wrong_output


def test_a_run_keeps_the_sizes_of_its_tasks(database: RunDatabase, several: Task) -> None:
    database.add_task(several)
    database.add_task(task("relu"))
    assert [entry.task for entry in database.tasks()] == [several, task("relu")]
    assert "sizes" not in json.loads(summarize(database).model_dump_json())["tasks"][1]


def test_a_speedup_by_nobody_s_kernels_is_not_shown_as_one(database: RunDatabase) -> None:
    database.add_task(task("relu"))
    of = run_factory.evaluation(task("relu"), candidate(1), eager=2.0)
    database.record_attempt(
        task("relu").id, 0, candidate(1), None, of.model_copy(update={"own_kernel_share": 0.0}), None
    )
    assert "1 faster without known kernels of its own" in shown(database, ReportFormat.md)
    html = shown(database, ReportFormat.html)
    groups = [attributes["class"] for tag, attributes in Page(html).tags if tag == "g"]
    assert groups == ["bar even"]
    table_of_tasks = html[html.index("<h2>Tasks") : html.index("<h2>Aggregates")]
    assert "2.00×" in table_of_tasks and 'class="faster"' not in table_of_tasks


def test_markdown_tables_have_as_many_cells_as_headings(example: RunDatabase) -> None:
    odd = task("a|b")
    example.add_task(odd)
    example.finish_task(odd.id, "stopped\nby | hand")
    for block in shown(example, ReportFormat.md).split("\n\n"):
        if block.startswith("|"):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1, block


def test_csv_has_raw_numbers_and_leaves_the_unknown_empty(example: RunDatabase) -> None:
    example.record_llm_call(llm_call("builtin:level1/softmax", None))
    rows = {row["task"]: row for row in csv.DictReader(io.StringIO(shown(example, ReportFormat.csv)))}
    assert len(rows) == 7
    softmax, conv = rows["builtin:level1/softmax"], rows["builtin:level1/conv"]
    assert [float(softmax[f"speedup_eager_{bound}"]) for bound in ("median", "low", "high")] == [
        4.0,
        3.92,
        4.08,
    ]
    assert (float(softmax["candidate_us_median"]), softmax["candidate"]) == (25.0, candidate(77).sha256)
    assert float(softmax["floor_us"]) == 15.0
    assert float(softmax["speed_of_light_score"]) == pytest.approx(85 / 95)
    assert (conv["floor_us"], conv["speed_of_light_score"]) == ("", "")
    assert (softmax["usd"], conv["usd"]) == ("", "0.0")
    assert (conv["verdict"], conv["speedup_eager_median"], conv["measures_nothing"]) == (
        "build_error",
        "",
        "false",
    )
    assert rows["builtin:level2/always_zero"]["measures_nothing"] == "true"


def test_json_is_the_summary_with_its_run(example: RunDatabase) -> None:
    content = json.loads(shown(example, ReportFormat.json))
    assert content.pop("run")["target"]["fingerprint"]["chip"] == "Testium 9000"
    assert content == json.loads(summarize(example).model_dump_json())


def test_the_page_is_whole_and_asks_nothing_of_the_network(example: RunDatabase) -> None:
    page = Page(shown(example, ReportFormat.html))
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    style = "".join(page.text["style"])
    assert "url(" not in style and "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_the_page_links_each_task_to_its_rounds(example: RunDatabase) -> None:
    page = Page(shown(example, ReportFormat.html))
    details = {attributes["id"] for tag, attributes in page.tags if tag == "details" and "id" in attributes}
    assert len(details) == 7
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert {str(link).removeprefix("#").replace("%3A", ":") for link in links} == details


def test_the_page_sets_the_predicted_gain_against_the_measured(example: RunDatabase) -> None:
    html = shown(example, ReportFormat.html)
    softmax = html[html.index('<details id="builtin:level1/softmax"') :]
    best = softmax[softmax.index('<tr class="best">') :].split("</tr>")[0]
    assert "fuse the epilogue" in best
    # Predicted 1.4; from its parent's 50 µs to 25 µs.
    assert '25 µs<div class="bounds">SOL 0.89</div>' in best
    assert re.findall(r'<td class="number">([\d.]+×)</td>', best) == ["1.40×", "2.00×"]


def test_the_page_shows_what_profilers_read_of_the_best_kernel(database: RunDatabase) -> None:
    softmax, best = task("softmax"), candidate(1)
    database.add_task(softmax)
    counted = (metric("dram_throughput", 0.41, "softmax<k>"), metric("sm_throughput", 0.2, "softmax<k>"))
    found = Profile(metrics=(*counted, metric("memory_throughput", 0.41, "softmax<k>")), bottleneck="memory",
                    speed_of_light=0.4)  # fmt: skip
    evaluation = run_factory.evaluation(softmax, best, eager=2.0)
    rungs = (RungOutcome(name="cupti", on=False, why="CUPTI recorded nothing", seconds=3.4),)
    found = found.model_copy(update={"findings": diagnose(found, evaluation), "rungs": rungs})
    database.record_attempt(softmax.id, 0, best, None, evaluation, found)
    html = shown(database, ReportFormat.html)
    shown_profile = html[html.index("Profile of the best kernel") :]
    assert "40% of what the roofline allows" in shown_profile
    assert "keeps memory 41% and the multiprocessors 20% busy: it is bound by latency." in shown_profile
    row = re.search(r"<tr><td class=\"metric\">dram_throughput</td>(.*?)</tr>", shown_profile)
    assert row is not None and re.sub("<[^>]+>", " ", row[1]).split()[:2] == ["41%", "higher"]
    assert "share of the peak bandwidth of device memory" in row[1]
    assert "<strong>cupti</strong> off: CUPTI recorded nothing (3.4 s)" in shown_profile
    assert "softmax<k>" not in html and "softmax?k?" in html


def test_the_page_draws_each_measured_speedup_on_a_logarithmic_axis(example: RunDatabase) -> None:
    page = Page(shown(example, ReportFormat.html))
    bars = [attributes for tag, attributes in page.tags if tag == "rect"]
    widths = [float(str(bar["width"])) for bar in bars]
    assert len(bars) == 4  # the correct ones that count: 4.0, 2.0, 1.01, 1 for the reference
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.3)  # log 4 = 2 log 2
    assert widths[3] == 1  # a line
    groups = [str(attributes["class"]) for tag, attributes in page.tags if tag == "g"]
    assert groups == ["bar faster", "bar faster", "bar even", "bar even"]


def test_sources_and_messages_cannot_change_the_page(database: RunDatabase) -> None:
    hostile = candidate(1).model_copy(update={"source": "</pre><script>steal()</script>"})
    softmax = task("<img src=x>")
    database.add_task(softmax)
    run_factory.attempt(database, softmax, 1, eager=2.0, of=hostile)
    html = shown(database, ReportFormat.html)
    page = Page(html)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "steal()" not in "".join(page.text["script"])
    assert "</pre><script>steal()</script>" in "".join(page.text["code"])


@pytest.mark.parametrize("format", TEXTS)
def test_a_run_that_has_only_begun_can_be_shown(database: RunDatabase, format: ReportFormat) -> None:
    assert shown(database, format)
    database.add_task(task("softmax"))
    assert "softmax" in shown(database, format)


def test_evaluations_of_another_machine_are_pointed_out(example: RunDatabase) -> None:
    report = RunReport.read(example)
    assert "attention" not in dict(report.conditions())
    other: Fingerprint = TARGET.fingerprint.model_copy(update={"chip": "Elsewhere"})
    moved = report.run.model_copy(
        update={"target": report.run.target.model_copy(update={"fingerprint": other})}
    )
    resumed = RunReport(moved, report.summary, report.tasks, report.attempts)
    assert dict(resumed.conditions())["attention"].startswith("9 evaluations")


def test_constants_that_are_set_are_said(database: RunDatabase) -> None:
    database.add_task(task("relu"))
    assert "constants" not in dict(RunReport.read(database).conditions())
    database.add_task(task("softmax").model_copy(update={"overrides": {"batch_size": "16384"}}))
    said = dict(RunReport.read(database).conditions())["constants"]
    assert said == "set in 1 of 2 tasks: builtin:level1/softmax batch_size=16384"


@pytest.mark.parametrize(
    ("speedup", "kind", "said"),
    [
        (interval(1.92), "faster", "1.92× [1.88, 1.96]"),
        (Interval(median=1.03, low=0.99, high=1.05), "even", "≈1 [0.990, 1.050]"),
        (Interval(median=1.004, low=1.001, high=1.006), "faster", "1.004× [1.001, 1.006]"),
        (Interval(median=1.5, low=0.7, high=1.9), "even", "≈1 [0.70, 1.90]"),
        (interval(0.5), "slower", "0.50× [0.49, 0.51]"),
        (interval(0.01), "slower", "0.01× [0.0098, 0.01]"),
        (interval(123.0), "faster", "123× [121, 125]"),
        (None, "none", "—"),
    ],
)
def test_a_speedup_whose_interval_covers_1_is_none(
    speedup: Interval | None, kind: formatting.Kind, said: str
) -> None:
    assert formatting.kind(speedup) == kind
    assert formatting.with_bounds(speedup) == said


def test_units_follow_the_size() -> None:
    assert [formatting.time(us) for us in (0.111, 25.0, 456.7, 1234.0, 2.5e6, None)] == [
        "0.111 µs",
        "25 µs",
        "457 µs",
        "1.23 ms",
        "2.5 s",
        "—",
    ]
    assert [formatting.money(usd) for usd in (None, 0.0, 0.0123, 1.5)] == [
        "unknown",
        "$0.00",
        "$0.0123",
        "$1.50",
    ]
    assert [formatting.duration(s) for s in (3.5, 42, 720, 12000)] == [
        "3.5 s",
        "42 s",
        "12 min",
        "3 h 20 min",
    ]


@pytest.fixture
def front_door() -> typer.Typer:
    app = typer.Typer()
    app.command("report")(results_cli.report)
    app.command("other")(lambda: None)
    return app


@pytest.mark.parametrize("format", TEXTS)
def test_the_command_prints_a_folder_or_a_url(
    tmp_path: Path, front_door: typer.Typer, format: ReportFormat
) -> None:
    with new_run(tmp_path) as database:
        run_factory.record_example(database)
    for run in (str(tmp_path), f"sqlite:///{tmp_path}/run.db"):
        done = CliRunner().invoke(front_door, ["report", run, "--format", format])
        assert done.exit_code == 0, done.output
        assert "builtin:level1/softmax" in done.stdout
        if format == ReportFormat.json:
            assert json.loads(done.stdout)["correct"] == 4


def test_the_command_writes_a_file(tmp_path: Path, front_door: typer.Typer) -> None:
    with new_run(tmp_path) as database:
        run_factory.record_example(database)
    output = tmp_path / "out" / "report.md"
    arguments = ["report", str(tmp_path), "--format", "md", "--output", str(output)]
    done = CliRunner().invoke(front_door, arguments)
    assert (done.exit_code, done.stdout) == (0, "")
    assert output.read_text().startswith("# kernelwright run")


@pytest.mark.parametrize("format", [ReportFormat.table, ReportFormat.md, ReportFormat.html])
def test_a_baseline_that_was_not_available_is_named_with_its_reason(
    database: RunDatabase, format: ReportFormat
) -> None:
    database.add_task(task("relu"))
    of = run_factory.evaluation(task("relu"), candidate(1), eager=2.0)
    assert of.timing is not None
    why = "compiling took longer than 60 s\nand a traceback"
    timing = of.timing.model_copy(update={"failed_baselines": {"max-autotune": why}})
    evaluation = of.model_copy(update={"timing": timing})
    assert "not available" not in shown(database, format)
    database.record_attempt(task("relu").id, 0, candidate(1), None, evaluation, None)
    text = shown(database, format)
    assert "not available" in text and "max-autotune" in text
    assert "compiling took longer than 60 s and a traceback" in text


@pytest.mark.parametrize("format", [ReportFormat.table, ReportFormat.md, ReportFormat.html])
def test_a_baseline_that_is_faster_for_certain_is_what_to_hand_in(
    database: RunDatabase, format: ReportFormat
) -> None:
    for name, number, fastest in (("relu", 1, 0.99), ("softmax", 2, 0.8)):
        database.add_task(task(name))
        of = run_factory.evaluation(task(name), candidate(number), eager=1.2)
        assert of.timing is not None and of.speedup is not None
        timing = of.timing.model_copy(update={"compile_us": interval(0.8 * of.timing.candidate_us.median)})
        low = fastest if name == "softmax" else 0.9
        speedup = of.speedup.model_copy(
            update={"compile": Interval(median=fastest, low=low - 0.01, high=fastest + 0.02)}
        )
        evaluation = of.model_copy(update={"timing": timing, "speedup": speedup})
        database.record_attempt(task(name).id, 0, candidate(number), None, evaluation, None)
    text = " ".join(shown(database, format).split())  # a title may take two lines
    told = (
        text[text.lower().index("tasks on which a baseline is faster") :]
        .split("nvironment")[0]
        .split("</table>")[0]
    )
    assert "level1/softmax" in told and "torch.compile" in told and "0.80×" in told
    assert "level1/relu" not in told  # 1 is in its interval


def test_the_command_leaves_errors_to_the_front_door(tmp_path: Path, front_door: typer.Typer) -> None:
    failed = CliRunner().invoke(front_door, ["report", str(tmp_path / "nothing")])
    assert isinstance(failed.exception, KernelwrightError)
    new_run(tmp_path).close()
    in_the_way = tmp_path / "run.db" / "report.md"
    failed = CliRunner().invoke(front_door, ["report", str(tmp_path), "--output", str(in_the_way)])
    assert isinstance(failed.exception, StorageError)
    assert "choose another --output" in failed.exception.fix
