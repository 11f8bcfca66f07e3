"""CUDA C++ built by NVRTC for the architecture's own instructions, and kept."""

from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import MissingPrerequisite, Unavailable
from kernelwright.kernelbench.jit import BuildError, cubin
from kernelwright.kernelbench.jit.cache import BuildCache

pytestmark = pytest.mark.builds

# Of sm_90a only: the registers of a warpgroup.
SOURCE = r"""
#include <cstdint>
extern "C" __global__ void give_back(int32_t* x) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    x[threadIdx.x] = 1;
}
"""


@pytest.fixture(autouse=True)
def _installed() -> None:
    try:
        nvrtc.version()
    except Unavailable as error:
        pytest.skip(str(error))


def kept(folder: Path, source: str = SOURCE, chip: str = "sm_90", options: tuple[str, ...] = ()) -> bytes:
    return cubin.kept(source, options, chip, BuildCache(folder), timeout_s=60).read_bytes()


def test_instructions_of_the_architecture_can_be_used(tmp_path: Path) -> None:
    assert kept(tmp_path).startswith(b"\x7fELF")
    with pytest.raises(BuildError, match=r"NVRTC failed\n.*setmaxnreg"):
        kept(tmp_path, chip="sm_80")


def test_a_build_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept(tmp_path)

    def none(*_: Any) -> None:
        raise AssertionError("NVRTC is asked again")

    monkeypatch.setattr(nvrtc, "_nvrtc", none)
    assert kept(tmp_path) == first
    for change in ({"source": SOURCE + "\n"}, {"chip": "sm_100"}, {"options": ("-DN=1",)}):
        with pytest.raises(AssertionError, match="asked again"):
            kept(tmp_path, **change)  # type: ignore[arg-type]


def test_a_chip_that_nvrtc_does_not_know_is_no_fault_of_the_source(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisite, match=r"NVRTC [\d.]+ does not build for sm_999 — pip install -U"):
        kept(tmp_path, chip="sm_999")


def test_without_nvrtc_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(nvrtc.importlib, "import_module", none)
    with pytest.raises(
        MissingPrerequisite, match=r"NVRTC is not installed.* — pip install 'kernelwright\[cuda\]'"
    ):
        kept(tmp_path)


@pytest.mark.parametrize(("chip", "wanted"), [("sm_80", "sm_80"), ("sm_90", "sm_90a"), ("sm_120", "sm_120a")])
def test_the_variant_of_a_chip(chip: str, wanted: str) -> None:
    assert nvrtc.accelerated(chip) == wanted
    assert nvrtc.supports(chip) and nvrtc.cubin('extern "C" __global__ void k() {}', wanted)
