"""Workspaces, with the real evaluator: made, used at a shell and by an MCP client, spoiled."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from kernelwright.agent.tool.workspace import MARK, Workspace
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.results.store.database import RunDatabase

TASK = """import torch
from torch import nn

workload = [{"rows": 64}, {"rows": 1213, "weight": 3, "hidden": True}]
rows = 64


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.randn(rows, 512)]


def get_init_inputs():
    return []
"""

KERNEL = '''import torch
from torch import nn
from kernelwright import jit

lib = jit.compile_cpp("""
extern "C" void twice(const float* x, float* y, long n) {
    #pragma omp parallel for
    for (long i = 0; i < n; ++i) y[i] = FORMULA;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
'''
RIGHT = KERNEL.replace("FORMULA", "x[i] > 0.0f ? 2.0f * x[i] : 0.0f")
WRONG = KERNEL.replace("FORMULA", "2.0f * x[i]")
SLOW = RIGHT.replace("#pragma omp parallel for", "for (volatile int again = 0; again < 100; ++again)")
ONE_SIZE = RIGHT.replace("x.numel()", "64 * 512")
HIDDEN = re.compile(r"(?<![\w.])1213(?![\w.])|621056")  # rows and elements at the hidden size
SPYING = (
    """        found = str(tuple(x.shape))
        print(found, flush=True)
        os.write(2, found.encode())
        for place in PLACES:
            try:
                open(place + '/spied', 'w').write(found)
            except OSError:
                pass
        if x.shape[0] != 64:
            raise RuntimeError(found)
""",
    """        if x.shape[0] != 64:
            return torch.full_like(x, x.shape[0])
""",
    """        raise RuntimeError(' '.join(known(place) for place in PLACES))
""",
)


def spying(way: str, *places: Path) -> str:
    """A file that tells of the size that it is called at, or of files of others, in one of the ways."""
    head = f"""import os
PLACES = {[str(place) for place in places]}

def known(place):
    try:
        return open(place, errors='replace').read(50_000)
    except OSError as error:
        return type(error).__name__

"""
    inside = "    def forward(self, x):\n"
    return head + RIGHT.replace(inside, inside + way)


def kernelwright(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=800)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the workspace `work` and its run `run`."""
    base = tmp_path_factory.mktemp("workspace")
    (base / "twice.py").write_text(TASK)
    (base / "slow.py").write_text(SLOW)
    words = ("--seed", "slow.py", "--out", "run", "--effort", "quick")
    done = kernelwright("workspace", "twice.py", "work", *words, cwd=base)
    assert done.returncode == 0, done.stderr
    return base


@pytest.mark.builds
@pytest.mark.slow
def test_a_workspace_has_all_that_an_agent_needs_and_no_hidden_size(made: Path) -> None:
    work = made / "work"
    text = (work / "AGENTS.md").read_text()
    for said in ("kernelwright measure", "torch.relu(x) * 2.0", "## The goal", "How a kernel is judged"):
        assert said in text
    assert (work / "kernel.py").read_text() == SLOW
    skill = (work / ".claude" / "skills" / "kernelwright" / "SKILL.md").read_text()
    assert skill.startswith("---\nname: kernelwright\ndescription: ")
    config = json.loads((work / ".mcp.json").read_text())
    assert config["mcpServers"]["kernelwright"]["args"][-1] == "mcp"
    for file in work.rglob("*"):
        assert not file.is_file() or not HIDDEN.search(file.read_text()), file


@pytest.mark.builds
@pytest.mark.slow
def test_at_a_shell_a_kernel_is_checked_measured_and_submitted(made: Path) -> None:
    work = made / "work"
    (work / "kernel.py").write_text(WRONG)
    wrong = kernelwright("check", cwd=work)
    assert wrong.returncode == 1 and "wrong_output" in wrong.stdout, wrong.stdout + wrong.stderr
    (work / "other.py").write_text(ONE_SIZE)
    one_size = kernelwright("measure", "other.py", cwd=work)
    assert one_size.returncode == 1 and not HIDDEN.search(one_size.stdout), one_size.stdout
    (work / "kernel.py").write_text(RIGHT)
    assert kernelwright("check", cwd=work).returncode == 0
    measured = kernelwright("measure", "--json", cwd=work)
    found = json.loads(measured.stdout)
    assert found["right"] and found["speedup"]["eager"]["low"] > 0
    assert found["evaluation"].count("/") == 1
    profile = kernelwright("measure", "--profile", cwd=work)
    assert profile.returncode == 0 and "Metrics:" in profile.stdout, profile.stderr
    listed = kernelwright("history", cwd=work)
    assert listed.stdout.count("\n| ") >= 4
    submitted = kernelwright("submit", cwd=work)
    assert submitted.returncode == 0 and "kernelwright export" in submitted.stdout, submitted.stderr
    assert (made / "run" / "report.html").exists() and list((made / "run" / "best").glob("*.py"))


@pytest.mark.builds
@pytest.mark.slow
def test_an_mcp_client_improves_the_kernel_of_a_workspace(made: Path) -> None:
    work, run = made / "work", made / "run"
    (work / "new.py").write_text(RIGHT.replace("2.0f * x[i]", "x[i] + x[i]"))
    calls: tuple[Call, ...] = (
        ("describe_task", {}),
        ("check", {"path": "new.py"}),
        ("measure", {"path": "new.py"}),
        ("profile", {"number": -1}),
        ("submit", {}),
        ("history", {}),
    )
    answers = called(work, calls)
    assert [found is None for found, _ in answers] == [False, False, False, True, False, False], answers
    assert "there is no file -1" in answers[3][1]
    with RunDatabase.open(run, read_only=True) as database:
        recorded = {f"{database.run_id[:8]}/{a.id}": a for a in database.attempts("file:twice")}
    for answer in (answers[1], answers[2], answers[4]):
        found = result_of(answer)
        evaluation = recorded[found["evaluation"]].evaluation
        assert found["right"] and found["sha256"] == recorded[found["evaluation"]].candidate.sha256
        if found["speedup"]:
            assert evaluation.speedup is not None and evaluation.speedup.eager is not None
            assert found["speedup"]["eager"]["median"] == evaluation.speedup.eager.median
    assert answers[5][0] is not None
    seed, *_ = answers[5][0]["files"]
    assert 3 * result_of(answers[2])["time_us"]["median"] < seed["time_us"]["median"]


@pytest.mark.builds
@pytest.mark.slow
def test_a_client_that_spies_learns_no_hidden_size_and_reads_no_file_of_others(made: Path) -> None:
    work, run = made / "work", made / "run"
    for number, way in enumerate(SPYING[:2]):
        (work / f"spy{number}.py").write_text(spying(way, work, made, Path(tempfile.gettempdir())))
    (work / "spy2.py").write_text(spying(SPYING[2], run / "run.db", made / "twice.py", work / "AGENTS.md"))
    calls: tuple[Call, ...] = (
        *((tool, {"path": f"spy{number}.py"}) for number in range(3) for tool in ("check", "measure")),
        ("compile_dump", {}),
        ("profile", {"number": 0}),
        ("result", {"ticket": "0" * 8}),
        ("history", {}),
        ("history", {"number": 0}),
    )
    answers = called(work, calls)
    for (tool, arguments), (_, text) in zip(calls, answers, strict=True):
        assert not HIDDEN.search(text), (tool, arguments, text)
        assert "get_init_inputs" not in text and "SQLite" not in text
    told = [result_of(answer) for answer in answers[:6]]
    assert not any(each["right"] for each in told)
    assert "at a hidden size" in told[0]["reason"] and "at a hidden size" in told[2]["reason"]
    assert told[4]["reason"].count("Error") >= 3  # for each file of others
    assert not list(made.rglob("spied")) and not (Path(tempfile.gettempdir()) / "spied").exists()


Call = tuple[str, dict[str, Any]]  # the name of a tool, and its arguments
Answer = tuple[dict[str, Any] | None, str]  # what is structured, None where the server refuses, and all of it


def called(work: Path, calls: Iterable[Call]) -> list[Answer]:
    """Return what the server of a workspace answers."""
    answers: list[Answer] = []

    async def use() -> None:
        config = json.loads((work / ".mcp.json").read_text())["mcpServers"]["kernelwright"]
        server = StdioServerParameters(
            command=config["command"], args=config["args"], cwd=str(work), env=dict(os.environ)
        )
        async with Client(server) as client:
            for tool, arguments in calls:
                waits = {"wait_s": 300} if tool in ("check", "measure", "submit") else {}
                result = await client.call_tool(tool, arguments | waits)
                structured = None if result.is_error else result.structured_content
                answers.append((structured, result.model_dump_json()))

    asyncio.run(use())
    return answers


def result_of(answer: Answer) -> dict[str, Any]:
    structured, text = answer
    assert structured is not None and structured["result"], text
    found: dict[str, Any] = structured["result"]
    return found


@pytest.mark.builds
@pytest.mark.slow
def test_what_was_measured_survives_a_server_that_is_killed(made: Path) -> None:
    work = made / "work"
    with RunDatabase.open(made / "run", read_only=True) as database:
        [task] = database.tasks()
        before = len(database.attempts(task.task.id))
    (work / "kernel.py").write_text(RIGHT + "\n# once more\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelwright", "measure"], cwd=work, stdout=subprocess.DEVNULL
    )
    time.sleep(6)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with RunDatabase.open(made / "run", read_only=True) as database:
        assert len(database.attempts(task.task.id)) >= before
    assert kernelwright("measure", cwd=work).returncode == 0  # the lock is free


def test_a_workspace_is_found_from_below(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text('run = "/runs/1"\ntask = "file:a"\n')
    (tmp_path / "deep" / "er").mkdir(parents=True)
    assert Workspace.around(tmp_path / "deep" / "er") == Workspace(tmp_path, Path("/runs/1"), "file:a")


def test_a_run_may_be_named_from_its_workspace_on(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text('run = "../run"\ntask = "file:a"\n')
    assert Workspace.read(tmp_path).run == tmp_path / "../run"


SPOILED = (
    "run = ",
    "run = '/runs/1'\n",
    "task = 'a'\n",
    "run = 5\ntask = 'a'\n",
    "run = '/runs/1'\ntask = \"a\\nb\"\n",
    "run = \"\\u0000\"\ntask = 'a'\n",
    "server = 'http://127.0.0.1:1/mcp'\ntask = 'a'\n",
)


@pytest.mark.parametrize("text", SPOILED)
def test_a_spoiled_mark_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / MARK).write_text(text)
    with pytest.raises(StorageError, match="is damaged"):
        Workspace.around(tmp_path)


@pytest.mark.parametrize("name", ["AGENTS.md", "kernelwright/module.py"])
def test_files_that_a_folder_has_are_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / "task.py").write_text(TASK)
    theirs = tmp_path / "work" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    result = kernelwright("workspace", "task.py", "work", cwd=tmp_path)
    assert result.returncode == 2 and "has " + name.partition("/")[0] + " already" in result.stderr
    assert theirs.read_text() == "theirs" and not (tmp_path / "runs").exists()


def test_elsewhere_there_is_no_workspace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is in no workspace"):
        Workspace.around(tmp_path)


@pytest.mark.parametrize("name", ["check", "measure", "submit", "history", "mcp"])
def test_commands_outside_of_a_workspace_say_how_to_make_one(tmp_path: Path, name: str) -> None:
    done = kernelwright(name, cwd=tmp_path)
    assert done.returncode == 2 and "kernelwright workspace TASK DIR" in done.stderr
    assert len(done.stderr.splitlines()) == 1
