"""A package as the `kernels` library of Hugging Face loads it, in a small Llama of Transformers."""

from pathlib import Path

import pytest
import torch

from kernelwright.results.dropin.format import Format
from kernelwright.results.dropin.hugging_face import variant
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from tests.helpers.dropin.exporting import NORM, python
from tests.helpers.installed import require

require("kernels", reason="kernels is not installed: pip install 'kernelwright[dropin]'")

pytestmark = pytest.mark.builds

SCRIPT = """
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from kernels import LocalLayerRepository, Mode, get_local_kernel, kernelize, use_kernel_mapping
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path({folder!r})


def llama(eps=1e-6):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, rms_norm_eps=eps
    ))


def kernelized(model, mode):
    with use_kernel_mapping({{"RMSNorm": {{"cpu": LocalLayerRepository(HERE, layer_name="LlamaRMSNorm")}}}}):
        return kernelize(model, mode=mode, device="cpu")


tokens = torch.randint(0, 128, (4, 16), generator=torch.Generator().manual_seed(0))
package = get_local_kernel(HERE)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hub") / "fused_norm"
    chosen = [PackagedKernel("rms_norm", NORM, layers={"LlamaRMSNorm": {}})]
    write(chosen, out, "fused_norm", Format.hf, measure=False)
    return out


def run(repository: Path, script: str) -> None:
    python(repository.parent, "-c", SCRIPT.format(folder=str(repository)) + script)


@pytest.mark.slow
def test_a_llama_is_kernelized_and_trains_alike(repository: Path) -> None:
    run(repository, """
plain, dropped = llama(), kernelized(llama(), Mode.TRAINING | Mode.TORCH_COMPILE)
losses = [model(input_ids=tokens, labels=tokens).loss for model in (plain, dropped)]
torch.testing.assert_close(*losses)
for loss in losses:
    loss.backward()
for ours, theirs in zip(dropped.parameters(), plain.parameters(), strict=True):
    torch.testing.assert_close(ours.grad, theirs.grad)
report = package.kernelized(dropped)
assert len(report.replaced) == 5 and not report.left, report
with torch.profiler.profile() as profile:
    dropped(input_ids=tokens)
assert sum(e.count for e in profile.key_averages() if e.key.startswith("fused_norm::rms_norm")) == 5
x = torch.randn(4, 16, 64)
torch.testing.assert_close(dropped.model.norm(hidden_states=x), plain.model.norm(x))
calls = package.report(dropped).layers["model.norm"]
assert calls.by_kernel == {"rms_norm": 3} and not calls.by_layer, calls
""")  # fmt: skip


@pytest.mark.slow
def test_a_layer_that_is_another_one_computes_as_it_did(repository: Path) -> None:
    run(repository, """
plain, dropped = llama(eps=0.5), kernelized(llama(eps=0.5), Mode.INFERENCE)
with torch.no_grad():
    torch.testing.assert_close(plain(input_ids=tokens).logits, dropped(input_ids=tokens).logits)
report = package.kernelized(dropped)
assert not report.replaced and "kernel's reference" in report.left["model.norm"]
""")  # fmt: skip


def test_its_build_is_for_one_release_and_machine(repository: Path) -> None:
    from kernels._rust import Digest, DigestAlgorithm, Metadata
    from kernels.variants import get_variants_local, resolve_variant

    (folder,) = (repository / "build").iterdir()
    major, minor = torch.__version__.split(".")[:2]
    assert folder.name.startswith(f"torch{major}{minor}-cxx11-cpu-")
    chosen, _ = resolve_variant(get_variants_local(folder.parent), "cpu")
    assert chosen is not None and chosen.variant_str == folder.name
    metadata = Metadata.read_from_file(folder / "metadata.json")
    assert metadata.digest is not None
    metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, folder))


def test_what_is_python_alone_is_for_any_release() -> None:
    assert variant("cpu", "2.13.0+cpu", built=False) == "torch-cpu"
    assert variant("cuda", "2.13.0", built=False) == "torch-cuda"
