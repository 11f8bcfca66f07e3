"""A run whose task is cut into parts: a scripted model over HTTP, and a stand-in for the evaluator."""

import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, Reply
from kernelwright.agent.parts.cutting import NotCut
from kernelwright.agent.parts.parts import _cut
from kernelwright.kernelbench.records import Candidate, Evaluation, PartOf, Task
from kernelwright.results.report.contents import RunReport
from kernelwright.results.report.formats import ReportFormat, render
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import TaskState
from kernelwright.results.summary import summarize
from tests.helpers.model_runs import KERNEL, Pool, carried_out, judged, says

SEED = Candidate(source=KERNEL.format("1.1"), language="cpp", author="builtin")
BLOCKS, HEAD = "file:0#blocks.0", "file:0#head"


class CutPool(Pool):
    """Cuts each whole into blocks of 60% and a head of 30%; has a seed for all; a whole is what it says."""

    def __init__(self, why_not: str = "", parts: int = 2) -> None:
        super().__init__()
        self.why_not, self.parts, self.cut = why_not, parts, list[str]()

    def ask(self, task: Task, do: Any, client: str) -> Future[Any]:
        found: Future[Any] = Future()
        if getattr(do, "func", None) is not _cut:
            found.set_result(SEED)
        elif self.why_not:
            found.set_exception(NotCut(self.why_not))
        else:
            self.cut.append(task.id)
            parts = [part(task, "blocks.0", 0.6, "blocks.1"), part(task, "head", 0.3)]
            found.set_result(parts[: self.parts])
        return found


def part(task: Task, path: str, share: float, *more: str) -> Task:
    places = ((path,), *((each,) for each in more))
    return Task(
        id=f"{task.id}#{path}", level=task.level, source=f"class Model:\n    '{path}'\n",
        part=PartOf(whole=task.id, places=places, share=share),
    )  # fmt: skip


class Writer:
    """Says what it has for a task, in turn; notes which tasks it was asked about."""

    def __init__(self, **replies: Sequence[float | str]) -> None:
        usual = {task: [n + i / 10 for i in range(40)] for task, n in ((BLOCKS, 2.0), (HEAD, 3.0))}
        self.replies = {"file:0": [f"wrong {n}" for n in range(40)], **usual} | {
            {"whole": "file:0", "blocks": BLOCKS, "head": HEAD}[name]: list(given)
            for name, given in replies.items()
        }
        self.asked: list[str] = []
        self.prompts: dict[str, str] = {}

    def __call__(self, body: dict[str, Any], number: int) -> Reply | ErrorResponse:
        system, user = (message["content"] for message in body["messages"][:2])
        if "`ModelNew`, which" not in system:
            return Reply(judged(user))
        [task] = re.findall(r"^# The task: (\S+)$", user, re.MULTILINE)
        self.asked.append(task)
        self.prompts.setdefault(task, user)
        said = self.replies[task].pop(0) if self.replies[task] else "wrong"
        return ErrorResponse(401, said) if said == "stop" else Reply(says(said))


def run(database: RunDatabase, endpoint: FakeEndpoint, pool: CutPool | None = None, **options: Any) -> bool:
    asked = {"seed": "builtin", "rounds": 1, "repairs": 0, "judge": "none", "at_once": 1}
    tasks = options.pop("tasks", 1)
    if not database.tasks():
        for number in range(tasks):
            source = f"class Model:\n    def forward(self, x):\n        return torch.softmax(x, {number})\n"
            database.add_task(Task(id=f"file:{number}", level=3, source=source))
    return carried_out(database, endpoint, 0, pool or CutPool(), **(asked | options))


def authors(database: RunDatabase, task: str) -> list[str]:
    return [attempt.candidate.author.partition(":")[0] for attempt in database.attempts(task)]


