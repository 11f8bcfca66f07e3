"""What is trained moves, in every precision that is to be had, and others are refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.rl_training import tiny_policy

pytest.importorskip("trl")
import torch
from pydantic import ValidationError
from transformers import TrainerCallback

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.rl_training.trainers import arguments, offline, precision
from kernelwright.rl_training.trainers.arguments import require_runnable
from kernelwright.rl_training.trainers.policy import LoraSettings
from tests.helpers.rl_training.reading_pool import Paying, run, settings

pytestmark = pytest.mark.training

RATE, STEPS = 2e-6, 4  # train rl's own
RANK = LoraSettings(rank=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy.save(tmp_path_factory.mktemp("model") / "tiny", tiny_policy.BRIEF_CHAT)


class Moved(TrainerCallback):
    """By how much the weights that are trained differ at the end, and the dtypes of all."""

    def on_train_begin(self, *_: Any, model: Any = None, **__: Any) -> None:
        self.before = {name: held.detach().clone() for name, held in model.named_parameters()}

    def on_train_end(self, *_: Any, model: Any = None, **__: Any) -> None:
        held = dict(model.named_parameters())
        self.trained = {
            name: (held[name] - self.before[name]).abs() for name in held if held[name].requires_grad
        }
        self.kept = {name: held[name] - self.before[name] for name in held if not held[name].requires_grad}
        self.dtypes = {
            part: {held[name].dtype for name in getattr(self, part)} for part in ("trained", "kept")
        }


def moved(model: Path, out: Path, lora: LoraSettings | None, **changed: object) -> Moved:
    """By train rl's own rate, in which Adam moves each weight a step, less where gradients disagree. In bf16 a
    weight of 0.02 has steps of 6e-5 to 1.2e-4.
    """
    watch, pool = Moved(), Paying(lambda number: [0, 2, 2.5, 3][number % 4])
    run(settings(model, steps=STEPS, learning_rate=RATE, lora=lora, **changed), out, pool, [watch])
    # What has a gradient: not the embeddings of tokens that did not come up, nor all of lora_A, for lora_B
    # begins at 0.
    far = torch.cat(
        [
            held.flatten()
            for name, held in watch.trained.items()
            if "lora_B" in name or ("layers" in name and lora is None)
        ]
    )
    assert (far > 0).float().mean() > 0.95
    assert far.mean() > RATE * STEPS / 4
    assert all((difference == 0).all() for difference in watch.kept.values())
    return watch


@pytest.mark.parametrize(
    ("named", "lora", "base"),
    [
        ("float32", None, set()),
        ("bf16-mixed", None, set()),
        ("bf16-mixed", RANK, {torch.float32}),
        ("bf16", RANK, {torch.bfloat16}),
    ],
)
def test_a_policy_moves_at_the_default_rate(
    model: Path, tmp_path: Path, named: str, lora: LoraSettings | None, base: set[torch.dtype]
) -> None:
    watch = moved(model, tmp_path, lora, precision=named)
    assert watch.dtypes == {"trained": {torch.float32}, "kept": base}


@pytest.mark.gpu
@pytest.mark.parametrize(("lora", "base"), [(None, set()), (RANK, {torch.bfloat16})], ids=str)
def test_a_policy_moves_on_a_gpu_in_the_usual_precision(
    model: Path, tmp_path: Path, lora: LoraSettings | None, base: set[torch.dtype]
) -> None:
    usual = precision.usual(lora is not None, cpu=False)
    watch = moved(model, tmp_path, lora, precision=usual, cpu=False)
    assert watch.dtypes == {"trained": {torch.float32}, "kept": base}


def test_bf16_weights_are_not_trained(model: Path) -> None:
    with pytest.raises(ValidationError, match=r"updates of bf16 weights .* rounded away; use bf16-mixed"):
        settings(model, precision="bf16")
    with pytest.raises(ValidationError, match="rounded away"):
        offline.OfflineSettings(
            model="", method="rrhf", reward=settings(model).reward, steps=1, learning_rate=1.0, batch=1, seed=0,
            lora=None, max_length=1, precision="bf16",
        )  # fmt: skip


@pytest.mark.parametrize("new", [True, False], ids=["a GPU with bf16", "an older one"])
def test_the_usual_precision(monkeypatch: pytest.MonkeyPatch, new: bool) -> None:
    gpu = SimpleNamespace(is_available=lambda: True, is_bf16_supported=lambda including_emulation: new)
    monkeypatch.setattr(torch, "cuda", gpu)
    usual = {(lora, cpu): precision.usual(lora, cpu) for lora in (True, False) for cpu in (True, False)}
    assert usual == {
        (False, False): "bf16-mixed" if new else "float32",
        (True, False): "bf16" if new else "float32",
        (False, True): "float32",
        (True, True): "float32",
    }


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        (
            {"optimizer": "nope"},
            UsageError,
            "--optimizer nope: transformers has no such optimizer — use one",
        ),
        ({"optimizer": "adamw_8bit"}, MissingPrerequisite, "--optimizer adamw_8bit: .*bitsandbytes"),
        ({"optimizer": "galore_adamw"}, MissingPrerequisite, "--optimizer galore_adamw: .*galore"),
        (
            {"vllm": "colocate"},
            MissingPrerequisite,
            "--vllm colocate needs the package vllm — pip install vllm",
        ),
        ({"deepspeed": "/nowhere.json"}, UsageError, "--deepspeed /nowhere.json: the file does not exist"),
        ({"deepspeed": __file__}, UsageError, "--deepspeed: accelerate uses DeepSpeed on GPUs alone — leave"),
        ({"precision": "bf16-mixed", "cpu": False}, UsageError, "no GPU of this machine supports bf16"),
    ],
    ids=str,
)
def test_what_cannot_run_is_one_line_before_anything_starts(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, object],
    kind: type[Exception],
    words: str,
) -> None:
    lacking = {"vllm", "deepspeed", "bitsandbytes", "galore_torch"}
    found = arguments.find_spec
    monkeypatch.setattr(arguments, "find_spec", lambda name: None if name in lacking else found(name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(kind, match=words) as raised:
        require_runnable(settings(model, **changed))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adafactor", "sgd"])
def test_what_can_run_is_said_nothing_of(model: Path, optimizer: str) -> None:
    require_runnable(settings(model, optimizer=optimizer))
