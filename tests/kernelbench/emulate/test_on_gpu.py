"""The corpus on a GPU: right kernels are right there, too, and compute-sanitizer finds what emulation does.

Not run on a GPU yet. KERNELWRIGHT_AGREEMENT names a file for the table of agreement.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.emulate import agreement
from tests.helpers.emulate.agreement import TOOL_OF, Observation, looked_at, observed, table, values
from tests.helpers.emulate.specimen import Specimen, corpus

pytestmark = pytest.mark.builds

RIGHT = [specimen for specimen in corpus() if not specimen.expected]
ACCEPTED = (
    "atomic_sum",
    "groups_of_any_kind",
    "matmul_double_buffered",
    "scan_warp",
    "softmax",
)  # on a new GPU


def case(specimen: Specimen) -> Any:
    accepted = [pytest.mark.acceptance] * (specimen.name in ACCEPTED)
    return pytest.param(specimen, id=specimen.name, marks=accepted)


@pytest.mark.gpu
@pytest.mark.parametrize("specimen", [case(specimen) for specimen in RIGHT])
def test_values_are_right_on_a_gpu(specimen: Specimen) -> None:
    found = values(specimen)
    assert found.found is False, found.says


@pytest.mark.gpu
@pytest.mark.slow
def test_compute_sanitizer_agrees(tmp_path: Path) -> None:
    if agreement.sanitizer() is None:
        pytest.skip("compute-sanitizer, of the CUDA toolkit, is not on PATH")
    found = observed()
    Path(os.environ.get("KERNELWRIGHT_AGREEMENT", tmp_path / "agreement.md")).write_text(table(found))
    # memcheck needs no luck; races and barriers depend on how warps happen to run.
    differing = [each for each in found if each.tool == "memcheck" and each.agrees is False]
    assert not differing, table(differing)


def test_the_table_says_what_agrees() -> None:
    races = ("read_after_write",)
    found = [
        Observation("sum", (), "racecheck", False, "nothing"),
        Observation("sum-NO_BARRIER", races, "racecheck", False, "nothing"),
        Observation("sum-NO_BARRIER", races, "memcheck", None, "longer than 120 s"),
    ]
    assert [each.agrees for each in found] == [True, False, None]
    text = table(found)
    assert text.startswith("1 of 3 agree, 1 do not, 1 could not be told.")
    assert "| sum-NO_BARRIER | read_after_write | racecheck | nothing | **no** |" in text


def test_what_a_tool_says_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "\n".join(
        (
            "========= COMPUTE-SANITIZER",
            "========= Invalid __global__ read of size 4 bytes",
            "=========     at add+0x40",
            "========= ERROR SUMMARY: 24 errors",
        )
    )
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    specimen = next(each for each in corpus() if each.name == "add-NO_GUARD")
    found = looked_at(specimen, TOOL_OF["out_of_bounds"])
    assert found.agrees and found.says == "Invalid __global__ read of size 4 bytes"


@pytest.mark.slow
def test_a_process_of_its_own_says_whether_values_are_right() -> None:
    chosen = {each.name: each for each in corpus()}
    assert values(chosen["add"]).found is False
    wrong = values(chosen["neutral-ZERO"])
    assert wrong.found is True and wrong.agrees
