"""The fork server stays a process of one thread."""

import os
import threading
import time

import pytest
import torch

from kernelwright.kernelbench.evaluator.processes import fork_server


def test_gpus_are_looked_up_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NVML's, the thread that a look-up starts would not survive a fork."""

    def count() -> int:
        threading.Thread(target=time.sleep, args=(60,), daemon=True, name="nvml").start()
        assert os.getpid() != here
        return 3

    here = os.getpid()
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", count)
    monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: ["GPU-1", "GPU-2", "GPU-3"])
    fork_server.look_up_gpus_elsewhere()
    assert torch.cuda._raw_device_count_nvml() == torch.cuda._raw_device_count_nvml() == 3
    assert torch.cuda._raw_device_uuid_nvml() == ["GPU-1", "GPU-2", "GPU-3"]
    assert "nvml" not in [thread.name for thread in threading.enumerate()]
