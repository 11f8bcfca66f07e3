"""The rounds of a task in full, and where a run's money and time went."""

import hashlib
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kernelwright.cli import app
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Advice, Candidate, Task, Verdict
from kernelwright.results.lessons import lessons
from kernelwright.results.report.contents import RunReport
from kernelwright.results.report.formats import ReportFormat, plain_table, render
from kernelwright.results.report.round_text import render as render_rounds
from kernelwright.results.report.round_text import table
from kernelwright.results.report.rounds import named, rounds
from kernelwright.results.report.spending import progress, spending_tables
from kernelwright.results.report.tables import ReportTable
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import LlmCall
from tests.helpers.results.page import Page
from tests.helpers.results.run_factory import ADVICE, PROFILE, candidate, evaluation, interval, task

SOFTMAX, RELU = task("softmax"), task("relu")
SYSTEM = {"role": "system", "content": "You write kernels; rules <above> all."}
FIX = Advice(bottleneck="a typo", method="the name is wrong", plan='write "lib.f"', predicted_gain=1.0)


def asked(
    of: Task, role: str, sample: int, text: str, usd: float = 0.01, *turns: str, error: str = ""
) -> LlmCall:
    """A call of a round; `turns`: what was said before, the user first."""
    said = [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    response = (
        {"error": error, "message": text} if error else {"text": text, "reasoning": f"thought of {text}"}
    )
    return LlmCall(
        task=of.id,
        role=role,
        model="m",
        request_sha256=hashlib.sha256(json.dumps([role, sample, said]).encode()).hexdigest(),
        request={"messages": [SYSTEM, *said], "sample": sample},
        response=response,
        prompt_tokens=100,
        completion_tokens=50,
        usd=usd,
        seconds=2.0,
    )


def made(number: int, parent: Candidate | None = None, idea: str = "") -> Candidate:
    found = candidate(number, () if parent is None else (parent.sha256,))
    return found.model_copy(update={"idea": idea, "author": "llm:m"})


@pytest.fixture
def searched(database: RunDatabase) -> RunDatabase:
    """Softmax: a build error, its fix at 2x, 1.5x from advice, then 2x again; relu: nothing but an error."""
    broken = made(0)
    fixed, slower = made(1, broken, "one pass"), made(2, made(1, broken))
    for one in (SOFTMAX, RELU):
        database.add_task(one)
    first = asked(SOFTMAX, "coder", 0, "prose", 0.01, "write it")
    again = asked(SOFTMAX, "coder", 0, "file 0", 0.02, "write it", "prose", "no file")
    for call in (first, again):
        database.record_llm_call(call)

    def attempt(number: int, of: Candidate, advice: Advice | None = None, **how: object) -> None:
        confirms = bool(how.pop("confirms", False))
        found = evaluation(SOFTMAX, of, **how)  # type: ignore[arg-type]
        profile = PROFILE if found.timing is not None else None
        database.record_attempt(SOFTMAX.id, number, of, advice, found, profile, confirms=confirms)

    attempt(0, broken, verdict=Verdict.build_error, reason="line 7: error: no 'f'")
    fix = json.dumps({"critical_issue": FIX.bottleneck, "minimal_fix": FIX.plan})
    database.record_llm_call(asked(SOFTMAX, "judge", 1, fix, 0.04, "what is wrong?"))
    database.record_llm_call(asked(SOFTMAX, "coder", 1, "file 1", 0.08, "mend it"))
    database.record_llm_call(asked(RELU, "coder", 0, "busy", 0.0, "write it", error="ModelAbsent"))
    attempt(1, fixed, FIX, eager=2.0)
    database.record_llm_call(asked(SOFTMAX, "judge", 2, json.dumps({"plan": ADVICE.plan}), 0.16, "and now?"))
    database.record_llm_call(asked(SOFTMAX, "coder", 2, "file 2", 0.32, "improve it"))
    attempt(2, slower, ADVICE, eager=1.5)
    attempt(3, fixed, eager=1.9, confirms=True)
    return database


def test_a_round_has_its_own_calls_its_parent_and_its_confirmation(searched: RunDatabase) -> None:
    calls = [call for call in searched.llm_calls() if call.task == SOFTMAX.id]
    first, second, third = rounds(searched.attempts(SOFTMAX.id), calls)
    assert [call.reply for call in first.calls] == ["prose", "file 0"]
    assert [call.repeats for call in first.calls] == [0, 2]  # the system prompt and the first request
    assert [call.role for call in second.calls] == ["judge", "coder"]
    assert second.idea == "one pass" and (second.parent, third.parent, first.parent) == (0, 1, None)
    assert "-# kernel 0" in second.diff and "+# kernel 1" in second.diff and first.diff == ""
    assert [again.speedup.eager.median for again in second.confirmations if again.speedup] == [1.9]
    assert (second.tokens, second.usd) == (300, pytest.approx(0.12))


def test_a_judge_s_call_belongs_to_the_round_that_follows_its_advice(database: RunDatabase) -> None:
    """Ask all judges of a generation of a beam before the first of its rounds."""
    database.add_task(SOFTMAX)
    plans = [ADVICE.model_copy(update={"plan": plan}) for plan in ("tile it", "unroll it — by 4")]
    for number, advice in enumerate([None, *plans]):
        of = made(number)
        found = evaluation(SOFTMAX, of, eager=2.0)
        database.record_attempt(SOFTMAX.id, number, of, advice, found, None)
    calls = [asked(SOFTMAX, "judge", 1, json.dumps({"plan": advice.plan})) for advice in plans]
    calls.append(asked(SOFTMAX, "judge", 1, "no JSON"))
    _, second, third = rounds(database.attempts(SOFTMAX.id), calls)
    assert len(second.calls) == 2 and second.calls[1].reply == "no JSON"
    assert [call.reply for call in third.calls] == [json.dumps({"plan": plans[1].plan})]


def test_calls_belong_to_the_attempts_that_name_them_beside_seeds_and_repairs(database: RunDatabase) -> None:
    """The sample of a call counts rounds, and attempts are seeds and repairs, too."""
    database.add_task(SOFTMAX)
    calls = [
        asked(SOFTMAX, "coder", 0, "file 1", 0.01, "write it"),
        asked(SOFTMAX, "coder", 0, "file 2", 0.02, "write it", "file 1", "it does not build"),
        asked(SOFTMAX, "coder", 1, "file 3", 0.04, "improve it"),
    ]
    first, second = (call.request_sha256 for call in calls[:2])
    made_by = [("seed", ""), ("round", first), ("repair", second), ("round", "")]
    for number, (origin, request) in enumerate(made_by):
        of = made(number).model_copy(update={"origin": origin, "request": request})
        database.record_attempt(SOFTMAX.id, number, of, None, evaluation(SOFTMAX, of, eager=2.0), None)
    found = rounds(database.attempts(SOFTMAX.id), calls)
    assert [[call.reply for call in each.calls] for each in found] == [[], ["file 1"], ["file 2"], ["file 3"]]


def test_dollars_are_counted_by_role_and_by_what_came_of_them(searched: RunDatabase) -> None:
    report = RunReport.read(searched)
    tables = {table.title: table for table in spending_tables(report.attempts, report.calls)}
    roles = {row[0]: row for row in tables["Models by role"].rows}
    assert roles["coder, m"] == ("coder, m", "5", "500", "250", "$0.43", "68%")
    assert roles["judge, m"][4:] == ("$0.20", "32%")
    outcomes = {row[0]: row[4] for row in tables["Models by outcome of the round"].rows}
    assert outcomes == {
        "correct, no gain": "$0.48",
        "correct, a new best": "$0.12",
        "build error": "$0.0300",
        "no answer": "$0.00",
    }
    [failure] = tables["Failures by kind"].rows
    assert failure == ("build error", "1", "1", "line N: error: no 'f'")
    stages = {row[0]: row[1] for row in tables["Time by stage"].rows}
    assert stages["time, of rounds"] == "6 s" and stages["time, of winners again"] == "2 s"
    assert stages["answers, coder"] == "10 s" and stages["answers, judge"] == "4 s"


def test_speedup_over_dollars_counts_the_calls_until_a_round_was_over(searched: RunDatabase) -> None:
    report = RunReport.read(searched)
    course = progress(report.attempts, report.calls)
    assert [state.usd for state in course] == pytest.approx([0.03, 0.15, 0.63])
    low = interval(2.0).low
    assert [state.speedup for state in course] == pytest.approx([1.0, low**0.5, low**0.5])  # of two tasks
    assert [state.faster for state in course] == [0, 1, 1]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_overview_fits_a_terminal(searched: RunDatabase, width: int) -> None:
    text = render_rounds(RunReport.read(searched), "softmax", None, ReportFormat.table, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    row = next(line for line in lines if "one pass" in line)
    assert "2.00× [1.96, 2.04]" in row and "$0.12" in row
    assert any(line.split()[:3] == ["1,", "again", "correct"] for line in lines)
    assert "--round 2" in text


def test_a_round_in_full_tells_everything_in_order(searched: RunDatabase) -> None:
    report = RunReport.read(searched)
    for format in (ReportFormat.table, ReportFormat.md):
        text = render_rounds(report, "softmax", 1, format)
        order = (
            "idea: one pass", "rules <above> all", "what is wrong?", "thought of", FIX.bottleneck, "mend it",
            "file 1", "diff to round 0", "+# kernel 1", "class ModelNew", "2.00× [1.96, 2.04] vs eager",
            "1.90×",
        )  # fmt: skip
        places = [text.index(order[0])]
        for words in order[1:]:
            places.append(text.index(words, places[-1]))
        assert places == sorted(places)
    found = json.loads(render_rounds(report, "softmax", 1, ReportFormat.json))
    assert found["calls"][1]["messages"][-1] == ["user", "mend it"] and found["parent"] == 0
    everything = json.loads(render_rounds(report, "softmax", None, ReportFormat.json))
    assert [each["round"] for each in everything["rounds"]] == [0, 1, 2]


def test_a_wrong_task_or_round_is_answered_with_those_there_are(searched: RunDatabase) -> None:
    known = ["builtin:level1/softmax", "builtin:level2/softmax", "builtin:level1/relu"]
    assert named("relu", known) == named("builtin:level1/relu", known) == known[2]
    assert named("level2/softmax", known) == known[1]
    with pytest.raises(UsageError, match=r"several tasks.*choose builtin:level1/softmax, builtin:level2"):
        named("softmax", known)
    with pytest.raises(UsageError, match=r"no task 'rellu'.*did you mean relu"):
        named("rellu", known)
    with pytest.raises(UsageError, match=r"no task 'zzz'.*its 3 tasks.*builtin:level1/softmax"):
        named("zzz", known)
    report = RunReport.read(searched)
    with pytest.raises(UsageError, match="no round 7 — give --round 0 to 2"):
        table(report, "softmax", 7)
    with pytest.raises(UsageError, match="no rounds yet"):
        table(report, "relu", 0)


def test_the_command_shows_a_round(searched: RunDatabase, tmp_path: Path) -> None:
    run = str(tmp_path)
    shown = CliRunner().invoke(app, ["report", run, "softmax", "--round", "2", "--format", "md"])
    assert shown.exit_code == 0 and "## diff to round 1" in shown.stdout
    for words, fault in (
        (["--round", "1"], "--round is of a task"),
        (["softmax", "--format", "csv"], "choose"),
    ):
        refused = CliRunner().invoke(app, ["report", run, *words])
        assert isinstance(refused.exception, UsageError) and fault in str(refused.exception)


def test_the_page_has_each_round_behind_a_fold(searched: RunDatabase) -> None:
    html = render(RunReport.read(searched), ReportFormat.html)
    page = Page(html)
    assert html.count('<details class="fold">') == 3
    assert "diff to round 0 · 2 calls · 300 tokens · $0.12" in html
    assert '<span class="added">+# kernel 1</span>' in html and "Idea: one pass" in html
    assert html.count("rules &lt;above&gt; all") == 1  # however many calls had it
    assert html.count('href="#system-prompt-1"') == 5 and html.count('id="system-prompt-1"') == 1
    assert "1, again" in html and "measured again" in html and "Bound by memory; 60% of" in html
    drawn = [attributes["aria-label"] for tag, attributes in page.tags if tag == "svg"]
    assert sum("over cost" in str(label) for label in drawn) == 2
    corrected = html[html.index("<strong>a typo</strong>") :]
    assert "1.00×" not in corrected[: corrected.index("fuse the epilogue")]


@pytest.mark.slow
def test_a_page_of_a_large_run_leaves_calls_out_and_says_where_they_are(
    database: RunDatabase, tmp_path: Path
) -> None:
    """As many prompts and answers as four tasks have in a long run."""
    database.add_task(SOFTMAX)
    parent: Candidate | None = None
    for number in range(160):
        source = "\n".join(f"# {line * number}" for line in range(600))
        of = made(number, parent).model_copy(update={"source": f"class ModelNew: ...\n{source}"})
        parent = of if number % 10 == 0 else parent
        database.record_attempt(
            SOFTMAX.id,
            number,
            of,
            None,
            evaluation(SOFTMAX, of, eager=1.0 if number > 79 else 1 + number / 100),
            None,
        )
        database.record_llm_call(asked(SOFTMAX, "coder", number, "answer " * 10_000, 0.1, "<prompt>" * 2_000))
    html = render(RunReport.read(database), ReportFormat.html)
    Page(html)
    assert 3e6 < len(html) < 10e6
    assert f"kernelwright report {tmp_path} {SOFTMAX.id} --round N<" in html
    best, other = (_row(html, number) for number in (79, 155))
    assert "answer answer" in best and "left out" not in best  # of the best one nothing is
    assert "answer answer" not in other and "1 call" in other


def _row(html: str, number: int) -> str:
    """A round in the table of its task, with its fold."""
    row = html[html.index(f'<td class="number">{number}</td>') :]
    return re.split(r'</tr>\n<tr(?! class="more)', row)[0]


@pytest.mark.parametrize("width", [80, 160])
def test_tables_of_many_columns_keep_their_words_and_all_columns(searched: RunDatabase, width: int) -> None:
    rows = [
        (
            "tile for a cache or shared memory",
            "cpp",
            "normalization, softmax",
            "5",
            "5",
            "0",
            "1.10×",
            "1.02, 1.20",
        )
    ]
    many = ReportTable("Gains", "", lessons.COLUMNS, rows)
    screen = Console(file=io.StringIO(), width=width)
    screen.print(plain_table(many))
    assert isinstance(screen.file, io.StringIO)
    drawn = screen.file.getvalue()
    assert max(map(len, drawn.splitlines())) <= width
    for word in " ".join(lessons.COLUMNS).split():
        assert word in drawn
    assert "1.20" in drawn and not many.of_text(3) and many.of_text(1) and many.of_text(2)
