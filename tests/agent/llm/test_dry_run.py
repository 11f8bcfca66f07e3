"""`run --dry-run`: real tasks, no key, no endpoint, nothing evaluated and nothing written."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kernelwright.agent.dry_run import DryRun, show
from kernelwright.agent.llm.model import estimated_tokens
from kernelwright.cli import app
from kernelwright.kernelbench.errors import UsageError
from kernelwright.results import formatting

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x

def get_inputs():
    return [torch.randn(64, 256)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def tasks(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "gate.py", tmp_path / "wrong.py"]
    paths[0].write_text(TASK)
    paths[1].write_text(TASK.replace("sigmoid(x)", "sigmoid(y)"))
    return paths


def dry_run(home: Path, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERNELWRIGHT_HOME": str(home)}
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        environment.pop(name, None)
    arguments = [sys.executable, "-m", "kernelwright", "run", *map(str, words), "--dry-run"]
    return subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=300, cwd=folder)


def test_the_first_prompts_and_their_price_are_told_before_anything_is_paid(
    tasks: list[Path], tmp_path: Path, home: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[m]\nprompt = 2.0\ncompletion = 10.0\n")
    options = ("--coder", "llm", "--model", "m", "--prices", prices, "--rounds", 3, "--max-usd", 1)
    done = dry_run(home, tmp_path, *tasks, *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    first, broken = found["prompts"]
    assert "torch.sigmoid(x) * x" in first["messages"][1]["content"] and "'y'" in broken["error"]
    assert first["tokens"] == sum(estimated_tokens(each["content"]) for each in first["messages"])
    last = found["estimates"][-1]
    call = (first["tokens"] * 2.0 + last["reply_tokens"] * 10.0) / 1e6
    assert last["round_usd"] == pytest.approx(2 * call)  # the coder and the judge
    assert last["run_usd"] == pytest.approx(2 * (3 + 2) * call)  # nobody advises on the first round
    assert last["rounds"] == int(1 / (2 * call))
    assert not (tmp_path / "runs").exists()
    screen = Console(file=io.StringIO(), width=80)
    show(DryRun.model_validate(found), screen)
    assert isinstance(screen.file, io.StringIO)
    text = screen.file.getvalue()
    assert text.count("torch.sigmoid(x) * x") == 1 and f"{first['tokens']:,}" in text
    assert formatting.money(last["run_usd"]) in text and "rounds for $1" in text


@pytest.mark.slow
def test_an_agent_s_first_prompt_tells_of_its_tools_and_no_judge_is_counted(
    tasks: list[Path], tmp_path: Path, home: Path
) -> None:
    options = ("--coder", "llm", "--model", "m", "--price", "2/10", "--search", "agent", "--turns", 7)
    done = dry_run(home, tmp_path, tasks[0], *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    [first] = found["prompts"]
    system, user = (message["content"] for message in first["messages"])
    assert "`compile_reference`" in system and "torch.sigmoid(x) * x" in user
    last = found["estimates"][-1]
    assert found["rounds"] == 7 and last["run_usd"] == pytest.approx(7 * last["round_usd"])


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--coder", "builtin"), "give --coder llm --model NAME"),
        (("--resume", "runs/a"), "leave out --resume"),
    ],
)
def test_a_dry_run_is_of_a_new_run_with_a_model(
    words: tuple[str, ...], fault: str, tasks: list[Path]
) -> None:
    task = [] if "--resume" in words else [str(tasks[0])]
    refused = CliRunner().invoke(app, ["run", *task, *words, "--dry-run"])
    assert isinstance(refused.exception, UsageError) and fault in str(refused.exception)
