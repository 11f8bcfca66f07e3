"""The benchmark of faults: its endpoint, its audit, and a short run that is killed once."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agent import faults
from benchmarks.agent.faulty_model import FaultyModel, broken, key_of, read_log
from benchmarks.agent.run_audit import Audited
from kernelwright.agent.llm.endpoint.fake_endpoint import FakeEndpoint
from kernelwright.agent.llm.model import Completion, Message
from kernelwright.agent.spending.budget import SpendingLimits
from kernelwright.results.store.records import TaskState
from tests.helpers.model_calls import call, in_turn

FILE = 'lib = """\nextern "C" void f(const float* x) {\n}\n"""\nclass ModelNew:\n    def forward(self, x):\n        return x\n'
FILES = {"t": broken([f"{FILE}# {number}\n" for number in range(6)])}
SYSTEM = Message(role="system", content="You write `ModelNew`, which is fast.")


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint().serving() as made:
        yield made


def asked(number: int) -> Any:
    user = Message(role="user", content=f"# The task: t\n{number}")
    return call(messages=(SYSTEM, user), sample=number)


def test_each_kind_of_file_has_its_fault_in_it() -> None:
    crashing, endless = FILES["t"]["crashes"], FILES["t"]["never ends"]
    assert all("float* x) { *(volatile int*)8 = 1;" in file for file in crashing)
    assert all("for (volatile long" in file for file in endless)
    for kind in ("right", "wrong", "cheats"):
        compile(FILES["t"][kind][0], kind, "exec")
    with pytest.raises(SyntaxError):
        compile(FILES["t"]["is no Python"][0], "broken", "exec")


def test_whatever_the_fault_what_a_client_counts_is_what_was_given_out(
    endpoint: FakeEndpoint, tmp_path: Path
) -> None:
    model = FaultyModel(FILES, tmp_path / "log", seed=0, rate=0.7, refuses="stream_options", silence_s=0.01)
    endpoint.script = model
    found = in_turn(endpoint, [asked(number) for number in range(60)], answered=True)
    assert len({each.fault for each in model.given}) > 15, Counter(each.fault for each in model.given)
    assert read_log(tmp_path / "log") == model.given
    for number, answer in enumerate(found):
        own = [each for each in model.given if each.key == key_of(_sent(number))]
        assert sum(each.is_whole for each in own) == isinstance(answer, Completion)
        for i, tokens in enumerate((answer.usage.prompt_tokens, answer.usage.completion_tokens)):
            assert sum(each.least[i] for each in own) <= tokens <= sum(each.most[i] for each in own), own


def _sent(number: int) -> list[Any]:
    return [message.model_dump() for message in asked(number).messages]


def test_an_answer_is_drawn_by_its_prompt_and_how_often_that_was_asked(tmp_path: Path) -> None:
    def answers(log: str) -> list[str]:
        model = FaultyModel(FILES, tmp_path / log, seed=3, rate=0.5, refuses="", silence_s=1.0)
        return [repr(model({"messages": _sent(number % 3)}, number)) for number in range(9)]

    first = answers("a")
    assert answers("b") == first and len(set(first)) > 5
    assert answers("a") != first, "a log that is there is gone on with"


TASKS = "builtin:level1/softmax set batch_size=64 features=256\nbuiltin:level1/gelu set batch_size=64 features=256\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_with_faults_that_is_killed_holds_to_what_its_endpoint_knows(tmp_path: Path) -> None:
    tasks, files = faults.written(tmp_path, TASKS)
    assert len(files) == 4
    outcome = faults.audited_run("refine", tmp_path, tasks[:2], files, seed=0, kills=1, rate=0.4)
    assert not outcome.faults
    audited = outcome.audited
    assert [bool(epoch.killed) for epoch in audited.run.epochs][:2] == [True, False]
    assert {entry.state for entry in audited.tasks} == {TaskState.done}
    assert any(each.fault for each in audited.given)
    _assert_that_the_audit_can_fail(audited)


def _assert_that_the_audit_can_fail(audited: Audited) -> None:
    whole = [each for each in audited.given if each.is_whole and each.role == "coder" and each.epoch]
    dearer = [g if g is not whole[-1] else g.model_copy(update={"least": (10**9, 0)}) for g in audited.given]
    assert any("tokens" in fault for fault in replace(audited, given=dearer).faults())
    more = [*audited.given, whole[-1]]
    assert any("answers of" in fault for fault in replace(audited, given=more).faults())
    kinds = {number: "wrong" for each in audited.given for number in each.files}
    mixed = [g.model_copy(update={"files": {n: kinds[n] for n in g.files}}) for g in audited.given]
    assert any("a file that is 'wrong'" in fault for fault in replace(audited, given=mixed).faults())
    assert any("not true" in fault for fault in replace(audited, rounds=99).faults())
    nothing = SpendingLimits(usd=0.0, evaluations=1)
    found = replace(audited, limits=nothing).faults()
    assert any("were spent" in fault for fault in found) and any("were made" in fault for fault in found)
