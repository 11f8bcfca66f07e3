"""The two-minute demo: rewards come from evaluations, weights change, and what was killed goes on exactly."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("trl")
import torch
from safetensors.torch import load_file

from kernelwright.results.store.training import METRICS
from kernelwright.rl_training.demo.demo import Demo, Seed
from kernelwright.rl_training.demo.settings import SHORT
from kernelwright.rl_training.rewards import state_io
from kernelwright.rl_training.trajectory import read
from tests.helpers.anywhere import TARGET

SEED = "seed-0"
pytestmark = [pytest.mark.slow, pytest.mark.training, pytest.mark.timeout(1800)]


def demo(out: Path) -> list[str]:
    return [sys.executable, "-m", "kernelwright", "train", "demo", "--short", "--out", str(out)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"
    done = subprocess.run(demo(out), capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "after RL" in done.stdout
    return out


def weights(policy: Path) -> dict[str, torch.Tensor]:
    return load_file(policy / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return all(torch.equal(first[name], second[name]) for name in first)


def prompts(out: Path) -> list[object]:
    steps = sorted((out / SEED / "rl" / "trajectories").iterdir())
    return [turn.messages for step in steps for made in read(step) for turn in made.turns]


def test_rewards_come_from_evaluations(finished: Path) -> None:
    measured = {
        json.loads(line)["evaluation"]["candidate"] for line in (finished / "evaluations.jsonl").open()
    }
    turns = [
        t for f in (finished / SEED / "rl" / "trajectories").iterdir() for made in read(f) for t in made.turns
    ]
    rewarded = [turn for turn in turns if turn.outcome.kind == "correct"]
    assert len(turns) == 16 and rewarded, [turn.outcome.reason for turn in turns]
    assert all(turn.candidate in measured for turn in rewarded)
    assert all(turn.outcome.speedup and turn.reward and turn.reward >= 0.3 for turn in rewarded)
    failed = [turn for turn in turns if turn.outcome.kind == "failed"]
    assert all(turn.reward == 0 for turn in failed)


def test_weights_change_and_are_tracked(finished: Path) -> None:
    assert not same(finished / SEED / "begun", finished / SEED / "sft" / "policy")
    assert not same(finished / SEED / "sft" / "policy", finished / SEED / "rl" / "policy")
    logged = [json.loads(line) for line in (finished / SEED / "rl" / METRICS).open()]
    assert {1, 2} <= {point["step"] for point in logged}
    assert any("valid_fraction" in point["values"] for point in logged)
    assert (finished / "curves.svg").read_text().startswith("<svg")
    assert "| rewarded | after RL |" in (finished / "table.md").read_text()


def test_what_was_killed_goes_on_exactly(finished: Path, tmp_path: Path) -> None:
    """RL again on the same measurements: killed after its first step, and gone on with.

    The rates that a busier machine is measured to have are in no prompt: those of the folder are.
    """
    again = tmp_path / "out"
    shutil.copytree(finished, again)
    shutil.rmtree(again / SEED / "rl")
    (again / SEED / "tried.json").unlink()
    running = subprocess.Popen(
        demo(again), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until = time.monotonic() + 1000
        while not list((again / SEED / "rl").glob("checkpoint-*")):
            assert running.poll() is None and time.monotonic() < until
            time.sleep(0.05)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    done = subprocess.run(demo(again), capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert prompts(finished) == prompts(again)
    assert same(finished / SEED / "rl" / "policy", again / SEED / "rl" / "policy")
    before, after = (state_io.read(folder / SEED / "tried.json", Seed) for folder in (finished, again))
    assert before is not None and after is not None and before.tried == after.tried


def test_a_resumed_demo_has_the_rates_of_its_start_in_its_prompts(tmp_path: Path) -> None:
    """Measured again they differ by what else the machine does, and with them every prompt."""
    busier = TARGET.model_copy(update={"languages": ()})
    assert Demo(SHORT, tmp_path, print)._target(TARGET) == TARGET
    assert Demo(SHORT, tmp_path, print)._target(busier) == TARGET != busier
