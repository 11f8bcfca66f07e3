"""`kernelwright export --train`: kernels for gradients are searched for, and kept where training is faster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.agent.export import GradientSearch
from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.store.database import RunDatabase
from tests.helpers.dropin.exporting import NORM, SIGMOIDS

NORM_TASK = """
import torch
from torch import nn

rows = 256
workload = [{"rows": 256}, {"rows": 33}]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(512))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def get_inputs():
    return [torch.randn(rows, 512)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("speedup", [1.4, 1.2])
def test_kernels_for_gradients_are_kept_where_training_is_faster(
    speedup: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    kernel = PackagedKernel("sigmoids", SIGMOIDS)
    monkeypatch.setattr(GradientSearch, "_search", lambda *_: None)
    monkeypatch.setattr(GradientSearch, "_speedup", lambda _, one: speedup if one.backward else 1.3)
    monkeypatch.setattr(Winner, "all_of", lambda _: [NORM])
    found = GradientSearch(tmp_path, "kernelwright export", said.append).with_gradient(kernel)
    assert list(found.backward) == ([NORM] if speedup > 1.3 else [])
    assert ("kept" if speedup > 1.3 else "left out") in said[-1]
    assert [path.name for path in (tmp_path / "gradients" / "sigmoids").iterdir()] == ["sigmoids_gradient.py"]


def test_a_gradient_without_a_kernel_is_left_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    kernel = PackagedKernel("sigmoids", SIGMOIDS)
    monkeypatch.setattr(GradientSearch, "_search", lambda *_: None)

    def none(_: object) -> list[Winner]:
        raise UsageError("it has no correct kernel", "use another run")

    monkeypatch.setattr(Winner, "all_of", none)
    assert GradientSearch(tmp_path, "", said.append).with_gradient(kernel) is kernel
    assert said[-1] == "sigmoids has no kernel for its gradient: it has no correct kernel"


def test_what_cannot_be_is_said_with_the_remedy(tmp_path: Path) -> None:
    search = GradientSearch(tmp_path / "none", "", print)
    with pytest.raises(UsageError, match="is none"):
        search.with_gradient(PackagedKernel("sigmoids", SIGMOIDS))
    with pytest.raises(UsageError, match="--train and --backward are both given"):
        search.with_gradient(PackagedKernel("sigmoids", SIGMOIDS, backward=[NORM]))


def attempts(run: Path) -> int:
    with RunDatabase.open(run, read_only=True) as database:
        return sum(len(database.attempts(entry.task.id)) for entry in database.tasks())


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM_TASK)

    def kernelwright(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kernelwright", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done

    kernelwright("run", "norm.py", "--rounds", "1", "--effort", "quick", "--out", "run")
    export = ("export", "run", "norm", "--train", "--layer", "Norm", "--json", "--out")
    done = kernelwright(*export, "out")
    (kernel,) = json.loads(done.stdout)["metadata"]["kernels"]
    assert kernel["limits"] == {"rows": [1, None]}
    kept = "so they are kept" in done.stderr
    assert (kernel["backward"]["way"] == "kernel") == kept, done.stderr
    runs = tmp_path / "run" / "gradients" / "norm"
    names = {"norm_gradient.py", "norm_training.py", "run"}
    assert {path.name for path in runs.iterdir()} == names
    before = attempts(runs / "run")
    again = kernelwright(*export, "again", "--no-measure")
    assert "writing the gradient" not in again.stderr
    assert before and attempts(runs / "run") == before
