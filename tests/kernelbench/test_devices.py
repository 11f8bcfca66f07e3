"""Devices by name, and the GPUs that CUDA_VISIBLE_DEVICES shows."""

import doctest

import pytest

from kernelwright.kernelbench import devices
from kernelwright.kernelbench.cli import check_target
from kernelwright.kernelbench.devices import devices_of, visible_name
from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError


def test_the_example_gives_what_it_says() -> None:
    result = doctest.testmod(devices)
    assert result.attempted and not result.failed


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("cpu", ("cpu",)),
        ("cuda", ("cuda:0",)),
        ("cuda:2", ("cuda:2",)),
        ("cuda:0,1", ("cuda:0", "cuda:1")),
        ("cuda:1,cuda:0", ("cuda:1", "cuda:0")),
        ("cuda:0-3", ("cuda:0", "cuda:1", "cuda:2", "cuda:3")),
        ("cuda:0,2-3", ("cuda:0", "cuda:2", "cuda:3")),
    ],
)
def test_a_target_names_one_device_or_several(target: str, named: tuple[str, ...]) -> None:
    assert devices_of(target) == named


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("cuda:0,0", "names cuda:0 twice"),
        ("cuda:0-2,1", "names cuda:1 twice"),
        ("cpu,cuda:0", "mixes the CPU and others"),
        ("cuda:0,cpu", "mixes the CPU and others"),
        ("cpu,cpu", "mixes the CPU and others"),
        ("cuda:3-1", "3-1 names no GPU — use 1-3"),
        ("0,1", "unknown target"),
        ("cuda:0,", "unknown target"),
        ("cuda:x", "unknown target"),
        ("cuda:0-99999999", "unknown target"),
        ("gpu", "unknown target"),
        ("", "unknown target"),
    ],
)
def test_what_names_no_devices_is_refused_in_one_line(target: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        devices_of(target)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("visible", "name"),
    [(None, "1"), ("3,5", "5"), ("3, 5", "5"), ("GPU-a,GPU-b", "GPU-b"), ("0,MIG-c", "MIG-c")],
)
def test_a_gpu_is_one_of_those_that_cuda_shows(
    visible: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_name("cuda:1") == name


@pytest.mark.parametrize(
    ("visible", "shown"), [("", "shows no GPU"), ("7", "shows 1 GPU"), ("0,-1,1", "shows 1 GPU")]
)
def test_a_gpu_that_cuda_does_not_show_is_no_target(
    visible: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(MissingPrerequisite, match=f"^no target cuda:1: .*{shown} — "):
        visible_name("cuda:1")


def test_a_command_for_one_device_says_which_take_several() -> None:
    assert check_target("cuda:1") == "cuda:1"
    with pytest.raises(UsageError, match="names 2 devices, and this command uses one") as refused:
        check_target("cuda:1-2")
    assert "`run` and `train rl`" in refused.value.fix
