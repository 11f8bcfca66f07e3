"""A package's overrides for torchtitan, on its debug model."""

from pathlib import Path

import pytest
import small_kernels as kernels
from test_package import python, winner

from results.dropin.format import Format
from results.dropin.package import Chosen, write

pytest.importorskip("torchtitan", reason="torchtitan is not installed: pip install 'kernelwright[dropin]'")

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


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("torchtitan") / "package"
    chosen = [Chosen("rms_norm", NORM, layer="torchtitan.models.common.nn_modules.RMSNorm")]
    write(chosen, out, "fused", Format.torchtitan, measure=False)
    return out


def run(exported: Path, script: str) -> None:
    python(exported, "-c", SCRIPT + script)


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
    loss(dropped, batch)
assert sum(e.count for e in profile.key_averages() if e.key.startswith("fused::rms_norm")) == 13
""")  # fmt: skip


def test_a_config_of_another_layer_stays(exported: Path) -> None:
    run(exported, """
(stock, _), (dropped, lines) = llama(eps=0.5), llama([OVERRIDE], eps=0.5)
assert not [name for name, layer in dropped.named_modules() if type(layer).__name__ == "DropInRMSNorm"]
batch = next(batches(1))
torch.testing.assert_close(loss(dropped, batch), loss(stock, batch), rtol=0, atol=0)
""")  # fmt: skip


def test_another_release_is_refused(exported: Path) -> None:
    script = """
import importlib.metadata as metadata
metadata.version = lambda name: "0.1.0"
import fused
try:
    import fused.titan
except ImportError as error:
    assert "here is 0.1.0: pip install 'torchtitan==0.3.*'" in str(error), error
else:
    raise AssertionError
"""
    python(exported, "-c", script)