def test_parts_are_searched_first_and_the_whole_begins_with_what_they_came_to(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script, said = (writer := Writer()), list[str]()
    assert run(database, endpoint, said=said)
    assert said[0] == "file:0: cut into parts: #blocks.0 60%, #head 30% of its time"
    assert writer.asked == [BLOCKS, HEAD, "file:0"]
    assert authors(database, BLOCKS) == authors(database, HEAD) == ["builtin", "llm", "llm"]
    assert authors(database, "file:0") == ["parts", "builtin", "llm", "parts"]  # which wins
    together = database.attempts("file:0")[0].candidate
    assert together.origin == "seed" and together.language == "cpp"
    assert "(ModelNew_blocks_0, True, (('blocks.0',), ('blocks.1',)))" in together.source
    assert re.findall(r"speedup = (\S+)", together.source) == ["2.0", "3.0"]
    winners = [a.candidate.sha256 for part in (BLOCKS, HEAD) for a in database.attempts(part)[-1:]]
    assert list(together.parents) == winners
    assert together.source.strip() in writer.prompts["file:0"]


def test_parts_stand_under_their_whole_and_are_not_counted(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = Writer()
    assert run(database, endpoint, tasks=1)
    summary = summarize(database)
    assert (summary.total, summary.correct, [task.task for task in summary.tasks]) == (1, 1, ["file:0"])
    assert [part.task for part in summary.parts] == [BLOCKS, HEAD]
    assert summary.llm_calls == 3 and summary.seconds == sum(
        database.seconds(t) for t in ("file:0", BLOCKS, HEAD)
    )
    report = RunReport.read(database)
    rows = [
        line for line in render(report, ReportFormat.md).splitlines() if line.startswith(("| file", "| └"))
    ]
    assert [row.split("|")[1].strip() for row in rows] == [
        "file:0", "└ #blocks.0, 60% in 2 places", "└ #head, 30%"
    ]  # fmt: skip
    lines = render(report, ReportFormat.csv).splitlines()
    assert [line.rsplit(",", 1)[1] for line in lines] == ["part_of", "", "file:0", "file:0"]
    page = render(report, ReportFormat.html)
    assert page.index('id="file:0"') < page.index(f'id="{BLOCKS}"') < page.index(f'id="{HEAD}"')


def test_a_part_that_never_works_is_left_to_torch(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.script = Writer(blocks=["wrong"])
    assert run(database, endpoint, CutPool(), seed="none")
    [together, *_] = database.attempts("file:0")
    assert together.candidate.author == "parts"
    assert re.findall(r"speedup = (\S+)", together.candidate.source) == ["3.0"]
    assert "PARTS = (\n    (ModelNew_head, True, (('head',),)),\n)" in together.candidate.source


def test_without_any_gain_of_a_part_the_whole_is_searched_as_ever(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script = Writer(blocks=["wrong"], head=[0.9], whole=[1.5])
    assert run(database, endpoint, seed="none")
    assert authors(database, "file:0") == ["llm", "llm"]


@pytest.mark.parametrize(("level", "options"), [(1, {}), (2, {}), (3, {"parts": "none"})])
def test_small_tasks_are_not_cut_nor_any_where_that_is_not_wanted(
    endpoint: FakeEndpoint, database: RunDatabase, level: int, options: dict[str, str]
) -> None:
    database.add_task(Task(id="file:0", level=level, source="class Model: ...\n"))
    endpoint.script, pool = Writer(whole=[2.0]), CutPool()
    assert run(database, endpoint, pool, **options)
    assert pool.cut == [] and len(database.tasks()) == 1


@pytest.mark.parametrize(("parts", "cut"), [(2, True), (1, False)])
def test_a_file_of_the_user_s_is_cut_where_it_has_two_parts(
    endpoint: FakeEndpoint, database: RunDatabase, parts: int, cut: bool
) -> None:
    database.add_task(Task(id="file:0", level=0, source="class Model: ...\n"))
    endpoint.script = Writer(whole=[2.0])
    assert run(database, endpoint, CutPool(parts=parts))
    assert len(database.tasks()) == (3 if cut else 1)


def test_why_a_task_is_not_cut_is_said(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    endpoint.script, said = Writer(whole=[2.0]), list[str]()
    assert run(database, endpoint, CutPool("it has no submodules"), said=said)
    assert said[0] == "file:0: searched whole: it has no submodules"
    assert authors(database, "file:0")[:2] == ["builtin", "llm"]


@pytest.mark.parametrize("ended", [BLOCKS, HEAD, "file:0"])
def test_a_run_that_goes_on_asks_nothing_twice(
    endpoint: FakeEndpoint, database: RunDatabase, ended: str
) -> None:
    """The endpoint ends the run in each task's second round."""
    endpoint.script, pool = (writer := Writer()), CutPool()
    writer.replies[ended].insert(1, "stop")
    assert not run(database, endpoint, pool, rounds=2)
    assert any(entry.state is TaskState.pending for entry in database.tasks())
    assert run(database, endpoint, pool, rounds=2)
    tasks = (BLOCKS, HEAD, "file:0")
    assert Counter(writer.asked) == {task: 2 + (task == ended) for task in tasks}
    assert pool.cut == ["file:0"] and [entry.task.id for entry in database.tasks()] == [
        "file:0",
        BLOCKS,
        HEAD,
    ]
    assert all(entry.state is TaskState.done for entry in database.tasks())
    *_, winner = database.attempts("file:0")
    assert re.findall(r"speedup = (\S+)", winner.candidate.source) == ["2.1", "3.1"]


def test_what_parts_came_to_is_measured_though_all_money_is_spent(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    """Each call costs $0.0006; two calls are the whole budget."""
    endpoint.script, said = (writer := Writer()), list[str]()
    assert run(database, endpoint, said=said, max_usd=0.0012, rounds=3)
    assert writer.asked == [BLOCKS, HEAD]
    assert authors(database, "file:0") == ["parts", "builtin", "parts"]
    assert [entry.stop_reason for entry in database.tasks() if entry.task.id == "file:0"] == [
        "$0.0012 are spent"
    ]


def test_where_a_part_has_had_no_round_the_others_are_put_together_and_the_run_can_go_on(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    endpoint.script, said = (writer := Writer()), list[str]()
    assert not run(database, endpoint, said=said, max_usd=0.0005, seed="none")
    assert writer.asked == [BLOCKS] and f"file:0: left for --resume: {HEAD} must be done before it" in said
    assert authors(database, "file:0") == ["parts"]
    assert run(database, endpoint, max_usd=1.0, seed="none")
    assert writer.asked == [BLOCKS, HEAD, "file:0"]
    first, second, *_ = database.attempts("file:0")
    assert [a.candidate.source.count("speedup = ") for a in (first, second)] == [1, 2]


def test_a_task_and_its_parts_keep_to_the_limits_of_a_task(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    """0.75 of 20 evaluations are for the parts, 60% and 30% of these, and their winners count, too."""
    endpoint.script = Writer()
    assert run(database, endpoint, rounds=30, max_evaluations_per_task=20)
    had = database.evaluations()
    assert had[BLOCKS] == 9 and had[HEAD] == 4 and sum(had.values()) <= 20
    assert authors(database, "file:0")[0] == "parts" and authors(database, "file:0")[-1] == "parts"


def test_parts_get_money_in_proportion_to_their_time(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    """$0.02 for a task are 33 calls: 15 for the blocks, 7 for the head, and the rest for the whole."""
    endpoint.script = writer = Writer()
    assert run(database, endpoint, rounds=40, max_usd_per_task=0.02)
    calls = {task: writer.asked.count(task) for task in (BLOCKS, HEAD, "file:0")}
    assert calls[BLOCKS] == pytest.approx(15, abs=1) and calls[HEAD] == pytest.approx(7.5, abs=1)
    assert sum(calls.values()) == pytest.approx(33, abs=1)


def test_other_tasks_get_their_first_round_as_well(endpoint: FakeEndpoint, database: RunDatabase) -> None:
    names = [f"file:{number}" for number in range(3)]
    endpoint.script = writer = Writer()
    writer.replies |= {name + path: [2.0] * 9 for name in names for path in ("", "#blocks.0", "#head")}
    assert run(database, endpoint, tasks=3, max_usd=1.0, rounds=2)
    parts = [name + path for name in names for path in ("#blocks.0", "#head")]
    assert sorted(writer.asked[:6]) == sorted(parts)
    assert summarize(database).total == 3


def test_the_evaluation_of_a_whole_is_not_taken_for_one_of_a_part(
    endpoint: FakeEndpoint, database: RunDatabase
) -> None:
    """Four evaluations: one part and its winner, and two for the whole, so that the other part waits."""
    endpoint.script = Writer()
    run(database, endpoint, seed="none", max_evaluations=4)
    found: list[Evaluation] = [a.evaluation for a in database.attempts("file:0")]
    assert [each.task for each in found] == ["file:0"]
    assert database.evaluations() == {BLOCKS: 2, "file:0": 1}
