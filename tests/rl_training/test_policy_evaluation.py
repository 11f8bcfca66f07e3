"""`kernelwright train evaluate`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from kernelwright import cli
from kernelwright.rl_training.evaluation import evaluate
from kernelwright.rl_training.evaluation.during_training import HELD_OUT, HeldOutEvaluation, HeldOutScores
from kernelwright.rl_training.evaluation.evaluate import PolicyEvaluation, ReplyFile
from kernelwright.rl_training.evaluation.sampling import SamplingSettings
from kernelwright.rl_training.evaluation.scores import scores
from kernelwright.rl_training.trainers.policy import load_policy
from tests.helpers.results import run_factory
from tests.helpers.rl_training import reading_pool, tiny_policy
from tests.helpers.rl_training.packaged import tasks
from tests.helpers.rl_training.recorded import EXPRESSIONS, builtin_task, kernel, made, tried
from tests.helpers.rl_training.served import FilePool, file, served

pytestmark = pytest.mark.training
SETTINGS = SamplingSettings(samples=4)


def reply(speedup: float, mark: object = "") -> str:
    return f"```python\n{file(speedup, mark)}```\n"


class Scripted:
    """Sampling that gives these replies to every task, and counts them; it dies after `most`."""

    def __init__(self, replies: Sequence[str], most: int = 1000) -> None:
        self.replies, self.left, self.given = replies, most, 0

    def __call__(self, model: Any, tokenizer: Any, messages: Any, task: str, settings: Any) -> Iterator[tuple[int, str]]:  # fmt: skip
        for number, text in enumerate(self.replies):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            self.given += 1
            yield number, text


def test_replies_are_graded_and_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = [reply(1.5), reply(1, "wrong"), reply(1, "dies"), "no file"]
    monkeypatch.setattr(evaluate, "sampled", Scripted(replies))
    found = PolicyEvaluation(tasks().train, FilePool(), SETTINGS).of("policy", None, None)
    assert [sample.number for sample in found] == [0, 1, 2, 3] * 2
    first = found[0]
    assert first.low > 1 and first.confirmed == first.low
    overall = scores(found, (1, 3))
    assert overall.pass_at == {1: pytest.approx(1 / 3), 3: 1.0} and overall.without_verdict == 2


def test_what_was_killed_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replies, path = [reply(1 + n / 10, n) for n in range(4)], tmp_path / "replies.jsonl"
    dying = Scripted(replies, most=6)
    monkeypatch.setattr(evaluate, "sampled", dying)
    first = PolicyEvaluation(tasks().train, FilePool(), SETTINGS, ReplyFile(path))
    with pytest.raises(KeyboardInterrupt):
        first.of("policy", None, None)
    path.write_bytes(path.read_bytes()[:-20])  # in the middle of a line
    again = Scripted(replies)
    monkeypatch.setattr(evaluate, "sampled", again)
    second = PolicyEvaluation(tasks().train, FilePool(), SETTINGS, ReplyFile(path))
    assert second.missing("policy") == 3
    found = second.of("policy", None, None)
    assert again.given == 4 and second.missing("policy") == 0  # of the second task alone
    third = PolicyEvaluation(tasks().train, FilePool(), SETTINGS, ReplyFile(path))
    assert third.of("policy", None, None) == found and again.given == 4


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with run_factory.new_run(tmp_path / "run") as database:
        for name in ("level1/relu", "level1/softmax"):
            task = builtin_task(name)
            database.add_task(task)
            for number, expression in enumerate(EXPRESSIONS):
                tried(database, task, made(kernel(expression)), 1.5 + number)
    return tmp_path / "run"


def words(model: Path, run: Path, url: str, out: Path) -> list[str]:
    asked = ["train", "evaluate", "--model", model, "--base", model, "--data", run, "--split", "train",
             "--evaluator", url, "--samples", 4, "--at-once", 2, "--max-completion", 4, "--cpu", "--out", out]  # fmt: skip
    return [str(word) for word in asked]


def test_the_command(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_policy.save(tmp_path / "model", tiny_policy.BRIEF_CHAT)
    with served(tmp_path / "requests.db") as url:
        asked = words(model, run, url, tmp_path / "out")
        for arguments, status in ((asked, 0), ([*asked, "--temperature", "0.5"], 2)):
            monkeypatch.setattr(sys, "argv", ["kernelwright", *arguments])
            with pytest.raises(SystemExit) as ended:
                cli.main()
            assert ended.value.code == status, capsys.readouterr().err
    shown = capsys.readouterr()
    assert "8 replies to 2 tasks" in shown.out and "fast_2@k" in shown.out
    assert "temperature was 1.0, now is 0.5" in shown.err
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["ks"] == [1, 4] and found["policy"]["overall"]["pass_at"] == {"1": 0.0, "4": 0.0}
    assert found["policy"]["overall"] == found["base"]["overall"] and found["ratio"]["median"] == 1.0
    assert len((tmp_path / "out" / "replies.jsonl").read_text().splitlines()) == 16
    page = (tmp_path / "out" / "evaluation.md").read_text()
    assert "| pass@k | 0% | 0% |" in page and "| best@k, × eager | 1.00 | 1.00 |" in page


@pytest.mark.slow
def test_kill_9_changes_nothing(run: Path, tmp_path: Path) -> None:
    model = tiny_policy.save(tmp_path / "model", tiny_policy.BRIEF_CHAT)
    with served(tmp_path / "requests.db") as url:
        for folder in ("whole", "killed"):
            asked = [sys.executable, "-m", "kernelwright", *words(model, run, url, tmp_path / folder)]
            if folder == "killed":
                process, replies = subprocess.Popen(asked), tmp_path / folder / "replies.jsonl"
                while not replies.exists() or replies.read_text().count("\n") < 3:
                    assert process.poll() is None
                    time.sleep(0.005)
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            subprocess.run(asked, check=True)

    def lines(folder: str) -> list[dict[str, object]]:
        text = (tmp_path / folder / "replies.jsonl").read_text()
        return sorted((json.loads(line) for line in text.splitlines()), key=str)

    assert lines("whole") == lines("killed") and len(lines("whole")) == 16
    whole, killed = (json.loads((tmp_path / f / "evaluation.json").read_text()) for f in ("whole", "killed"))
    assert whole == killed


def test_without_held_out_tasks_it_says_so(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "kernelwright",
            "train",
            "evaluate",
            "--model",
            "m",
            "--data",
            str(run),
            "--out",
            str(tmp_path / "o"),
        ],
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2 and "no task was held out" in capsys.readouterr().err


class WritingCallback(TrainerCallback):
    """Notes what is logged, as the writer of metrics.jsonl does."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        self.logged.append(dict(logs or {}))


def test_training_is_evaluated_and_goes_on_the_same(tmp_path: Path) -> None:
    model = tiny_policy.save(tmp_path / "model", tiny_policy.BRIEF_CHAT)
    weights = {}
    for name in ("plain", "evaluated"):
        writing, out = WritingCallback(), tmp_path / name
        out.mkdir()
        callbacks: list[TrainerCallback] = [writing]
        if name == "evaluated":
            policy = load_policy(str(model))
            sampling = SamplingSettings(samples=2, max_completion=4)
            held = HeldOutEvaluation(
                tasks().test, reading_pool.Paying(lambda _: 1.5), policy.tokenizer, sampling, 2, out
            )
            callbacks.insert(0, held)
        done = reading_pool.run(reading_pool.settings(model, steps=3), out, callbacks=callbacks)
        weights[name] = (done.policy / "model.safetensors").read_bytes()
    assert weights["plain"] == weights["evaluated"]  # random numbers and weights are as they were
    assert [HeldOutScores.model_validate_json(line).step for line in (out / HELD_OUT).open()] == [2]
    at = [entry for entry in writing.logged if "held_out_pass@1" in entry]
    assert len(at) == 1 and at[0]["held_out_pass@1"] == at[0]["held_out_fast_1@2"] == 1.0
