"""Tasks of KernelBench's level 4: models of transformers by their names."""

import json
from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources import resolve
from tests.helpers.foreign_tasks import called, loaded

LEVEL_4 = """import torch
from transformers import AutoConfig, AutoModelForCausalLM


class Model(torch.nn.Module):
    def __init__(self, model_name, config):
        super().__init__()
        self.model_name = model_name
        self.config = config
        self.model = AutoModelForCausalLM.from_pretrained(self.model_name, config=self.config)

    def forward(self, x):
        return self.model(x).logits


model_name = "somebody/tiny"
config = AutoConfig.from_pretrained(model_name)
vocab_size = config.vocab_size
sequence_length = 16
batch_size = 2


def get_inputs():
    return [torch.randint(0, vocab_size, (batch_size, sequence_length))]


def get_init_inputs():
    return [model_name, config]
"""
TINY = {
    "_name_or_path": "elsewhere", "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 8,
    "n_head": 2, "n_layer": 1, "n_positions": 32, "vocab_size": 50, "transformers_version": "4.0",
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("KERNELBENCH_CONFIGS", raising=False)


def checkout(folder: Path, text: str = LEVEL_4) -> Path:
    """A checkout with one problem of level 4."""
    level = folder / "KernelBench" / "level4"
    level.mkdir(parents=True)
    (level / "1_tiny_bs2_seq16.py").write_text(text)
    return folder


@pytest.mark.parametrize("place", ["configs/somebody/tiny", "hub/models--somebody--tiny/snapshots/0a1b"])
def test_a_config_of_a_folder_or_of_the_cache_is_in_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "config.json").write_text(json.dumps(TINY))
    monkeypatch.setenv("KERNELBENCH_CONFIGS", str(tmp_path / "configs"))
    [task] = resolve(["kernelbench:4/1"], kernelbench_dir=checkout(tmp_path), overrides={"batch_size": "3"})
    assert "from_pretrained" not in task.source and "the weights are random" in task.source
    (x,), logits = called(task)
    assert x.shape == (3, 16) and logits.shape == (3, 16, 50)
    module = loaded(task.source)
    model = module.Model(*module.get_init_inputs())
    assert torch.equal(model(x), model(x))  # without dropout


def test_the_default_config_of_a_class_stands_for_its_model(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    [task] = resolve(["kernelbench:4/1"], kernelbench_dir=checkout(tmp_path, LEVEL_4.replace("somebody/tiny", "gpt2")))  # fmt: skip
    assert "default of its class" in task.source
    with torch.device("meta"):
        module = loaded(task.source)
        model = module.Model(*module.get_init_inputs())
    assert sum(weight.numel() for weight in model.parameters()) == 124_439_808  # GPT-2's, the smallest


def test_without_a_config_it_is_said_where_to_put_it(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    with pytest.raises(
        UsageError, match=r"somebody/tiny — put it into DIR/somebody/tiny/config\.json, and set"
    ):
        resolve(["kernelbench:4/1"], kernelbench_dir=root)


def test_a_folder_that_is_there_is_loaded_and_other_downloads_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    local = LEVEL_4.replace("somebody/tiny", str(tmp_path / "model"))
    [task] = resolve(["kernelbench:4/1"], kernelbench_dir=checkout(tmp_path / "one", local))
    assert task.source == local
    other = LEVEL_4.replace("somebody/tiny", "gpt2").replace("vocab_size = config", 'Tokenizer.from_pretrained("gpt2")\nvocab_size = config')  # fmt: skip
    with pytest.raises(UsageError, match="there is no network"):
        resolve(["kernelbench:4/1"], kernelbench_dir=checkout(tmp_path / "two", other))
