"""`kernelwright export`: what of a run it takes, what it says and times."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import KernelwrightError, UsageError
from kernelwright.kernelbench.records import Build, Task, Verdict
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from kernelwright.results.dropin.winner import Winner
from tests.helpers.dropin.exporting import LAYERS, NORM, SIGMOIDS, python
from tests.helpers.results import run_factory

pytestmark = pytest.mark.builds


def test_the_winner_of_a_run(tmp_path: Path) -> None:
    good, bad = run_factory.task("softmax"), run_factory.task("relu")
    with run_factory.new_run(tmp_path) as database:
        for task, verdict in ((good, Verdict.correct), (bad, Verdict.wrong_output)):
            made = run_factory.candidate(1)
            database.add_task(task)
            evaluation = run_factory.evaluation(task, made, verdict, eager=2.0)
            database.record_attempt(task.id, 1, made, None, evaluation, None)
    assert Winner.of(tmp_path, "softmax").candidate == run_factory.candidate(1)
    assert [each.task for each in Winner.all_of(tmp_path)] == [good]
    for name, why in (("relu", "no correct kernel .*wrong_output"), ("tanh", "no task tanh")):
        with pytest.raises(KernelwrightError, match=why):
            Winner.of(tmp_path, name)


@pytest.mark.parametrize(("times_us", "best"), [((90.0, 30.0, 60.0), 2), ((None, None, None), 3)])
def test_without_a_gpu_the_kernel_of_the_least_predicted_time(
    times_us: tuple[float | None, ...], best: int, tmp_path: Path
) -> None:
    task = run_factory.task("softmax")
    with run_factory.new_run(tmp_path) as database:
        database.add_task(task)
        for number, time_us in enumerate(times_us, 1):
            made = run_factory.candidate(number)
            there = {
                "verdict": Verdict.unmeasured,
                "reason": "right in emulation; there is no GPU to time it on",
                "launched": ("softmax",),
                "timing": None,
                "speedup": None,
                "builds": (Build(chip="sm_90", ok=True, predicted_us=time_us),),
            }
            found = run_factory.evaluation(task, made, Verdict.correct, eager=2.0).model_copy(update=there)
            database.record_attempt(task.id, number, made, None, found, None)
    assert Winner.of(tmp_path, "softmax").candidate == run_factory.candidate(best)


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    """It times the drop-in, says where it does not pay, and goes on with nothing that cannot be exported."""
    folder = tmp_path / "run"
    with run_factory.new_run(folder) as database:
        database.add_task(SIGMOIDS.task)
        database.record_attempt(SIGMOIDS.task.id, 1, SIGMOIDS.candidate, None, SIGMOIDS.evaluation, None)
    command = [sys.executable, "-m", "kernelwright", "export", str(folder), "sigmoids", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)["metadata"]["measured"]["sigmoids"]
    assert set(measured) == {"forward", "forward, compiled", "training", "training, compiled"}
    for found in measured.values():
        assert found["speedup"] == pytest.approx(found["reference_us"] / found["drop_in_us"])
    # Of 8 x 32 numbers: two outputs and a sum; the drop-in needs no sum.
    peaks = [measured["forward"][f"{each}_peak_bytes"] for each in ("reference", "drop_in")]
    assert peaks == [3 * 1024, 2 * 1024]
    again = subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True)
    assert again.returncode == 2 and "is not empty — choose a new folder" in again.stderr
    every = [*command[:5], "--all", "--out", str(tmp_path / "all"), "--no-measure"]
    for layer, why in (
        (
            "Block",
            "--layer Block does not name its kernel — use --layer sigmoids:…; the kernels are sigmoids",
        ),
        ("other:Block", "does not name its kernel"),
    ):
        bad = subprocess.run([*every, "--layer", layer], capture_output=True, text=True)
        assert bad.returncode == 2 and why in bad.stderr
    words = ["--layer", "sigmoids:models.Block", "--licence", "MIT", "--json"]
    done = subprocess.run([*every, *words], capture_output=True, text=True)
    (kernel,) = json.loads(done.stdout)["metadata"]["kernels"]
    assert kernel["layers"] == {"models.Block": {}} and kernel["provenance"]["licence"] == "MIT"


WHOLE = """
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))
        self.eps = eps

    def forward(self, hidden):
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.eps) * self.scale


class Model(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.norm = Norm(64, eps)
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return x + self.linear(self.norm(x))


def get_inputs():
    return [torch.randn(4, 16, 64)]


def get_init_inputs():
    return [1e-6]
"""


@pytest.mark.slow
def test_a_whole_model_is_timed_with_and_without(tmp_path: Path) -> None:
    chosen = [PackagedKernel("rms_norm", NORM, layers={"Norm": {"weight": "scale"}})]
    task = Task(id="file:block", level=3, source=WHOLE)
    found = write(chosen, tmp_path / "out", "fused", measure=False, inside=task)["measured_inside"]
    assert found["task"] == "file:block"
    assert set(found["the whole"]) == {"forward", "forward, compiled", "training", "training, compiled"}
    assert all(row["speedup"] > 0 for row in found["the whole"].values())
    python(tmp_path / "out", "-c", "import fused; assert fused.METADATA['measured_inside']")
    other = Task(id="file:block", level=3, source=WHOLE.replace("return [1e-6]", "return [0.5]"))
    with pytest.raises(UsageError, match=r"the model cannot be timed: .*kernel's reference"):
        write(chosen, tmp_path / "other", "fused", measure=False, inside=other)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_layers_compute_themselves_where_that_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speedups = {"forward": 2.0, "forward, compiled": 0.9, "training": 0.5, "training, compiled": 1.0}
    found = {mode: {"speedup": speedup} for mode, speedup in speedups.items()}
    monkeypatch.setattr("kernelwright.results.dropin.package._measured", lambda *_: {"rms_norm": found})
    chosen = [PackagedKernel("rms_norm", NORM, layers={"Norm": {"weight": "scale"}})]
    written = write(chosen, tmp_path / "out", "fused", where_faster=True)
    assert written["kernels"][0]["slower"] == ["forward, compiled", "training"]
    used = """
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph.code)
            return graph

        block = Block()
        fused.apply(block)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                with torch.profiler.profile() as seen:
                    block(torch.rand(4, 16, 64))
                names = [each.name for each in seen.events()]
                assert any(name.startswith("fused::") for name in names) == (not grad), names
                torch.compiler.reset()
                torch.compile(block, backend=backend, fullgraph=True)(torch.rand(4, 16, 64))
        assert ["fused" in code for code in graphs] == [False, True], graphs
    """
    python(tmp_path / "out", "-c", LAYERS + textwrap.dedent(used))


@pytest.mark.slow
def test_what_was_compiled_before_does_not_keep_a_reference_from_being_compiled(tmp_path: Path) -> None:
    """torch compiles a function for so many cases; then it warns, and calls it as it is."""
    chosen = [PackagedKernel("rms_norm", NORM), PackagedKernel("sigmoids", SIGMOIDS)]
    write(chosen, tmp_path / "out", "fused", measure=False)
    timed = """
        import torch
        import fused
        from fused.runtime.timing import timed

        torch._dynamo.config.recompile_limit = 2
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        for kernel in fused.KERNELS.values():
            assert len(timed(kernel)) == 4
    """
    python(tmp_path / "out", "-c", textwrap.dedent(timed))
