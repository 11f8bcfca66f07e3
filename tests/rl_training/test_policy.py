"""Policies: what can be loaded, and what is said of what cannot."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.rl_training.trainers.policy import LoraSettings, load_policy
from tests.helpers.rl_training.tiny_policy import CHAT, save

pytestmark = pytest.mark.training

ASKED = [{"role": "user", "content": "Write a kernel."}]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("policy"))


def refused(name: object, *words: str) -> None:
    with pytest.raises(UsageError) as raised:
        load_policy(str(name))
    said = str(raised.value)
    assert "\n" not in said
    assert all(word in said for word in (*words, " — ")), said


def test_a_folder_is_loaded_and_answers(folder: Path) -> None:
    policy = load_policy(str(folder))
    prompt = policy.tokenizer.apply_chat_template(
        ASKED, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    reply = policy.model.generate(**prompt, max_new_tokens=4, min_new_tokens=4)
    assert reply.shape[1] == prompt["input_ids"].shape[1] + 4
    assert policy.tokenizer.pad_token == policy.tokenizer.eos_token == "<|end|>"
    assert policy.model.config.pad_token_id == policy.tokenizer.eos_token_id


def test_with_adapters_only_they_learn_and_they_begin_as_nothing(folder: Path) -> None:
    import torch

    plain = load_policy(str(folder))
    adapted = load_policy(str(folder), LoraSettings(rank=4))
    learning = {name for name, weights in adapted.model.named_parameters() if weights.requires_grad}
    assert len(learning) == 2 * 7 * 2  # layers, linear maps in each, two factors
    assert all("lora_" in name for name in learning)
    tokens = torch.arange(8)[None]
    assert torch.equal(adapted.model(tokens).logits, plain.model(tokens).logits)


def test_a_folder_of_adapters_is_loaded_merged_into_its_base(folder: Path, tmp_path: Path) -> None:
    import torch

    adapted = load_policy(str(folder), LoraSettings(rank=4))
    with torch.no_grad():
        for name, weights in adapted.model.named_parameters():
            if "lora_B" in name:
                weights.fill_(0.1)
    adapted.model.save_pretrained(tmp_path)
    adapted.tokenizer.save_pretrained(tmp_path)
    merged, tokens = load_policy(str(tmp_path)).model, torch.arange(8)[None]
    torch.testing.assert_close(merged(tokens).logits, adapted.model(tokens).logits)
    assert not torch.allclose(merged(tokens).logits, load_policy(str(folder)).model(tokens).logits)


def test_what_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "does not exist", "a name on the Hub")
    refused(tmp_path, "holds no model: no config.json")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "holds no model: no weights")
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(tmp_path, "holds no model: no tokenizer")
    (tmp_path / "tokenizer.json").write_text("no tokenizer")
    refused(tmp_path, "cannot be loaded", "save_pretrained")


def test_a_name_that_the_hub_does_not_give_is_refused() -> None:
    refused("nobody/no-such-model", "is neither a folder nor available", "check the name and the connection")


def test_weights_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    weights = save(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused(tmp_path, "cannot be loaded")


def test_weights_of_which_some_are_not_there_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = save(tmp_path) / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    refused(tmp_path, "1 weights are missing, such as model.layers.1.mlp.up_proj.weight")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "no chat template"),
        (CHAT.partition("{% if")[0], "no generation prompt"),
        (
            CHAT.replace("[i]", "").replace("<|assistant|>{% endif", "<|assistant|><think>{% endif"),
            "after its generation prompt",
        ),
        ("{{ raise_exception('no system prompts here') }}", "no system prompts here"),
        ("{% if %}", "cannot render"),
    ],
)
def test_a_tokenizer_that_cannot_render_replies_is_refused(
    template: str | None, words: str, tmp_path: Path
) -> None:
    refused(save(tmp_path, template), words)


def test_a_tokenizer_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save(tmp_path)
    larger = AutoTokenizer.from_pretrained(folder)
    larger.add_tokens([f"<|extra {i}|>" for i in range(9)])
    larger.save_pretrained(tmp_path)
    refused(tmp_path, "its tokenizer has")


@pytest.mark.parametrize("package", ["transformers", "trl", "peft"])
def test_a_package_that_is_missing_is_said_with_how_to_get_it(
    package: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPrerequisite, match=rf"package {package} — pip install 'kernelwright\[rl\]'"):
        load_policy(str(folder), LoraSettings(rank=2))
