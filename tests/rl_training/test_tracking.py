"""What is kept of a training: written once, checked when it goes on, and each step counted once."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from kernelwright.kernelbench.errors import KernelwrightError, MissingPrerequisite, StorageError, UsageError
from kernelwright.kernelbench.records import Record
from kernelwright.results.store import training
from kernelwright.results.store.lines import append
from kernelwright.results.store.training import Training, read_manifest
from kernelwright.rl_training.rewards.scheme import SCHEMES
from kernelwright.rl_training.tracking import environment
from kernelwright.rl_training.tracking.card import write_card
from kernelwright.rl_training.tracking.metrics import MetricsFile
from kernelwright.rl_training.tracking.run import tracked
from kernelwright.rl_training.tracking.trackers import Tracking, reporting
from kernelwright.rl_training.trainers.settings import OnlineSettings
from tests.helpers.rl_training.tiny_policy import save
from tests.helpers.rl_training.tiny_training import Interrupt, learning

pytestmark = pytest.mark.training


class Settings(Record):
    learning_rate: float = 1e-2
    rank: int | None = None


def begun(path: Path, **changed: object) -> Path | None:
    """Begins one, or goes on; returns the checkpoint."""
    given = {
        "method": "sft",
        "config": Settings(),
        "seeds": {"training": 1},
        "data": {"a.parquet": "12"},
    } | changed
    with tracked(path, **given) as run:  # type: ignore[arg-type]
        return run.checkpoint


def test_the_manifest_says_what_was_run_and_is_never_changed(tmp_path: Path) -> None:
    begun(tmp_path, command="kernelwright train sft")
    first = (tmp_path / "manifest.json").read_bytes()
    told = json.loads(first)
    assert (told["schema"], told["method"], told["command"]) == (1, "sft", "kernelwright train sft")
    assert told["config"] == {"learning_rate": 1e-2, "rank": None}
    assert told["seeds"] == {"training": 1} and told["data"] == {"a.parquet": "12"}
    assert {"torch", "transformers", "trl"} <= told["packages"].keys()
    assert told["machine"]["chip"]
    (tmp_path / "checkpoint-20").mkdir()
    (tmp_path / "checkpoint-20" / "trainer_state.json").write_text('{"global_step": 20}')
    assert begun(tmp_path, command="the same again") == tmp_path / "checkpoint-20"
    assert (tmp_path / "manifest.json").read_bytes() == first
    starts = Training.read(tmp_path).starts
    assert [(s.step, s.command) for s in starts] == [(0, "kernelwright train sft"), (20, "the same again")]


def test_what_goes_on_must_be_what_began(tmp_path: Path) -> None:
    begun(tmp_path)
    for changed, words in (
        ({"method": "rrhf"}, "is a training by sft, not by rrhf — use the same method, or another --out"),
        (
            {"config": Settings(learning_rate=1e-3, rank=8)},
            "begun with other settings: learning_rate was 0.01, now is 0.001; rank was None, now is 8 — use the",
        ),
        ({"seeds": {"training": 2}}, "other seeds: training was 1, now is 2"),
        ({"data": {"a.parquet": "13"}}, "other data: 'a.parquet' differ"),
        ({"data": {"a.parquet": "12", "b": "1"}}, "other data: 'b' differ"),
    ):
        with pytest.raises(UsageError) as raised:
            begun(tmp_path, **changed)
        assert words in str(raised.value) and "\n" not in str(raised.value)
    assert len(Training.read(tmp_path).starts) == 1


def test_a_folder_that_holds_something_else_or_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="is not empty and holds no training — use another --out"):
        begun(tmp_path / "full")
    begun(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").write_text('{"schema": 1}')
    with pytest.raises(StorageError, match=r"invalid training manifest .*: method: Field required — read it"):
        begun(tmp_path / "run")
    with (
        tracked(tmp_path / "held", "sft", Settings(), {}, {}),
        pytest.raises(StorageError, match="another run"),
    ):
        begun(tmp_path / "held")


def test_a_file_that_has_changed_has_another_hash(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    file.write_bytes(b"abc")  # FIPS 180-2's example
    before = environment.hashes([file])
    assert before[str(file)].startswith("ba7816bf 8f01cfea".replace(" ", ""))
    file.write_bytes(b"abd")
    assert environment.hashes([file]) != before
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        environment.hashes([tmp_path / "none"])


def test_the_commit_is_known_and_whether_files_have_changed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.check_output(["git", "-C", str(tmp_path), *who, *words], text=True).strip()

    assert environment.commit(tmp_path) is None
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    assert environment.commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "a").write_text("2")
    assert environment.commit(tmp_path) == git("rev-parse", "HEAD") + "+"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("policy"))


def test_steps_that_are_gone_through_again_count_once(model: Path, tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        learning(model, tmp_path, MetricsFile(tmp_path), Interrupt(4), logging_steps=1).train()
    before = Training.read(tmp_path)
    assert [step for step, _ in before.series("loss")] == [1, 2, 3]  # the fourth was not logged yet
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "time": "2026-')  # killed while it was written
    found = begun(tmp_path)
    assert found == tmp_path / "checkpoint-2"
    learning(model, tmp_path, MetricsFile(tmp_path), logging_steps=1).train(resume_from_checkpoint=str(found))
    after = Training.read(tmp_path)
    assert [step for step, _ in after.series("loss")] == [1, 2, 3, 4, 5, 6]
    assert after.series("loss")[:3] == before.series("loss")  # the third came out as before
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3 + 1 + 4 + 1  # and the summary's
    assert after.points[-1].values.keys() >= {"loss", "train_runtime"}


def test_numbers_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(KernelwrightError, match=r"metrics.jsonl cannot be written: .* — free some space"):
        append(tmp_path / "metrics.jsonl", "{}")


def test_numbers_that_are_none_are_kept(tmp_path: Path) -> None:
    class State:
        is_world_process_zero, global_step = True, 3

    begun(tmp_path)
    logs = {"loss": float("nan"), "kl": float("inf"), "name": "x"}
    MetricsFile(tmp_path).on_log(None, State(), None, logs)
    (point,) = Training.read(tmp_path).points
    assert str(point.values) == "{'loss': nan, 'kl': inf}"


TRACKED = """
import socket, sys
from pathlib import Path

