"""A package's overrides for torchtitan, on its debug model."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright.results.dropin.format import Format
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from tests.helpers.dropin import small_kernels as kernels
from tests.helpers.dropin.exporting import python, winner
from tests.helpers.installed import require

require("torchtitan", reason="torchtitan is not installed: pip install 'kernelwright[dropin]'")

pytestmark = [pytest.mark.builds, pytest.mark.slow]  # by what they set up

NORM = winner(
    kernels.changed(
        kernels.changed(kernels.RMS_NORM, "torch.randn(4, 16, 64)", "torch.randn(2, 32, 256)"),
        "return [64, 1e-6]",
        "return [256, 1e-5]",
    ),
    kernels.RMS_NORM_KERNEL,
    "rms_norm",
)
SCRIPT = """
import torch
from torchtitan.config.override import OverrideConfig, apply_overrides
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry


def llama(overrides=(), eps=1e-5):
    config = model_registry("debugmodel").model
    for layer in config.layers:  # flex attention has no backward on the CPU
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    for norm in [config.norm, *(n for layer in config.layers for n in (layer.attention_norm, layer.ffn_norm))]:
        norm.eps = eps
    lines = apply_overrides(OverrideConfig(imports=list(overrides)), config)
    torch.manual_seed(0)
    model = config.build()
    model.init_states()
    return model, lines


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randint(0, 2048, (2, 33), generator=generator)


def loss(model, batch):
    logits = model(batch[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


OVERRIDE = "fused.titan.rmsnorm"
"""
TRAINER = """
import os
import sys
from types import SimpleNamespace

import torch

# torchtitan trains on an accelerator or not at all: torch.cpu stands in for one here,
torch._utils._get_available_device_type = lambda: "cpu"
vars(torch.cpu).update(
    current_device=lambda: 0,
    empty_cache=lambda: None,
    get_device_name=lambda _: "CPU",
    get_device_properties=lambda _: SimpleNamespace(total_memory=2**30),
    memory_stats=lambda _: {},
    reset_peak_memory_stats=lambda: None,
)
torch.distributed.set_timeout = lambda *_: None  # which torch 2.13 has not, and torchtitan 0.3 calls
os.environ |= dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", HF_HUB_OFFLINE="1")
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.train import main

log, logged = MetricsProcessor.log, []
MetricsProcessor.log = lambda self, *numbers, **more: (logged.append(numbers), log(self, *numbers, **more))


def debugmodel():  # what --config names
    config = llama3_debugmodel()
    for layer in config.model_spec.model.layers:  # flex attention has no backward on the CPU
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def trained(*options):
    sys.argv[1:] = ["--module", "__main__", "--config", "debugmodel", *OPTIONS, *options]
    logged.clear()
    with torch.profiler.profile() as profile:
        main()
    counts = {e.key: e.count for e in profile.key_averages() if e.key.startswith("fused::")}
    return torch.tensor([numbers[1:] for numbers in logged]), sorted(counts.values())  # loss twice, gradients' norm
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("torchtitan") / "package"
    chosen = [PackagedKernel("rms_norm", NORM, layers={"torchtitan.models.common.nn_modules.RMSNorm": {}})]
    write(chosen, out, "fused", Format.torchtitan, measure=False)
    return out


def run(exported: Path, script: str) -> None:
    python(exported, "-c", SCRIPT + script)


@pytest.mark.slow
def test_the_debug_model_trains_alike(exported: Path) -> None:
    run(exported, """
(stock, _), (dropped, lines) = llama(), llama([OVERRIDE])
assert len(lines) == 13, lines
norms = [name for name, layer in dropped.named_modules() if type(layer).__name__ == "DropInRMSNorm"]
assert len(norms) == 13, norms
assert stock.state_dict().keys() == dropped.state_dict().keys()
both = [(model, torch.optim.AdamW(model.parameters(), lr=1e-3)) for model in (stock, dropped)]
for batch in batches(4):
    losses = []
    for model, optimizer in both:
        optimizer.zero_grad()
        losses.append(loss(model, batch))
        losses[-1].backward()
    torch.testing.assert_close(*losses)
    for ours, theirs in zip(dropped.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    for _, optimizer in both:
        optimizer.step()
with torch.profiler.profile() as profile:
    loss(dropped, batch).backward()
counts = {e.key: e.count for e in profile.key_averages() if e.key.startswith("fused::rms_norm")}
assert len(counts) == 2 and set(counts.values()) == {13}, counts
""")  # fmt: skip


@pytest.mark.slow
def test_its_own_trainer_trains_alike(exported: Path, tmp_path: Path) -> None:
    """With FSDP over one rank and activations computed again, as its debug config has it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<s>", "</s>", *(f"w{place}" for place in range(200))]
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [" ".join(words[(row * place) % 200 + 3] for place in range(50)) for row in range(64)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(json.dumps({"text": each}) for each in texts))
    options = {
        "hf_assets_path": tmp_path,
        "dataloader.dataset_path": tmp_path / "data",
        "dump_folder": tmp_path / "out",
        "training.local_batch_size": 2,
        "training.seq_len": 32,
        "debug.seed": 0,
    }
    said = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    script = (
        f"OPTIONS = {said}\n"
        + TRAINER
        + """
STEPS = ["--training.steps", "2", "--training.mixed_precision_param", "float32"]
numbers, counts = trained(*STEPS)
assert numbers.shape == (2, 3) and not counts, (numbers, counts)
found, counts = trained(*STEPS, "--override.imports", "fused.titan.rmsnorm")
torch.testing.assert_close(found, numbers)
# The twelve norms in blocks are computed twice, and each is called twice, for a mode looks at operators there.
assert counts == [2 * 13, 2 * (12 * 2 * 2 + 1)], counts
found, counts = trained("--training.steps", "1", "--override.imports", "fused.titan.rmsnorm")
assert found.isfinite().all() and not counts, (found, counts)  # bfloat16: the layers compute
"""
    )
    python(exported, "-c", script)


@pytest.mark.slow
def test_a_config_of_another_layer_stays(exported: Path) -> None:
    run(exported, """
(stock, _), (dropped, lines) = llama(eps=0.5), llama([OVERRIDE], eps=0.5)
assert not [name for name, layer in dropped.named_modules() if type(layer).__name__ == "DropInRMSNorm"]
batch = next(batches(1))
torch.testing.assert_close(loss(dropped, batch), loss(stock, batch), rtol=0, atol=0)
""")  # fmt: skip


def test_looking_at_a_config_draws_no_numbers() -> None:
    import torch

    from kernelwright.results.dropin.runtime.frameworks.titan import fitting_config

    before = torch.get_rng_state()
    fitting_config(SimpleNamespace(build=lambda: torch.nn.Linear(4, 4)), [])
    assert torch.equal(torch.get_rng_state(), before)


def test_another_release_is_refused(exported: Path) -> None:
    script = """
import importlib.metadata as metadata
metadata.version = lambda name: "0.1.0"
import fused
try:
    import fused.titan
except ImportError as error:
    assert "0.1.0 is installed: pip install 'torchtitan==0.3.*'" in str(error), error
else:
    raise AssertionError
"""
    python(exported, "-c", script)
