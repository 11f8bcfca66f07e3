"""Workspaces, with the real evaluator: made, used at a shell and by an MCP client, spoiled."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from kernelwright.agent.tool.workspace import MARK, Workspace
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.results.store.database import RunDatabase

TASK = """import torch
from torch import nn

workload = [{"rows": 64}, {"rows": 200, "weight": 3, "hidden": True}]
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
ONE_SIZE = RIGHT.replace("x.numel()", "64 * 512")


def kernelwright(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=800)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the workspace `work` and its run `run`."""
    base = tmp_path_factory.mktemp("workspace")
    (base / "twice.py").write_text(TASK)
    done = kernelwright("workspace", "twice.py", "work", "--out", "run", "--effort", "quick", cwd=base)
    assert done.returncode == 0, done.stderr
    return base


@pytest.mark.builds
@pytest.mark.slow
def test_a_workspace_has_all_that_an_agent_needs_and_no_hidden_size(made: Path) -> None:
    work = made / "work"
    text = (work / "AGENTS.md").read_text()
    for said in ("kernelwright measure", "torch.relu(x) * 2.0", "## The goal", "How a kernel is judged"):
        assert said in text
    assert "class ModelNew" in (work / "kernel.py").read_text()
    skill = (work / ".claude" / "skills" / "kernelwright" / "SKILL.md").read_text()
    assert skill.startswith("---\nname: kernelwright\ndescription: ")
    config = json.loads((work / ".mcp.json").read_text())
    assert config["mcpServers"]["kernelwright"]["args"][-1] == "mcp"
    for file in work.rglob("*"):
        assert not file.is_file() or "200" not in file.read_text().replace("MAX_200", ""), file


@pytest.mark.builds
@pytest.mark.slow
def test_at_a_shell_a_kernel_is_checked_measured_and_submitted(made: Path) -> None:
    work = made / "work"
    (work / "kernel.py").write_text(WRONG)
    wrong = kernelwright("check", cwd=work)
    assert wrong.returncode == 1 and "wrong_output" in wrong.stdout, wrong.stdout + wrong.stderr
    (work / "other.py").write_text(ONE_SIZE)
    one_size = kernelwright("measure", "other.py", cwd=work)
    assert one_size.returncode == 1 and "200" not in one_size.stdout, one_size.stdout
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
    work = made / "work"
    (work / "new.py").write_text(RIGHT.replace("2.0f * x[i]", "x[i] + x[i]"))
    seen: list[str] = []

    async def use() -> None:
        config = json.loads((work / ".mcp.json").read_text())["mcpServers"]["kernelwright"]
        server = StdioServerParameters(
            command=config["command"], args=config["args"], cwd=str(work), env=dict(os.environ)
        )
        async with Client(server) as client:
            for tool, arguments in (
                ("describe_task", {}),
                ("check", {"path": "new.py", "wait_s": 120}),
                ("measure", {"path": "new.py", "wait_s": 120}),
                ("submit", {"wait_s": 120}),
                ("history", {}),
            ):
                result = await client.call_tool(tool, arguments)
                seen.append(json.dumps(result.structured_content))
                assert not result.is_error, seen
                if tool in ("check", "measure", "submit"):
                    assert result.structured_content is not None
                    assert result.structured_content["result"]["right"]

    asyncio.run(use())
    assert "200" not in "".join(part for part in seen if "rows=" in part).replace("2000", "")


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