def refused(*_, **__):
    raise OSError("no network")

socket.socket.connect = refused
from tests.helpers.rl_training.tiny_training import learning
from kernelwright.rl_training.tracking.trackers import Tracking, reporting

out = Path(sys.argv[2])
learning(Path(sys.argv[1]), out, steps=2, logging_steps=1, **reporting(Tracking(sys.argv[3]), out)).train()
"""


@pytest.mark.slow
def test_trackio_writes_into_the_folder_without_a_network(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    words = [sys.executable, "-c", TRACKED, str(model), str(tmp_path), "trackio"]
    environ = {k: v for k, v in os.environ.items() if k != "TRACKIO_DIR"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environ, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "trackio" / "kernelwright.db") as database:
        logged = [
            json.loads(values) for (values,) in database.execute("select metrics from metrics order by step")
        ]
    assert [values["train/global_step"] for values in logged if "train/loss" in values] == [1, 2]


def test_tensorboard_writes_into_the_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")  # and so it is as before afterwards
    arguments = reporting(Tracking.tensorboard, tmp_path)
    learning(model, tmp_path, steps=2, logging_steps=1, **arguments).train()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_card_of_a_policy_says_what_it_was_trained_on(scheme: str, tmp_path: Path) -> None:
    settings = OnlineSettings(model="owner/model", steps=3, learning_rate=1e-5, reward=SCHEMES[scheme])
    with tracked(tmp_path / "rl", "rl dr_grpo", settings, {"training": 0}, {"builtin:level1/relu": "a" * 64}):
        pass
    (tmp_path / "rl" / "policy").mkdir()
    write_card(tmp_path / "rl", tmp_path / "rl" / "policy")
    found = (tmp_path / "rl" / "policy" / "README.md").read_text()
    assert "base_model: owner/model" in found and "trained by rl dr_grpo" in found
    assert f"- builtin:level1/relu: `{'a' * 16}`" in found and "**Reward**: " in found


def test_wandb_writes_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert reporting(Tracking.wandb, tmp_path / "rl") == {"report_to": "wandb", "run_name": "rl"}
    assert os.environ["WANDB_DIR"] == str(tmp_path / "rl") and os.environ["WANDB_PROJECT"] == "kernelwright"


def test_a_tracker_that_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingPrerequisite, match=r"needs the package trackio — pip install .*, or --tracking none"
    ):
        reporting(Tracking.trackio, tmp_path)
    assert reporting(Tracking.none, tmp_path) == {"report_to": "none"}


def test_another_version_s_manifest_is_refused(tmp_path: Path) -> None:
    begun(tmp_path)
    path = tmp_path / training.MANIFEST
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(StorageError, match="has schema 2, this version reads 1"):
        read_manifest(tmp_path)
