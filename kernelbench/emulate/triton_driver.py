"""Triton's driver for a GPU that is not there."""

from typing import Any

import torch

from kernelwright.kernelbench.emulate.torch_on_gpu import properties


class NoGpu:
    """Driver of a GPU that is not there. `target`: Triton's GPUTarget."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.utils = self  # where Triton has its properties

    def get_device_properties(self, device: int) -> dict[str, int]:
        found = properties(f"sm_{self._target.arch}")
        return {
            "max_shared_mem": found.shared_memory_per_block_optin,
            "max_num_regs": found.regs_per_multiprocessor,
            "multiprocessor_count": found.multi_processor_count,
            "warpSize": found.warp_size,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda
