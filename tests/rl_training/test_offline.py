"""Offline learning: what is read of data sets and runs, and what a tiny policy makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import EXPRESSIONS, answered, builtin_task, kernel, made, tried

pytest.importorskip("trl")

import torch

from kernelwright.kernelbench.errors import KernelwrightError, StorageError, UsageError
from kernelwright.kernelbench.records import Verdict
from kernelwright.results.store.training import Training
from kernelwright.rl_training.curation import parquet
from kernelwright.rl_training.curation.curate import CurationSettings, curate, write
from kernelwright.rl_training.rewards.scheme import SCHEMES
from kernelwright.rl_training.tracking.metrics import MetricsFile
from kernelwright.rl_training.trainers.checkpoints import last_good
from kernelwright.rl_training.trainers.guards import Diverged
from kernelwright.rl_training.trainers.log_probs import encode
from kernelwright.rl_training.trainers.offline import OfflineSettings, samples_of, train
from kernelwright.rl_training.trainers.offline_cli import offline
from kernelwright.rl_training.trainers.options import Method
from kernelwright.rl_training.trainers.policy import LoraSettings, Policy, load_policy
from kernelwright.rl_training.trainers.recorded import recorded
from tests.helpers.rl_training.tiny_policy import save
from tests.helpers.rl_training.tiny_training import Interrupt, weights

pytestmark = pytest.mark.training

LOG = SCHEMES["log-speedup"]
REPLIES = {"one": ("x = 1;", "x = 22;", "nothing at all"), "two": ("y += z;", "z = y", "?")}
SCORES = [2.0, 1.1, 0.0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranked(tmp_path_factory.mktemp("data"), REPLIES)


def ranked(folder: Path, replies: dict[str, tuple[str, ...]], scores: list[float] = SCORES) -> Path:
    rows = [
        {
            "prompt": [{"role": "system", "content": "C++"}, {"role": "user", "content": task}],
            "completions": list(given),
            "scores": scores[: len(given)],
            "task": task,
        }
        for task, given in replies.items()
    ]
    parquet.write(folder / "ranked" / "train.parquet", rows)
    return folder


def test_a_data_set_is_read_as_curation_wrote_it(tmp_path: Path) -> None:
    with run_factory.new_run(tmp_path / "run") as run:
        for name in ("level1/relu", "level1/silu"):
            task = builtin_task(name)
            run.add_task(task)
            tried(run, task, made(kernel(EXPRESSIONS[0])), 1.5)
            tried(run, task, made(kernel(EXPRESSIONS[1])), 2.0)
            tried(run, task, made(kernel(EXPRESSIONS[2])), None, Verdict.wrong_output)
        write(curate([run], [], CurationSettings(held_out_share=0)), tmp_path / "data", "")
    found = recorded([str(tmp_path / "data")], LOG)
    assert found.tasks == {"builtin:level1/relu", "builtin:level1/silu"}
    (relu,) = [one for one in found.prompts if "relu" in one.task]
    assert relu.rewards == (pytest.approx(1.96), pytest.approx(1.47), 0.0)  # lower bounds
    assert EXPRESSIONS[1] in relu.replies[0]
    assert [message["role"] for message in relu.messages] == ["system", "user"]
    (sha256,) = found.hashes.values()
    assert len(sha256) == 64


def test_of_a_run_turns_earn_what_the_scheme_pays_and_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    with run_factory.new_run(tmp_path) as run:
        for name in ("level1/relu", "level1/silu"):
            task = builtin_task(name)
            run.add_task(task)
            good = answered(run, task, kernel(EXPRESSIONS[0]), "")
            tried(run, task, good, 2.0)
            tried(run, task, answered(run, task, kernel(EXPRESSIONS[1]), ""), None, Verdict.wrong_output)
            tried(run, task, answered(run, task, kernel(EXPRESSIONS[2]), ""), None, Verdict.unmeasured)
    found = recorded([str(tmp_path)], LOG)
    (relu,) = [one for one in found.prompts if "relu" in one.task]
    # 0.3 for being right and the logarithm of the lower bound, 1.96; 0 for being wrong.
    assert relu.rewards == (pytest.approx(0.3 + 0.672944), 0.0)
    assert recorded([str(tmp_path)], LOG).hashes == found.hashes
    assert recorded([str(tmp_path)], SCHEMES["cuda-agent"]).hashes != found.hashes


def test_a_first_turn_is_credited_with_later_ones(tmp_path: Path) -> None:
    with run_factory.new_run(tmp_path) as run:
        for name in ("level1/relu", "level1/silu"):
            task = builtin_task(name)
            run.add_task(task)
            first = answered(run, task, kernel(EXPRESSIONS[0]), "")
            tried(run, task, first, None, Verdict.wrong_output)
            later = answered(run, task, kernel(EXPRESSIONS[1]), "")
            tried(run, task, later.model_copy(update={"parents": (first.sha256,)}), 2.0)
    rewards = next(one.rewards for one in recorded([str(tmp_path)], LOG).prompts if "relu" in one.task)
    assert rewards == (pytest.approx(0.4 * 0.972944), pytest.approx(0.972944))


def test_what_there_is_nothing_to_learn_from_is_one_line(tmp_path: Path, model: Path) -> None:
    policy = load_policy(str(model))

    def refused(words: str, replies: dict[str, tuple[str, ...]], scores: list[float], **changed: Any) -> None:
        folder = ranked(tmp_path / words[:9], replies, scores)
        with pytest.raises(UsageError) as raised:
            samples_of(policy, recorded([str(folder)], LOG).prompts, settings(model, **changed))
        assert words in str(raised.value) and "\n" not in str(raised.value)

    refused("only one task, one", {"one": REPLIES["one"]}, SCORES)
    refused("no prompt has replies with different rewards", REPLIES, [1.0, 1.0, 1.0])
    refused("than the value of its prompt", REPLIES, [1.0, 1.0, 1.0], method="a-lol")
    refused("none of 6 replies has at most 5 tokens", REPLIES, SCORES, max_length=5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"holds neither ranked lists .* nor a run — give a folder"):
        recorded([str(tmp_path / "empty")], LOG)
    with pytest.raises(StorageError, match="holds no run"):
        recorded([str(tmp_path / "nowhere")], LOG)
    run_factory.new_run(tmp_path / "run").close()
    with pytest.raises(UsageError, match="nothing to learn from — give data with ranked lists, or runs"):
        recorded([str(tmp_path / "run")], LOG)


def test_a_reply_is_encoded_as_it_would_be_generated(model: Path) -> None:
    tokenizer = load_policy(str(model)).tokenizer
    prompt = [{"role": "user", "content": "Write."}]
    found = encode(tokenizer, prompt, "x = 1;")
    assert tokenizer.decode(found.tokens[: found.prompt]) == "<|user|>Write.<|end|><|assistant|>"
    assert tokenizer.decode(found.tokens[found.prompt :]) == "x = 1;<|end|>"
    tokenizer.chat_template = tokenizer.chat_template.replace("<|end|>", "<|end|>\n")  # as ChatML has it
    assert tokenizer.decode(encode(tokenizer, prompt, "x = 1;").tokens[-1]) == "<|end|>"


def settings(model: Path, **changed: Any) -> OfflineSettings:
    given: dict[str, Any] = {
        "model": str(model), "method": "rrhf", "reward": LOG, "steps": 12, "learning_rate": 3e-3, "batch": 2,
        "seed": 0, "lora": None, "max_length": 512,
    }  # fmt: skip
    return OfflineSettings(**given | changed)


def learned(model: Path, data: Path, out: Path, *callbacks: Any, **changed: Any) -> Path:
    """The folder of the policy; goes on with what is in `out`."""
    torch.manual_seed(0)
    wanted = settings(model, **changed)
    policy = load_policy(str(model), wanted.lora)
    samples = samples_of(policy, recorded([str(data)], LOG).prompts, wanted)
    return train(policy, samples, wanted, out, last_good(out), "cpu", {"report_to": "none"}, callbacks)


def likelihoods(policy: Policy, data: Path) -> list[list[float]]:
    """Of each reply to each prompt, a mean over tokens."""
    found = []
    for one in recorded([str(data)], LOG).prompts:
        scores = []
        for reply in one.replies:
            encoded = encode(policy.tokenizer, one.messages, reply)
            tokens = torch.tensor([encoded.tokens])
            labels = tokens.clone()
            labels[:, : encoded.prompt] = -100
            with torch.no_grad():
                scores.append(-policy.model(input_ids=tokens, labels=labels).loss.item())
        found.append(scores)
    return found


@pytest.mark.parametrize("method", list(Method))
def test_better_replies_become_more_likely(model: Path, data: Path, tmp_path: Path, method: Method) -> None:
    before = likelihoods(load_policy(str(model)), data)
    written = learned(model, data, tmp_path, MetricsFile(tmp_path), method=method.value)
    after = likelihoods(load_policy(str(written)), data)
    for worse, better in zip(before, after, strict=True):
        assert better[0] > worse[0] + 0.5
        assert better[0] - better[2] > worse[0] - worse[2]
    logged = [json.loads(line)["values"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    if method is Method.rrhf:
        assert {"ranking_loss", "best_loss", "ranked_right", "loss"} <= logged[0].keys()
        assert logged[0]["loss"] == pytest.approx(
            logged[0]["ranking_loss"] + logged[0]["best_loss"], rel=1e-4
        )
    else:
        assert {"advantage", "log_ratio", "clipped_share", "loss"} <= logged[0].keys()
        assert logged[0]["log_ratio"] == pytest.approx(0, abs=1e-4)  # the reference policy is the first
        assert logged[11]["log_ratio"] > 1
        assert all(values["advantage"] > 0 for values in logged[:12])


@pytest.mark.parametrize(
    ("method", "lora"), [("rrhf", None), ("a-lol", None), ("rrhf", LoraSettings(rank=4, dropout=0.1))]
)
def test_a_resume_goes_on_bit_for_bit(
    model: Path, data: Path, tmp_path: Path, method: str, lora: LoraSettings | None
) -> None:
    changed = {"method": method, "lora": lora, "steps": 6, "save_every": 3}
    whole = learned(model, data, tmp_path / "whole", **changed)
    with pytest.raises(KeyboardInterrupt):
        learned(model, data, tmp_path / "broken", Interrupt(4), **changed)
    assert last_good(tmp_path / "broken") == tmp_path / "broken" / "checkpoint-3"
    resumed = learned(model, data, tmp_path / "broken", **changed)
    assert torch.equal(weights(whole), weights(resumed))
    assert not torch.equal(weights(whole), weights(model))


def test_a_learning_rate_that_is_too_high_ends_it_and_keeps_the_last_good_checkpoint(
    model: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(Diverged, match="not finite at step"):
        learned(model, data, tmp_path, learning_rate=1e30, save_every=1)
    kept = last_good(tmp_path)
    assert kept is not None and torch.isfinite(weights(kept)).all()


def typed(*words: object) -> Result:
    app = typer.Typer()
    app.command()(offline)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_trains_reports_and_goes_on_only_with_the_same(
    model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["--model", model, "--data", data, "--out", out, "--steps", 2, "--learning-rate", 1e-3, "--cpu"]
    done = typed(*words, "--json")
    assert done.exit_code == 0, done.exception
    told = json.loads(done.stdout)
    assert (told["schema"], told["steps"], told["replies"], told["too_long"]) == (1, 2, 6, 0)
    assert load_policy(told["policy"]).tokenizer.chat_template
    kept = Training.read(out)
    assert kept.manifest.method == "rrhf" and kept.manifest.config["learning_rate"] == 1e-3
    assert any(name.endswith("ranked/train.parquet") for name in kept.manifest.data)
    assert any(name.endswith("model.safetensors") for name in kept.manifest.data)
    assert [step for step, _ in kept.series("ranked_right")] == [1, 2]
    again = typed(*words)
    assert again.exit_code == 0 and "Resuming from" in again.stderr
    other = typed(*words, "--seed", 3)
    assert isinstance(other.exception, UsageError) and "seed was 0, now is 3" in str(other.exception)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--learning-rate", "0"], "use more than 0"),
        (["--reward", "fame"], "unknown reward scheme 'fame'"),
        (["--model", "/nowhere"], "the folder /nowhere does not exist"),
        (["--data", "/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_be_is_one_line(
    model: Path, data: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    given = ["--model", model, "--data", data, "--out", tmp_path / "out", "--cpu"]
    done = typed(*given, *words)
    assert isinstance(done.exception, KernelwrightError)
    assert told in str(done.exception) and "\n" not in str(done.exception)
    assert not (tmp_path / "out").exists()
