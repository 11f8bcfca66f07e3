"""`kernelwright train verl`: the folder it writes, without verl."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
import yaml

from kernelwright import cli
from kernelwright.agent.llm.coder import asked_for
from kernelwright.rl_training.cluster.host import EvaluationSettings
from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.rewards.scheme import SCHEMES
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import EXPRESSIONS, builtin_task, kernel, made, tried

TASKS = ("level1/relu", "level1/softmax", "level1/sum_rows", "level2/linear_gelu_layer_norm")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    with run_factory.new_run(folder) as database:
        for name in TASKS:
            task = builtin_task(name)
            database.add_task(task)
            for number, expression in enumerate(EXPRESSIONS):
                tried(database, task, made(kernel(expression)), 1.5 + number)
    return folder


def typed(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["kernelwright", "train", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def write(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Writes a folder with these options; returns it."""

    def written(*options: object, source: Path = run) -> Path:
        out = tmp_path / "verl"
        assert typed(monkeypatch, "verl", source, "--out", out, "--model", "Qwen/Qwen3-8B", *options) == 0
        return out

    return written


def rows(path: Path) -> list[dict]:  # type: ignore[type-arg]
    return pyarrow.parquet.read_table(path).to_pylist()


def launched(folder: Path, tmp_path: Path, *more: str) -> list[list[str]]:
    """What launch.sh runs: the words of each command of Python's, by a python that only writes them down."""
    commands = tmp_path / "commands"
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f"#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done >> {commands}\nprintf '\\n' >> {commands}\n"
    )
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    subprocess.run([folder / "launch.sh", *more], env=environment, check=True, timeout=20)
    return [line.split("\0")[:-1] for line in commands.read_text().splitlines()]


