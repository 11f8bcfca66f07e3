"""torch's calls are recorded with their bytes and FLOPs instead of computed."""

import resource

import torch
from torch import nn
from torch.nn import functional

from kernelwright.kernelbench.chips.torch_calls import TorchCalls
from kernelwright.kernelbench.emulate.torch_on_gpu import TorchOnGpu


def test_a_model_costs_neither_time_nor_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.no_grad(), TorchOnGpu("sm_90"), TorchCalls() as calls:
        model = nn.Sequential(nn.Conv2d(64, 128, 3), nn.ReLU()).eval()
        x = torch.rand(512, 64, 128, 128, device="cuda")  # 2 GiB
        calls.found.clear()
        y = model(x)
    assert y.shape == (512, 128, 126, 126)
    assert [call.name for call in calls.found] == ["convolution", "relu"]
    assert calls.found[0].flops == 2 * 512 * 128 * 126**2 * 64 * 9
    assert calls.found[1].moved_bytes == 2 * 4 * y.numel()
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19
    )  # KiB: less than half of one of them


def test_views_are_no_calls_and_written_arguments_come_back() -> None:
    with torch.no_grad(), TorchCalls() as calls:
        x = torch.empty(64, 64)
        y = x.t()[1:].add_(1)
        out = torch.empty(64, 64)
        assert torch.mm(x, x, out=out) is out
    assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert [call.name for call in calls.found] == ["add_", "mm"]


def test_what_python_asks_the_value_of_runs() -> None:
    with torch.no_grad(), TorchCalls():
        x = torch.zeros(1 << 16)
        assert (x + 1).max().item() == 0.0  # for nothing was added
        assert torch.nonzero(x).shape == (0, 1)


def test_attention_counts_both_products() -> None:
    with torch.no_grad(), TorchCalls() as calls:
        q = torch.empty(2, 8, 1024, 64, dtype=torch.bfloat16)
        assert functional.scaled_dot_product_attention(q, q, q).shape == q.shape
    [call] = calls.found
    assert call.flops == 4 * 2 * 8 * 1024 * 1024 * 64
    assert call.precision == "bf16"
