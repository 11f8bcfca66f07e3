"""Trajectories are kept as they are, or not at all."""

from pathlib import Path

import pytest

from kernelwright.agent.llm.model import Message
from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Interval, Speedup, Verdict
from kernelwright.rl_training.outcome import Outcome, failed
from kernelwright.rl_training.trajectory import RewardTerm, Trajectory, Turn, read, write

SPEEDUP = Speedup(eager=Interval(median=2.0, low=1.9, high=float("inf")))
TURN = Turn(
    messages=(Message(role="user", content="faster, please"),),
    reply="```python\n…```",
    reasoning="hm",
    candidate="0" * 64,
    source="class ModelNew: ...\n",
    outcome=Outcome(verdict=Verdict.correct, speedup=SPEEDUP, own_kernel_share=0.9, error=0.1),
    terms={"correct": RewardTerm(value=0.3, metrics={"correct": 1.0})},
    reward=0.3,
)
LOST = TURN.model_copy(update={"outcome": failed("evaluator", "a worker died"), "reward": None, "terms": {}})
TRAJECTORY = Trajectory(
    task="file:t", task_sha256="1" * 64, origin="policy", turns=(TURN, LOST), ended="no verdict"
)


def test_they_come_back_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "trajectories.jsonl"
    write(file, [TRAJECTORY, TRAJECTORY])
    assert list(read(file)) == [TRAJECTORY, TRAJECTORY]
    assert TRAJECTORY.rewards == (0.3, None)


@pytest.mark.parametrize(
    ("line", "words"),
    [("{}", "invalid trajectory in .*line 2"), ('{"schema": 9', "invalid trajectory in .*line 2")],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "trajectories.jsonl"
    write(file, [TRAJECTORY])
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(StorageError, match=words):
        list(read(file))


def test_another_schema_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trajectories.jsonl"
    write(file, [TRAJECTORY.model_copy(update={"schema_version": 2})])
    with pytest.raises(StorageError, match="schema 2, this version reads 1"):
        list(read(file))


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        list(read(tmp_path / "nothing.jsonl"))
