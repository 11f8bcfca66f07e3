"""Products and attention of the builtin coder, built for chips that are not here: on tensor cores, without spills."""

from pathlib import Path

import pytest

from benchmarks.compiler.static_call import BuiltTask
from benchmarks.compiler.static_products import BuiltCase
from benchmarks.compiler.static_suite import built_apart
from tests.helpers.builtin.proving import TRACES, propose, task
from tests.helpers.installed import require

require("triton")

pytestmark = pytest.mark.slow

LINEAR = BuiltCase(
    "return F.gelu(self.up(x)) + r",
    "torch.randn(2048, 1024, dtype=torch.bfloat16), torch.randn(2048, 2048, dtype=torch.bfloat16)",
    "x, r",
    "self.up = nn.Linear(1024, 2048).to(torch.bfloat16)",
)
HEADS = ", ".join(["torch.randn(2, 8, 1024, 128, dtype=torch.bfloat16)"] * 3)
ATTENTION = BuiltCase("return F.scaled_dot_product_attention(q, k, v, is_causal=True)", HEADS, "q, k, v")


@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("case", "schedule"), [(LINEAR, {"products": "all"}), (ATTENTION, {"attention": "own"})]
)
def test_16_bits_are_multiplied_on_tensor_cores(
    case: BuiltCase, schedule: dict[str, str], chip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACES, str(tmp_path))
    built = built_apart(propose(case.source, "triton", **schedule).source, task(case.source), chip)
    assert isinstance(built, BuiltTask), built
    [kernel] = built.kernels
    assert sum(call.flops for call in built.torch_calls) == 0
    assert kernel.whole.spills == 0
    assert (kernel.mix.group_products if chip == "sm_90" else kernel.mix.warp_products) > 0
