"""Values that kernels compute again instead of reading what another one stored."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelwright.agent.builtin.fusion import recompute as recomputing
from tests.helpers.builtin.proving import as_list, models, propose, prove, source

pytestmark = pytest.mark.builds

NORMALIZED = source(
    "return self.conv(F.relu(self.norm(x)))",
    "torch.randn(3, 16, 18, 20)",
    init="self.norm = nn.BatchNorm2d(16, track_running_stats=False); self.conv = nn.Conv2d(16, 16, 3)",
)
TURNED = "y = x - x.mean((0, 2), keepdim=True)\n        s = y.square().sum((0, 2), keepdim=True)\n        "


def stored(text: str) -> list[str]:
    """What kernels write."""
    return [word.rstrip(",)") for word in text.split() if word.rstrip(",)").endswith("_out")]


def test_what_is_centered_is_computed_where_it_is_turned(tmp_path: Path) -> None:
    candidate = prove(NORMALIZED, tmp_path, layout="channels_last")
    assert not any("centered" in name for name in stored(candidate.source))
    assert any("mean" in name for name in stored(candidate.source))


@pytest.mark.parametrize(
    ("result", "is_stored"),
    [
        ("(y * s).mT.contiguous()", False),
        ("(y * s).mT.contiguous(), y", True),  # it is there anyway
        ("(y * s).mT.contiguous(), y @ y.mT", True),  # a library call reads it
        ("torch.relu(y * s).mT[:, 3:].contiguous()", False),
    ],
)
def test_only_what_no_one_else_needs_is_not_stored(result: str, is_stored: bool, tmp_path: Path) -> None:
    text = source(f"{TURNED}return {result}", "torch.randn(4, 40, 50)")
    candidate = prove(text, tmp_path)
    assert any(name in ("sub_out", "y_out") for name in stored(candidate.source)) == is_stored, (
        candidate.source
    )


SAME = "m = y.amax((0, 2), keepdim=True)\n        "


@pytest.mark.parametrize(
    ("computed", "result", "dtype"),
    [
        ("x * 2.3", "(y == m).mT.contiguous()", "bfloat16"),
        ("x - 0.1", "(y == m).mT.contiguous()", "float16"),
        ("x * 2.3", "torch.sign(y - m).mT.contiguous()", "float32"),
        ("torch.add(x, 1.0, alpha=2.3)", "torch.sign(y - m).mT.contiguous()", "float32"),
        ("x - 2.3", "torch.sign(y - m).mT.contiguous(), y.amin((0, 2))", "float32"),
    ],
)
def test_what_is_computed_again_is_the_same(computed: str, result: str, dtype: str, tmp_path: Path) -> None:
    text = source(
        f"y = {computed}\n        {SAME}return {result}", f"torch.randn(4, 40, 50).to(torch.{dtype})"
    )
    model, model_new, inputs = models(text, propose(text), tmp_path)
    with torch.no_grad():
        wanted, found = as_list(model(*inputs))[0], as_list(model_new(*inputs))[0]
    assert torch.equal(wanted, found)


def test_kernels_that_are_kept_apart_compute_nothing_again(tmp_path: Path) -> None:
    assert "_again" in propose(NORMALIZED, layout="channels_last").source
    assert "_again" not in prove(NORMALIZED, tmp_path, layout="channels_last", fuse="apart").source
    prove(source("return (x - 2.3).argmax(-1)", "torch.randn(40, 50).bfloat16()"), tmp_path, fuse="apart")


def test_what_lies_along_different_axes_is_stored(tmp_path: Path) -> None:
    text = source(
        "y = x - z; s = y.sum((0, 1), keepdim=True); return (y * s).permute(2, 1, 0).contiguous()",
        "torch.randn(16, 24, 40), torch.randn(16, 24, 1)",
        arguments="x, z",
    )
    prove(text, tmp_path)


@pytest.mark.slow
def test_the_same_names_are_given_every_time() -> None:
    text = source(
        f"{TURNED}return (y * s).mT.contiguous(), (y + s).mT.relu(), torch.tanh(y.mT - 1)",
        "torch.randn(4, 40, 50)",
    )
    script = f"from tests.helpers.builtin.proving import propose\nprint(propose({text!r}).sha256)"
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_what_would_need_two_large_values_is_stored(tmp_path: Path) -> None:
    text = source(
        "y = x * z\n        s = y.sum((0, 2), keepdim=True)\n        return (y * s).mT.contiguous()",
        "torch.randn(4, 40, 50), torch.randn(4, 40, 50)",
        arguments="x, z",
    )
    assert any("mul" in name for name in stored(prove(text, tmp_path).source))


def test_where_it_cannot_join_its_reader_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = propose(NORMALIZED, layout="channels_last").source
    monkeypatch.setattr(recomputing, "_is_inside", lambda *_: False)
    candidate = prove(NORMALIZED, tmp_path, layout="channels_last")
    assert candidate.source != wanted and any("centered" in name for name in stored(candidate.source))
