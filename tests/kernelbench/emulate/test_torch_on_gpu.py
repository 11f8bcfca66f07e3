"""Host code that asks torch for a GPU, where there is none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kernelwright.kernelbench.emulate.findings import Unsupported
from kernelwright.kernelbench.emulate.torch_on_gpu import TorchOnGpu

pytestmark = [pytest.mark.builds, pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")]
GPU = torch.device("cuda", 0)


def default_device(name: str | None) -> torch.Tensor:
    torch.set_default_device(name)
    try:
        return torch.zeros(2)
    finally:
        torch.set_default_device(None)


def within_device() -> torch.Tensor:
    with torch.device("cuda"):
        return torch.zeros(2)


MADE: dict[str, Callable[[], torch.Tensor]] = {
    "by name": lambda: torch.empty(2, device="cuda"),
    "by number": lambda: torch.arange(2, device="cuda:0"),
    "by device": lambda: torch.zeros(2, device=torch.device("cuda")),
    "like another": lambda: torch.empty_like(torch.zeros(2), device="cuda"),
    "from a list": lambda: torch.tensor([1.0], device="cuda"),
    "moved": lambda: torch.zeros(2).cuda(),
    "moved to a name": lambda: torch.zeros(2).to("cuda", non_blocking=True),
    "with a generator": lambda: torch.randn(2, device="cuda", generator=torch.Generator("cuda")),
    "from pinned memory": lambda: torch.zeros(2, pin_memory=True).pin_memory().cuda(),
    "on the default device": lambda: default_device("cuda"),
    "where the device is set": within_device,
    "by a module": lambda: next(nn.Linear(2, 2, device="cuda").cuda().to("cuda").parameters()),
}


@pytest.mark.parametrize("how", MADE)
def test_tensors_are_on_the_gpu(how: str) -> None:
    with TorchOnGpu():
        made = MADE[how]()
        assert made.is_cuda and not made.is_cpu and made.device == GPU and made.get_device() == 0
        assert (made + 1).device.type == "cuda"
    assert not made.is_cuda and made.device.type == "cpu"  # where it lies


def test_a_copy_on_the_cpu_is_not_the_tensor_itself() -> None:
    x = torch.zeros(2)
    with TorchOnGpu():
        for copy in (x.cpu(), x.to("cpu"), x.to(device=torch.device("cpu"))):
            copy += 1
        assert x.to(GPU) is x and x.to(torch.float32) is x
    assert x.tolist() == [0, 0]


@pytest.mark.parametrize(("chip", "multiprocessors"), [("sm_80", 108), ("sm_90", 132), ("sm_100a", 148)])
def test_the_gpu_is_of_the_chip(chip: str, multiprocessors: int) -> None:
    with TorchOnGpu(chip):
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.version.cuda
        found = torch.cuda.get_device_properties(torch.zeros(1).device)
        assert found.multi_processor_count == multiprocessors
        assert torch.cuda.get_device_capability() == (found.major, found.minor)
        assert f"sm_{found.major}{found.minor}" == chip.rstrip("a")
    assert not torch.cuda.is_available() and torch.version.cuda is None


def test_streams_events_and_guards_have_nothing_to_wait_for() -> None:
    with TorchOnGpu():
        x = torch.zeros(2, device="cuda")
        stream, start = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.device(x.device), torch.cuda.stream(stream):
            start.record()
            x.add_(1)
        x.record_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.manual_seed(3)
        torch.manual_seed(3)
        assert start.query() and start.elapsed_time(start) > 0
    assert x.tolist() == [1, 1]


def test_autocast_is_a_gpu_s() -> None:
    x = torch.ones(2, 2)
    with TorchOnGpu():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (x @ x).dtype is torch.bfloat16
        with torch.amp.autocast(device_type="cuda"):
            assert (x @ x).dtype is torch.float16


def test_what_is_compiled_is_what_is_called() -> None:
    with TorchOnGpu():
        assert torch.compile(lambda x: x + 1)(torch.zeros(1)) == 1
        assert torch.compile(mode="max-autotune")(abs) is abs


def test_custom_operators_and_functions_find_it_too() -> None:
    with TorchOnGpu():

        @torch.library.custom_op("kernelwright_test::twice", mutates_args=(), device_types="cuda")
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.is_cuda else x

        @torch.library.triton_op("kernelwright_test::thrice", mutates_args={})
        def thrice(x: torch.Tensor) -> torch.Tensor:
            assert torch.library.wrap_triton(twice) is twice
            return x * 3 if x.is_cuda else x.clone()

        class Negative(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cuda")
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return -x if x.is_cuda else x

        result = Negative.apply(thrice(twice(torch.ones(1, device="cuda"))))
    assert result == -6


def test_graphs_are_not_emulated() -> None:
    with TorchOnGpu(), pytest.raises(Unsupported, match="CUDA graphs cannot be emulated"):
        torch.cuda.CUDAGraph()


def test_memory_of_kernels_that_do_not_run_is_zeros() -> None:
    with TorchOnGpu(zeros=True):
        assert not torch.empty(1 << 16, device="cuda").any()


def test_a_chip_whose_limits_are_not_known() -> None:
    with pytest.raises(ValueError, match="unknown chip sm_1"):
        TorchOnGpu("sm_1")


def test_there_is_a_stream_even_where_torch_is_built_for_cpus() -> None:
    has = hasattr(torch._C, "_cuda_getCurrentRawStream")
    with TorchOnGpu():
        assert torch._C._cuda_getCurrentRawStream(0) == 0
    assert hasattr(torch._C, "_cuda_getCurrentRawStream") == has
