"""A policy that was trained is the one that is loaded: all weights, adapters, adapters on adapters."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.rl_training import tiny_policy

pytest.importorskip("trl")
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, TrainerCallback

from kernelwright.kernelbench.errors import UsageError
from kernelwright.rl_training.rewards.scheme import SCHEMES
from kernelwright.rl_training.trainers import offline, supervised
from kernelwright.rl_training.trainers.collapse import Collapsed, HealthLimits
from kernelwright.rl_training.trainers.policy import LoraSettings, load_policy
from kernelwright.rl_training.trainers.precision import of_weights
from kernelwright.rl_training.trainers.recorded import Prompted
from kernelwright.rl_training.trainers.settings import SftSettings
from tests.helpers.rl_training.reading_pool import Paying, run, settings

pytestmark = pytest.mark.training

TOKENS = torch.arange(40)[None]
RANK = LoraSettings(rank=4)
ROWS = [
    {
        "prompt": [{"role": "user", "content": "Write."}],
        "completion": [{"role": "assistant", "content": text}],
    }
    for text in ("x = 1;", "y += z;")
]


class Last(TrainerCallback):
    """What the policy says at the end of its training."""

    def on_train_end(self, *_: Any, model: Any = None, **__: Any) -> None:
        self.logits = logits(model)


def logits(model: Any) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(TOKENS).logits.float()


def loaded(folder: Path, dtype: str = "float32") -> dict[str, torch.Tensor]:
    """By us, and as anybody loads it."""
    found = {
        "load_policy": load_policy(str(folder), dtype=dtype).model,
        "transformers": AutoModelForCausalLM.from_pretrained(folder, dtype=dtype),
    }
    if (folder / "adapter_config.json").exists():
        found["peft"] = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return {how: logits(model) for how, model in found.items()}


def taught(model: Path, out: Path, lora: LoraSettings | None, precision: str = "float32") -> torch.Tensor:
    """SFT; what the policy said at its end."""
    chosen = SftSettings.model_validate(
        {"model": str(model), "steps": 3, "learning_rate": 1e-2, "batch": 2, "micro_batch": 2, "lora": lora,
         "precision": precision, "cpu": True}
    )  # fmt: skip
    torch.manual_seed(1)
    last = Last()
    supervised.train(load_policy(str(model), lora, of_weights(chosen.precision)), ROWS, chosen, out, [last])
    return last.logits


def rewarded(model: Path, out: Path, lora: LoraSettings | None, **changed: object) -> torch.Tensor:
    """RL; what the policy said at its end."""
    torch.manual_seed(2)
    last = Last()
    pool = Paying(lambda number: [0, 2, 2.5, 3][number % 4])
    run(settings(model, lora=lora, **{"steps": 3} | changed), out, pool, [last])
    return last.logits


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy.save(tmp_path_factory.mktemp("model") / "tiny", tiny_policy.BRIEF_CHAT)


@pytest.mark.parametrize(("first", "then"), [(None, None), (None, RANK), (RANK, None), (RANK, RANK)], ids=str)
def test_what_is_loaded_is_what_was_trained(
    model: Path, tmp_path: Path, first: LoraSettings | None, then: LoraSettings | None
) -> None:
    before = logits(load_policy(str(model)).model)
    sft = taught(model, tmp_path / "sft", first)
    rl = rewarded(tmp_path / "sft" / "policy", tmp_path / "rl", then, kl=0.1)
    assert (sft - before).abs().mean() > 0.01 and (rl - sft).abs().mean() > 0.01
    for stage, said in (("sft", sft), ("rl", rl)):
        for how, found in loaded(tmp_path / stage / "policy").items():
            torch.testing.assert_close(found, said, atol=1e-5, rtol=1e-4, msg=f"{stage} by {how}")
    assert (tmp_path / "rl" / "base").exists() == (first is not None and then is not None)


def test_a_third_set_of_adapters(tmp_path: Path) -> None:
    """Of a model whose last layer is its first, as small ones' are."""
    taught(tiny_policy.save(tmp_path / "model", tied=True), tmp_path / "1", RANK)
    taught(tmp_path / "1" / "policy", tmp_path / "2", RANK)
    said = taught(tmp_path / "2" / "policy", tmp_path / "3", LoraSettings(rank=2))
    for how, found in loaded(tmp_path / "3" / "policy").items():
        torch.testing.assert_close(found, said, atol=1e-5, rtol=1e-4, msg=how)


