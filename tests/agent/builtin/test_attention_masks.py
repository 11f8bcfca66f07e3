"""Masks of attention that are made of constants, and heads that are repeated: read as what they mean."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from kernelwright.kernelbench.records import Candidate
from tests.helpers.builtin import interpreting
from tests.helpers.builtin.attention import (
    CAUSAL,
    GROUPED,
    IN_ANOTHER_ORDER,
    OTHER_MASKS,
    WINDOWS,
)
from tests.helpers.builtin.proving import propose, prove
from tests.helpers.installed import require

require("triton")

pytestmark = pytest.mark.builds


def forward(candidate: Candidate) -> str:
    return candidate.source.partition("def forward")[2]


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks_are_not_read(name: str, interpreter: ProcessPoolExecutor) -> None:
    left = propose(CAUSAL[name], "triton")
    assert "None, 0.0, True" in forward(left) and not left.kernels
    own = propose(CAUSAL[name], "triton", attention="own")
    assert "mask = tl.load(" not in own.source and "70 keys of 16, none of them after the query" in own.source
    interpreter.submit(interpreting.check, CAUSAL[name], own).result()


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_not_read_by_kernels_of_our_own(name: str, interpreter: ProcessPoolExecutor) -> None:
    own = propose(WINDOWS[name], "triton", attention="own")
    assert len(own.kernels) == 1 and "up to the query" in own.source
    interpreter.submit(interpreting.check, WINDOWS[name], own).result()
    assert ", 0.0, True" not in forward(propose(WINDOWS[name], "triton"))  # torch's call reads the mask


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_in_cpp(name: str, tmp_path: Path) -> None:
    assert "up to the query" in prove(WINDOWS[name], tmp_path, attention="own").source


@pytest.mark.parametrize("name", OTHER_MASKS)
def test_other_masks_are_read(name: str) -> None:
    assert "True)" not in forward(propose(OTHER_MASKS[name], "triton"))
    own = propose(OTHER_MASKS[name], "triton", attention="own")
    assert "mask = tl.load(" in own.source


@pytest.mark.parametrize("name", GROUPED)
def test_repeated_heads_are_read_as_they_are(name: str, interpreter: ProcessPoolExecutor) -> None:
    left = propose(GROUPED[name], "triton")
    assert "enable_gqa=True" in left.source and "expand" not in forward(left)
    own = propose(GROUPED[name], "triton", attention="own")
    assert "head // 3" in own.source and "expand" not in forward(own)
    interpreter.submit(interpreting.check, GROUPED[name], own).result()


def test_heads_in_another_order_are_copied() -> None:
    assert "enable_gqa" not in propose(IN_ANOTHER_ORDER, "triton").source
