"""What looks at torch's operators counts as torch does, and does not import its compiler."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kernelwright.kernelbench.evaluator.reference.operators import _COUNTS, FlopCounter

CALLS = {
    "pointwise": lambda: torch.ones(8, 8) + 1,
    "linear": lambda: torch.nn.Linear(16, 32)(torch.ones(4, 16)),
    "batched": lambda: torch.ones(3, 4, 5) @ torch.ones(3, 5, 6),
    "convolution": lambda: torch.nn.Conv2d(3, 8, 3, groups=1)(torch.ones(2, 3, 16, 16)),
    "transposed": lambda: torch.nn.ConvTranspose1d(4, 4, 3)(torch.ones(2, 4, 16)),
}


@pytest.mark.parametrize("name", CALLS)
def test_flops_are_counted_as_torch_counts_them(name: str) -> None:
    with torch.no_grad():
        with FlopCounter() as ours:
            CALLS[name]()
        with FlopCounterMode(display=False) as theirs:
            CALLS[name]()
    assert ours.flops == theirs.get_total_flops()
    assert (ours.flops > 0) is (name != "pointwise")


@pytest.mark.parametrize(
    ("dtype", "tf32", "precision"),
    [
        (torch.float32, False, "fp32"),
        (torch.float32, True, "tf32"),
        (torch.bfloat16, True, "bf16"),
        (torch.float16, False, "fp16"),
        (torch.float64, True, "fp32"),  # no ceiling of its own, and none is higher
    ],
)
def test_flops_are_counted_by_the_precision_of_operands(
    dtype: torch.dtype, tf32: bool, precision: str
) -> None:
    with torch.no_grad(), FlopCounter() as counter:
        torch.ones(4, 8, dtype=dtype) @ torch.ones(8, 2, dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16):
            torch.nn.Linear(8, 16)(torch.ones(4, 8))
    expected = {precision: 2 * 4 * 8 * 2, "bf16": 2 * 4 * 8 * 16}
    if precision == "bf16":
        expected["bf16"] += 2 * 4 * 8 * 2
    assert counter.by_precision(tf32) == expected and counter.flops == sum(expected.values())


@pytest.mark.slow
def test_looking_at_operators_does_not_import_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from kernelwright.kernelbench.evaluator.reference.operators import FlopCounter\n"
        "from kernelwright.kernelbench.evaluator.processes.own_kernels import own_kernel_share\n"
        "with torch.no_grad(), FlopCounter(): torch.ones(2, 2) @ torch.ones(2, 2)\n"
        "own_kernel_share(lambda: torch.zeros(2) + 1)\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_networks_are_counted_whole(directions: int) -> None:
    """Take torch's own operator on a CPU, and cuDNN's, which has all layers' weights in a list."""
    network = torch.nn.LSTM(32, 64, num_layers=2, batch_first=True, bidirectional=directions == 2)
    x = torch.randn(4, 10, 32)
    gates = 4 * 64 * (32 + 64) + 4 * 64 * (64 * directions + 64)
    wanted = 2 * 4 * 10 * gates * directions
    with torch.no_grad(), FlopCounter() as counter:
        network(x)
    assert counter.flops == wanted
    weights = [weight for layer in network.all_weights for weight in layer]
    assert _COUNTS[torch.ops.aten._cudnn_rnn](x, weights, 4, None, None, None, 2, 64) == wanted