def test_rows_have_verl_s_columns_and_the_first_prompt_of_a_rollout(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write()
    train, test = rows(folder / "train.parquet"), rows(folder / "test.parquet")
    assert {row["extra_info"]["task"] for row in train + test} == {f"builtin:{name}" for name in TASKS}
    families = [{row["ability"] for row in part} for part in (train, test)]
    assert not families[0] & families[1]
    for row in train:
        assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info", "agent_name"}
        data = TaskData.model_validate_json(row["reward_model"]["ground_truth"])
        assert data.winner is not None and data.winner.speedup.low > 3
        asked = asked_for(data.situation, data.language, (), None)
        assert row["prompt"] == [message.model_dump() for message in asked.messages]
        assert "".join(data.winner.candidate.source.split()) not in "".join(str(row["prompt"]).split())
        assert row["agent_name"] == "single_turn_agent"
    assert [row["extra_info"]["index"] for row in train] == list(range(len(train)))


def test_a_data_set_keeps_its_split(
    write, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    data = tmp_path / "data"
    assert typed(monkeypatch, "curate", run, "--out", data, "--seed", 3) == 0
    folder = write(source=data)
    for split in ("train", "test"):
        assert [row["extra_info"]["task"] for row in rows(folder / f"{split}.parquet")] == [
            row["task"] for row in rows(data / "tasks" / f"{split}.parquet")
        ]


def test_the_launch_line_is_one_override_a_line(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write("--algorithm", "dapo", "--samples", 4)
    hosts, training = launched(folder, tmp_path, "trainer.save_freq=3")
    assert hosts == ["-m", "kernelwright.rl_training.cluster.hosts", f"{folder}/evaluation.json"]
    assert training[:2] == ["-m", "verl.trainer.main_ppo"]
    assert training[-1] == "trainer.save_freq=3"
    overrides = dict(word.split("=", 1) for word in training[2:-1])
    assert len(overrides) == len(training[2:-1])  # none is given twice
    assert overrides["data.train_files"] == f"'{folder}/train.parquet'"
    assert overrides["actor_rollout_ref.rollout.n"] == "4"
    assert overrides["actor_rollout_ref.actor.clip_ratio_high"] == "0.28"
    assert overrides["+reward.reward_kwargs.overlong_buffer_cfg.len"] == str(8192 // 5)
    lines = (folder / "launch.sh").read_text().splitlines()
    assert sum(line.startswith('    "') for line in lines) == len(overrides)


def test_several_turns_have_our_agent_loop(write) -> None:  # type: ignore[no-untyped-def]
    folder = write("--turns", 4, "--algorithm", "grpo")
    (loop,) = yaml.safe_load((folder / "agent_loop.yaml").read_text())
    assert loop == {
        "name": "kernelwright", "_target_": "agent_loop.Loop", "turns": 4, "greedy_baseline": False,
    }  # fmt: skip
    assert {row["agent_name"] for row in rows(folder / "train.parquet")} == {"kernelwright"}
    # verl's grpo would pay all turns what the last one earned.
    assert "algorithm.adv_estimator=grpo_vectorized" in (folder / "launch.sh").read_text()


def test_fully_asynchronous_training_bounds_staleness(write) -> None:  # type: ignore[no-untyped-def]
    text = (write("--fully-async", "--staleness", 3, "--rollout-nodes", 2) / "launch.sh").read_text()
    for expected in (
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.sampler.max_off_policy_threshold=4",
        "actor_rollout_ref.rollout.nnodes=2",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    ):
        assert f'"{expected}"' in text


def test_partial_rollouts_are_verl_s_colocated_mode(write) -> None:  # type: ignore[no-untyped-def]
    text = (write("--partial-rollouts") / "launch.sh").read_text()
    assert '"trainer.v1.trainer_mode=colocate_async"' in text
    assert '"trainer.v1.sampler.max_off_policy_threshold=3"' in text


def test_the_reward_is_in_the_folder(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    scheme = tmp_path / "mine.toml"
    scheme.write_text('gamma = 0.9\n[[terms]]\nterm = "milestones"\n')
    evaluation = EvaluationSettings.read(write("--reward", scheme) / "evaluation.json")
    assert evaluation.scheme.gamma == 0.9
    assert evaluation.scheme.terms == SCHEMES["cuda-agent"].terms


def test_it_prints_one_json_object(write, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    folder = write("--algorithm", "remax", "--held-out-share", 0, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["tasks"] == {"train": 4, "test": 0}
    assert told["files"] == sorted(path.name for path in folder.iterdir())
    assert {"launch.sh", "reward.py", "agent_loop.py", "train.parquet"} <= set(told["files"])
    assert "test.parquet" not in told["files"]
    assert "data.val_files='$HERE/train.parquet'" in (folder / "launch.sh").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--staleness 2", "--staleness needs asynchronous training"),
        (
            "--fully-async --staleness 0",
            "invalid --staleness 0: it would discard all rollouts generated ahead",
        ),
        ("--rollout-nodes 2", "--rollout-nodes needs --fully-async"),
        ("--algorithm remax --turns 2", "--algorithm remax supports only one turn"),
        ("--algorithm rloo --samples 1", "--algorithm rloo compares the samples of a task"),
        ("--tasks-per-step 9", "the data set has 3 tasks for training, a step needs 9"),
        ("--reward none", "unknown reward scheme 'none'"),
        ("--held-out-share 1", "invalid --held-out-share 1"),
        ("--model 'a b'", "invalid --model a b"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    options: str, says: str,
) -> None:  # fmt: skip
    words = ("verl", run, "--out", tmp_path / "verl", "--model", "m", *shlex.split(options))
    assert typed(monkeypatch, *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {says}") and " — " in line
    assert not (tmp_path / "verl").exists()


def test_a_folder_without_tasks_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "tasks").mkdir(parents=True)
    assert typed(monkeypatch, "verl", tmp_path / "data", "--out", tmp_path / "verl", "--model", "m") == 2
    assert "no tasks to train on" in capsys.readouterr().err
