"""A package as layer specs of Megatron-core, in a small GPT on the CPU."""

from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.dropin.format import Format
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from tests.helpers.dropin import small_kernels as kernels
from tests.helpers.dropin.exporting import python, winner
from tests.helpers.installed import require

require("megatron.core", reason="megatron-core is not installed: pip install 'kernelwright[dropin]'")

pytestmark = pytest.mark.builds

# Hidden states there are (tokens, batch, features).
NORM = winner(
    kernels.changed(kernels.RMS_NORM, "torch.randn(4, 16, 64)", "torch.randn(16, 4, 64)"),
    kernels.RMS_NORM_KERNEL,
    "rms_norm",
)
LAYER = "megatron.core.transformer.torch_norm.WrappedTorchNorm"
SCRIPT = """
import tempfile
from contextlib import nullcontext

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

# Its attention takes buffers and random numbers of a GPU.
torch.cuda.current_device = lambda: "cpu"
get_cuda_rng_tracker().fork = lambda *name: nullcontext()
store = tempfile.NamedTemporaryFile()
torch.distributed.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
parallel_state.initialize_model_parallel()


def specs(normalization="RMSNorm"):
    layer = get_gpt_layer_local_spec(normalization=normalization)
    return TransformerBlockSubmodules(layer_specs=[layer] * 2, layer_norm=WrappedTorchNorm)


def gpt(spec, eps=1e-6):
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True, normalization="RMSNorm",
        layernorm_epsilon=eps, hidden_dropout=0.0, attention_dropout=0.0, persist_layer_norm=False,
        bias_dropout_fusion=False, apply_rope_fusion=False, masked_softmax_fusion=False, perform_initialization=True,
    )
    return GPTModel(
        config=config, transformer_layer_spec=spec, vocab_size=128, max_sequence_length=16, parallel_output=False
    )


generator = torch.Generator().manual_seed(0)
tokens = torch.randint(0, 128, (4, 16), generator=generator)
places = torch.arange(16).expand(4, 16)
mask = torch.ones(16, 16).triu(1).bool()[None, None]


def loss(model):
    logits = model(tokens, places, mask)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


import fused
import fused.megatron
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("megatron") / "package"
    write(
        [PackagedKernel("rms_norm", NORM, layers={LAYER: {}})], out, "fused", Format.megatron, measure=False
    )
    return out


def run(exported: Path, script: str) -> None:
    python(exported, "-c", SCRIPT + script)


@pytest.mark.slow
def test_a_gpt_is_built_of_drop_ins_and_trains_alike(exported: Path) -> None:
    run(exported, """
stock, dropped = gpt(specs()), gpt(fused.megatron.replaced(specs()))
norms = [name for name, layer in dropped.named_modules() if "forward" in vars(layer)]
assert len(norms) == 5, norms
assert fused.apply(dropped).replaced == dict.fromkeys(norms, "rms_norm")
assert stock.state_dict().keys() == dropped.state_dict().keys()
losses = [loss(model) for model in (stock, dropped)]
torch.testing.assert_close(*losses)
for each in losses:
    each.backward()
for ours, theirs in zip(dropped.parameters(), stock.parameters(), strict=True):
    torch.testing.assert_close(ours.grad, theirs.grad)
with torch.profiler.profile() as profile:
    loss(dropped)
assert sum(e.count for e in profile.key_averages() if e.key.startswith("fused::rms_norm")) == 5
assert fused.remove(dropped) == 5
torch.testing.assert_close(loss(dropped), loss(stock), rtol=0, atol=0)
""")  # fmt: skip


@pytest.mark.slow
def test_a_layer_that_is_another_one_stays(exported: Path) -> None:
    run(exported, """
import logging

said = []
logging.getLogger("fused").addFilter(lambda record: said.append(record.getMessage()) or True)
dropped = gpt(fused.megatron.replaced(specs()), eps=0.5)
assert len(said) == 1 and "kernel's reference" in said[0], said
assert not [name for name, layer in dropped.named_modules() if "forward" in vars(layer)]
torch.testing.assert_close(loss(dropped), loss(gpt(specs(), eps=0.5)), rtol=0, atol=0)


class Noisy(torch.nn.RMSNorm):
    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x))


from fused.runtime.frameworks.megatron import drop_in

before = torch.get_rng_state()
noisy = drop_in(Noisy, list(fused.KERNELS.values()), "fused")(64, 1e-6)
assert type(noisy) is Noisy and "forward" not in vars(noisy)
assert torch.equal(torch.get_rng_state(), before)  # looking at it drew none
""")  # fmt: skip


@pytest.mark.slow
def test_a_spec_is_left_as_it_was_and_one_without_such_layers_is_an_error(exported: Path) -> None:
    run(exported, """
import pytest

spec = specs()
new = fused.megatron.replaced(spec)
assert spec == specs() and new != spec and new.layer_norm is not WrappedTorchNorm
assert issubclass(new.layer_norm, WrappedTorchNorm)
by_path = ModuleSpec(module=(WrappedTorchNorm.__module__, "WrappedTorchNorm"))
assert fused.megatron.replaced(by_path) == ModuleSpec(module=new.layer_norm)
with pytest.raises(fused.NothingReplacedError, match="WrappedTorchNorm"):
    fused.megatron.replaced(spec.layer_specs[0].submodules.mlp)
""")  # fmt: skip


@pytest.mark.slow
def test_another_release_is_refused(exported: Path) -> None:
    script = """
import importlib.metadata as metadata
metadata.version = lambda name: "0.9.1"
import fused
try:
    import fused.megatron
except ImportError as error:
    assert "0.9.1 is installed: pip install 'megatron-core==0.16.*'" in str(error), error
else:
    raise AssertionError
"""
    python(exported, "-c", script)


@pytest.mark.slow
def test_layers_without_their_module_or_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its module is missing"):
        write(
            [PackagedKernel("rms_norm", NORM, layers={"Norm": {}})],
            tmp_path / "out",
            "fused",
            Format.megatron,
        )
    chosen = [
        PackagedKernel("one", NORM, layers={"first.Norm": {}}),
        PackagedKernel("other", NORM, layers={"second.Norm": {}}),
    ]
    with pytest.raises(UsageError, match="two layers have the name Norm"):
        write(chosen, tmp_path / "out", "fused", Format.megatron)