def test_adapters_of_offline_learning(model: Path, tmp_path: Path) -> None:
    taught(model, tmp_path / "sft", RANK)
    policy, last = load_policy(str(tmp_path / "sft" / "policy"), RANK), Last()
    chosen = offline.OfflineSettings(
        model="", method="rrhf", reward=SCHEMES["log-speedup"], steps=2, learning_rate=1e-2, batch=1, seed=0,
        lora=RANK, max_length=512,
    )  # fmt: skip
    prompts = [Prompted("one", (("user", "Write."),), ("y += z;", "x = 1;"), (2.0, 0.0))]
    samples = offline.samples_of(policy, prompts, chosen)
    offline.train(policy, samples, chosen, tmp_path / "out", None, "cpu", {"report_to": "none"}, [last])
    for how, found in loaded(tmp_path / "out" / "policy").items():
        torch.testing.assert_close(found, last.logits, atol=1e-5, rtol=1e-4, msg=how)


def test_float32_adapters_on_a_bf16_base(model: Path, tmp_path: Path) -> None:
    """Merged in bf16, most of what a short RL teaches would be rounded away. So they are kept apart."""
    taught(model, tmp_path / "sft", RANK, "bf16")
    said = rewarded(tmp_path / "sft" / "policy", tmp_path / "rl", RANK, precision="bf16")
    policy = tmp_path / "rl" / "policy"
    with torch.autocast("cpu", torch.bfloat16):
        found = logits(AutoPeftModelForCausalLM.from_pretrained(policy, dtype="bfloat16"))
        untaught = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "rl" / "base", dtype="bfloat16"))
    torch.testing.assert_close(found, said, atol=1e-2, rtol=1e-2)
    assert (untaught - said).abs().mean() > 5 * (found - said).abs().mean()


def test_checkpoints_are_policies_too(model: Path, tmp_path: Path) -> None:
    taught(model, tmp_path / "sft", RANK)
    rewarded(tmp_path / "sft" / "policy", tmp_path / "rl", RANK, steps=2)
    checkpoint, policy = loaded(tmp_path / "rl" / "checkpoint-2"), loaded(tmp_path / "rl" / "policy")
    for how, found in checkpoint.items():
        torch.testing.assert_close(found, policy[how])


@pytest.mark.slow
def test_adapters_with_a_divergence_go_on_where_they_were(model: Path, tmp_path: Path) -> None:
    """TRL keeps a second set of adapters then, which transformers would load instead of the trained ones."""

    class Killed(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                raise KeyboardInterrupt

    chosen = settings(model, lora=RANK, kl=0.1)
    whole, resumed = Last(), Last()
    torch.manual_seed(0)
    run(chosen, tmp_path / "whole", callbacks=[whole])
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        run(chosen, tmp_path / "parts", callbacks=[Killed()])
    run(chosen, tmp_path / "parts", callbacks=[resumed])
    assert torch.equal(whole.logits, resumed.logits)


def test_the_adapters_from_before_a_collapse_are_written(model: Path, tmp_path: Path) -> None:
    pool = Paying(lambda number: [0, 2, 2.5, 3][number % 4] if number < 16 else 0)
    chosen = settings(model, lora=RANK, kl=0.1, steps=30, restores=0)
    with pytest.raises(Collapsed, match=r"policy is the policy of checkpoint-2"):
        run(chosen, tmp_path, pool, limits=HealthLimits(patience=3))
    kept, written = loaded(tmp_path / "checkpoint-2"), loaded(tmp_path / "policy")
    for how, found in kept.items():
        torch.testing.assert_close(written[how], found)
        assert (found - logits(load_policy(str(model)).model)).abs().mean() > 0.01


def test_adapters_name_their_model_by_its_whole_path(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    taught(Path(model.name), tmp_path / "sft", RANK)
    monkeypatch.chdir(tmp_path)
    config = json.loads((tmp_path / "sft" / "policy" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(model)


def test_adapters_whose_model_is_gone_are_not_loaded(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    taught(tmp_path / "model", tmp_path / "sft", RANK)
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(
        UsageError, match=r"holds adapters of .*/model, which is no longer there — give its path"
    ):
        load_policy(str(tmp_path / "sft" / "policy"))
