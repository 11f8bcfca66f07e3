"""A package as a plugin of vLLM, whose registry of layers is made again here: the real one needs another torch."""

import tomllib
from pathlib import Path

import pytest

from kernelwright.results.dropin.format import Format
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from tests.helpers.dropin.exporting import NORM, python, winner

pytestmark = [pytest.mark.builds, pytest.mark.slow]

REGISTRY = """
import torch.nn as nn

op_registry_oot = {}


class CustomOp(nn.Module):
    def __new__(cls, *args, **kwargs):
        return super().__new__(op_registry_oot.get(cls.__name__, cls))

    def __init__(self):
        super().__init__()
        self._forward_method = self.forward_native

    def forward(self, *args, **kwargs):
        return self._forward_method(*args, **kwargs)

    @classmethod
    def register_oot(cls, layer=None, name=None):
        def decorator(layer):
            reg_name = name if name is not None else cls.__name__
            assert reg_name not in op_registry_oot
            layer.name = reg_name
            op_registry_oot[reg_name] = layer
            return layer

        return decorator if layer is None else decorator(layer)
"""
NORMS = """
import torch
import torch.nn as nn

from vllm.model_executor.custom_op import CustomOp


class RMSNorm(CustomOp):
    name = "rms_norm"

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward_native(self, x, residual=None):
        if residual is None:
            return normed(x, self.weight.data, self.eps)
        residual += x
        return x.copy_(normed(residual, self.weight.data, self.eps)), residual


def normed(x, weight, eps):  # which has no gradient
    with torch.no_grad():
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
"""
WITH_RESIDUAL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))
        self.eps = eps

    def forward(self, x, residual):
        total = x + residual
        return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + self.eps) * self.weight, total


def get_inputs():
    return [torch.randn(4, 16, 64), torch.randn(4, 16, 64)]


def get_init_inputs():
    return [64, 1e-6]
"""
LAYER = "vllm.model_executor.layers.layernorm.RMSNorm"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("vllm") / "package"
    both = [
        PackagedKernel("rms_norm", NORM, layers={LAYER: {}}),
        PackagedKernel(
            "add_rms_norm",
            winner(WITH_RESIDUAL, WITH_RESIDUAL.replace("class Model", "class ModelNew"), "add_rms_norm"),
            layers={LAYER: {}},
        ),
    ]
    write(both, out, "fused", Format.vllm, measure=False)
    for name, text in {"custom_op": REGISTRY, "layers/layernorm": NORMS}.items():
        file = out / "vllm" / "model_executor" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return out


def test_its_entry_point_is_the_plugins(exported: Path) -> None:
    project = tomllib.loads((exported / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"vllm.general_plugins": {"fused": "fused.vllm:register"}}


def test_layers_are_built_as_drop_ins(exported: Path) -> None:
    python(
        exported,
        "-c",
        """
import torch
import fused.vllm
from vllm.model_executor.layers.layernorm import RMSNorm

stock = RMSNorm(64)
fused.vllm.register()
fused.vllm.register()  # as a process of vLLM may
layer = RMSNorm(64)
assert isinstance(layer, RMSNorm) and type(layer).name == "rms_norm"
x, residual = torch.randn(4, 16, 64), torch.randn(4, 16, 64)
torch.testing.assert_close(layer(x), stock(x))
right = stock(x.clone(), residual.clone())
torch.testing.assert_close(layer(x, residual), right)
torch.testing.assert_close(layer(x, residual=residual), right)
assert fused.report(layer).layers[""].by_kernel == {"rms_norm": 1, "add_rms_norm": 2}

for other in (RMSNorm(64, eps=1e-2), RMSNorm(32)):  # built as vLLM's own
    assert "forward" not in vars(other)
    x = torch.randn(4, 16, other.weight.numel())
    torch.testing.assert_close(other(x), other.forward_native(x))
""",
    )


def test_another_plugins_layer_is_a_conflict(exported: Path) -> None:
    python(
        exported,
        "-c",
        """
import pytest
import fused.vllm
from vllm.model_executor.layers.layernorm import RMSNorm


@RMSNorm.register_oot(name="RMSNorm")
class Other(RMSNorm):
    pass


with pytest.raises(fused.ConflictError, match="VLLM_PLUGINS"):
    fused.vllm.register()
""",
    )
