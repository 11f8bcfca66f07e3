"""`kernelwright train sft` and `train rl`, as they are typed: a tiny policy, a real evaluator."""

import json
import sys
from pathlib import Path

import pytest

from kernelwright import cli
from kernelwright.results.store.training import METRICS
from kernelwright.rl_training.trajectory import read
from tests.helpers.results import run_factory
from tests.helpers.rl_training import tiny_policy
from tests.helpers.rl_training.recorded import EXPRESSIONS, builtin_task, kernel, made, tried
from tests.helpers.rl_training.served import FilePool, file, served

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy.save(tmp_path_factory.mktemp("model") / "tiny", tiny_policy.BRIEF_CHAT)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    with run_factory.new_run(folder) as database:
        for name, expression in zip(
            ("level1/relu", "level1/softmax", "level1/sum_rows"), EXPRESSIONS, strict=True
        ):
            task = builtin_task(name)
            database.add_task(task)
            tried(database, task, made(kernel(expression)), 1.5)
    return folder


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    def type_(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["kernelwright", "train", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return type_


def test_sft_on_curated_samples(
    typed, run: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    assert typed("curate", run, "--out", tmp_path / "data", "--held-out-share", 0) == 0
    words = ("sft", "--model", model, "--data", tmp_path / "data", "--out", tmp_path / "sft", "--cpu", "--json",
             "--steps", 3, "--batch-size", 2, "--learning-rate", 1e-2, "--lora-rank", 2)  # fmt: skip
    capsys.readouterr()
    assert typed(*words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["policy"] == str(tmp_path / "sft" / "policy")
    card = (tmp_path / "sft" / "policy" / "README.md").read_text()
    assert "library_name: peft" in card and "trained by sft" in card and str(model) in card
    assert "| learning_rate | 0.01 |" in card and "base_model" not in card  # a folder is no name on the Hub
    losses = [json.loads(line)["values"].get("loss") for line in (tmp_path / "sft" / METRICS).open()]
    known = [loss for loss in losses if loss is not None]
    assert len(known) == 3 and known[-1] < known[0]
    assert typed(*words[:-2], "--lora-rank", 4) == 2
    assert "was begun with other settings" in capsys.readouterr().err


@pytest.mark.slow
def test_rl_with_a_real_evaluator(
    typed, run: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    words = ("rl", "--model", model, "--data", run, "--out", tmp_path / "rl", "--cpu", "--steps", 1,
             "--batch-size", 4, "--micro-batch", 4, "--group", 2, "--max-completion", 6)  # fmt: skip
    assert typed(*words) == 0, capsys.readouterr().err
    (kept,) = (tmp_path / "rl" / "trajectories").iterdir()
    turns = [turn for rollout in read(kept) for turn in rollout.turns]
    assert len(turns) == 4
    assert all(turn.outcome.verdict == "build_error" and turn.reward == 0 for turn in turns)
    assert (tmp_path / "rl" / "policy" / "model.safetensors").exists()


@pytest.mark.slow
def test_tasks_are_checked_on_a_server(typed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """The winner as fast as in the run, and then not; references that are paid for nothing."""
    with run_factory.new_run(tmp_path / "run") as database:
        task = builtin_task("level1/relu")
        database.add_task(task)
        tried(database, task, made(file(1.5)), 1.5)
    with served(tmp_path / "requests.db", FilePool(kernels_only=True)) as url:
        assert typed("check", "--data", tmp_path / "run", "--evaluator", url) == 0, capsys.readouterr().err
    assert "1 of 1 tasks reward what they should" in capsys.readouterr().out
    with served(tmp_path / "other.db", FilePool()) as url:
        assert typed("check", "--data", tmp_path / "run", "--evaluator", url, "--json") == 1
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["wrong"] == 1 and "the reference, disguised, earns" in printed.err


@pytest.mark.slow
def test_rl_on_a_server(
    typed, run: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    words = ("rl", "--model", model, "--data", run, "--out", tmp_path / "rl", "--cpu", "--steps", 1,
             "--batch-size", 4, "--micro-batch", 4, "--group", 2, "--max-completion", 6)  # fmt: skip
    with served(tmp_path / "requests.db") as url:
        assert typed(*words, "--evaluator", url) == 0, capsys.readouterr().err
    (kept,) = (tmp_path / "rl" / "trajectories").iterdir()
    turns = [turn for rollout in read(kept) for turn in rollout.turns]
    assert len(turns) == 4 and all(turn.outcome.verdict == "build_error" for turn in turns)
    assert typed(*words, "--evaluator", url) == 2
    assert f"{url} does not answer" in capsys.readouterr().err
    chip = run_factory.TARGET.fingerprint.model_copy(update={"chip": "Testium 9001"})
    other = run_factory.TARGET.model_copy(update={"fingerprint": chip})
    with served(tmp_path / "other.db", target=other) as url:
        assert typed(*words, "--evaluator", url) == 2
    assert "was begun with other data: 'the machine of --evaluator' differ" in capsys.readouterr().err


def test_one_task_alone(typed, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    with run_factory.new_run(tmp_path / "run") as database:
        task = builtin_task("level1/relu")
        database.add_task(task)
        tried(database, task, made(kernel()), 1.5)
    assert typed("curate", tmp_path / "run", "--out", tmp_path / "data", "--held-out-share", 0) == 0
    assert typed("sft", "--model", model, "--data", tmp_path / "data", "--out", tmp_path / "sft") == 2
    assert "only one task" in capsys.readouterr().err
    assert not (tmp_path / "sft").exists()


def test_a_model_that_is_not_there(
    typed, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    assert typed("rl", "--model", "/nowhere/model", "--data", run, "--out", tmp_path / "rl") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the folder /nowhere/model does not exist")


def test_groups_and_turns_that_do_not_fit(
    typed, run: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    assert typed("rl", "--model", model, "--data", run, "--out", tmp_path, "--group", 6, "--turns", 4) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a group of 6 is not a multiple of 4 turns" in line


THINKS = tiny_policy.BRIEF_CHAT.replace(
    "<|{{ message['role'] }}|>", "<|{{ message['role'] }}|>{{ message.reasoning_content or '' }}"
)


@pytest.mark.parametrize(
    ("template", "words", "learned"),
    [
        (THINKS, (), "First, x[i]."),  # by default
        (THINKS, ("--reasoning", "drop"), ""),
        (tiny_policy.BRIEF_CHAT, (), ""),
        (tiny_policy.BRIEF_CHAT, ("--reasoning", "think"), None),
    ],
)
def test_reasoning_is_learned_where_there_is_a_place_for_it(
    typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    template: str, words: tuple[str, ...], learned: str | None,
) -> None:  # type: ignore[no-untyped-def]  # fmt: skip
    from kernelwright.rl_training.curation import parquet
    from kernelwright.rl_training.trainers import supervised

    rows = [
        {"prompt": [{"role": "user", "content": task}], "completion": [{"role": "assistant", "content": "y = x;"}],
         "reasoning": reasoning, "task": task, "speedup_low": 1.5}
        for task, reasoning in (("one", "First, x[i]."), ("two", ""))
    ]  # fmt: skip
    slow = {**rows[0], "task": "three", "speedup_low": 0.9, "reasoning": "Not at all."}
    parquet.write(tmp_path / "data" / "sft" / "train.parquet", [*rows, slow])
    seen: list[str] = []

    class Noting(supervised.SupervisedTrainer):
        def train(self, **_: object) -> None:
            for row in self.train_dataset:
                taught = [
                    t for t, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100
                ]
                seen.append(self.processing_class.decode(taught))

    monkeypatch.setattr(supervised, "SupervisedTrainer", Noting)
    model = tiny_policy.save(tmp_path / "model", template)
    code = typed("sft", "--model", model, "--data", tmp_path / "data", "--out", tmp_path / "sft", "--cpu",
                 "--batch-size", 2, "--min-speedup", 1, *words)  # fmt: skip
    told = capsys.readouterr().err
    if learned is None:
        assert code == 2 and "has no place for the samples' reasoning" in told and "--reasoning drop" in told
        return
    assert code == 0, told
    assert sorted(seen) == sorted([f"{learned}y = x;<|end|>", "y = x;<|end|>"])
    assert ("Reasoning was left out: 1 of 2 samples" in told) == (not learned)


def test_runs_give_exemplars_and_hacks_to_begin_with(run: Path) -> None:
    from kernelwright.rl_training.tasks import tasks_from
    from kernelwright.rl_training.trainers.cli import _exemplars

    tasks = tasks_from([str(run)], 0.0, 0).train
    store = _exemplars([str(run)], tasks)
    assert {task.task.id: [e.speedup for e in store.of(task.task.id)] for task in tasks} == {
        task.task.id: [pytest.approx(1.47)]
        for task in tasks  # the lower bound
    }


def test_tasks_of_another_device(
    typed, run: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    words = ("rl", "--model", model, "--data", run, "--out", tmp_path / "rl", "--target", "cuda:0")
    assert typed(*words) == 2
    assert "--target cuda:0: the tasks are for cpu" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--optimizer", "nope"), ("--clip-high", 0.28, "--loss", "cispo")])
def test_what_cannot_be_is_said_before_an_evaluator_starts(
    typed,
    run: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[object, ...],
) -> None:  # type: ignore[no-untyped-def]
    assert typed("rl", "--model", model, "--data", run, "--out", tmp_path / "rl", "--cpu", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and str(words[1]) in line
    assert not (tmp_path / "rl").exists()
