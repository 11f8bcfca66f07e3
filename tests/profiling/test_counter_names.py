"""The names of Nsight Compute's counters, held against those that NVIDIA's performance library lists.

It needs no GPU: CUPTI's host interface tells of any chip, and Triton brings CUPTI along.
https://docs.nvidia.com/cupti/api/group__CUPTI__PROFILER__HOST__API.html
"""

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kernelwright.profiling.catalogue import CATALOGUE

CHIPS = ("TU102", "GA100", "GA102", "AD102", "GH100", "GB100", "GB202")
INVALID_NAME = 17  # CUPTI_ERROR_INVALID_METRIC_NAME
ONLY_ON = {"stall_gmma": {"GH100"}}
FROM_CUDA_13 = {"dram__bytes_op_read.sum", "dram__bytes_op_write.sum"}  # of GB202, in place of the others
COUNTED = {
    name: d.names for name, d in CATALOGUE.items() if d.names and not d.names[0].startswith("launch__")
}


class Initialize(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("private", ctypes.c_void_p),
        ("profiler", ctypes.c_int),
        ("chip", ctypes.c_char_p),
        ("availability", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
    )


class Properties(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("private", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("unit", ctypes.c_char_p),  # of the hardware
        ("dimension", ctypes.c_char_p),
        ("kind", ctypes.c_int),
    )


@cache
def cupti() -> ctypes.CDLL:
    spec = importlib.util.find_spec("triton")
    folders = [Path("/usr/local/cuda/lib64"), Path("/usr/local/cuda/extras/CUPTI/lib64")]
    if spec is not None and spec.origin is not None:
        folders.insert(0, Path(spec.origin).parent / "backends" / "nvidia" / "lib" / "cupti")
    for folder in folders:
        if (folder / "libcupti.so").exists() and (folder / "libnvperf_host.so").exists():
            ctypes.CDLL(str(folder / "libnvperf_host.so"), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(folder / "libcupti.so"))
    pytest.skip("there is no CUPTI, which Triton brings along")


@cache
def dimensions(chip: str) -> Callable[[str], str | None]:
    """What a metric of this chip, with its rollup, is measured in; None where there is no such metric."""
    library = cupti()
    opened = Initialize(ctypes.sizeof(Initialize), None, 0, chip.encode(), None, None)
    assert library.cuptiProfilerHostInitialize(ctypes.byref(opened)) == 0
    size = Properties.kind.offset + Properties.kind.size

    def dimension(name: str) -> str | None:
        asked = Properties(size, None, opened.host, name.encode(), None, None, None, 0)
        status = library.cuptiProfilerHostGetMetricProperties(ctypes.byref(asked))
        assert status in (0, INVALID_NAME), status
        return asked.dimension.decode() if status == 0 else None

    return dimension


def known(chip: str, name: str) -> bool:
    return dimensions(chip)(name) is not None


@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_has_the_counters_under_one_of_their_names(chip: str) -> None:
    lacking = {ours for ours, names in COUNTED.items() if not any(known(chip, name) for name in names)}
    assert lacking == {name for name, chips in ONLY_ON.items() if chip not in chips}


def test_no_name_is_there_for_nothing() -> None:
    every = {name for names in COUNTED.values() for name in names}
    assert {name for name in every if not any(known(chip, name) for chip in CHIPS)} <= FROM_CUDA_13


def test_two_names_that_others_publish_are_on_no_list() -> None:
    for name in (
        "sm__inst_executed_pipe_fp32.avg.pct_of_peak_sustained_active",
        "smsp__warp_issue_stalled_memory_dependency_per_warp_active.pct",
    ):
        assert not any(known(chip, name) for chip in CHIPS)


def test_shares_times_and_bytes_are_such() -> None:
    expected = {"1": "percent", "us": "nanosecond", "bytes": "byte"}
    for name, names in COUNTED.items():
        found = {dimensions(chip)(each) for chip in CHIPS for each in names} - {None}
        if (wanted := expected.get(CATALOGUE[name].unit)) is not None:
            assert found == {wanted}, name
        else:
            assert not found & set(expected.values()), name
