"""`kernelwright optimize`: from a model to a package and the whole step's gain; the same command goes on."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.whole_model.comparison import StepEndedError
from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.optimize import ModelOptimization, packaged_kernel, read
from kernelwright.agent.whole_model.records import (
    ExtractedPart,
    ModelResult,
    PartResult,
    ResultDeviation,
    StepComparison,
    StepTimes,
)
from kernelwright.agent.whole_model.report import markdown
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.records import Interval
from tests.helpers.dropin.exporting import winner
from tests.helpers.dropin.small_kernels import RMS_NORM, RMS_NORM_KERNEL

MODELS = Path(__file__).with_name("models.py")
TIMES = StepTimes(stock_s=0.012, drop_in_s=0.01, speedup=Interval(median=1.2, low=1.15, high=1.26))
COMPARISON = StepComparison(
    eager=TIMES,
    compiled=None,
    stock_peak_bytes=3 << 20,
    drop_in_peak_bytes=2 << 20,
    deviations=(
        ResultDeviation(name="loss", stock_error=1e-7, drop_in_error=1e-7),
        ResultDeviation(name="gradient of w", stock_error=1e-7, drop_in_error=3e-7),
    ),
)
KEPT = PartResult(part="Norm", task="01_norm.py", places=("a", "b"), package="kernels_norm", replaced=2, times=TIMES, kept=True)  # fmt: skip


def optimize(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", "optimize", "models.py:any_size", "--out", "out", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=2000)


@pytest.mark.slow
@pytest.mark.timeout(2100)
def test_a_model_becomes_a_comparison_of_the_whole(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS.read_text())
    words = ["--train", "--rounds", "1", "--effort", "quick", "--baseline", "eager", "--most-parts", "3"]
    words += ["--init", "layers=2", "--size", "batch=64,length=64", "--size", "batch=5,length=300,hidden"]
    done = optimize(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    found = ModelResult.model_validate_json((tmp_path / "out" / "comparison.json").read_text())
    parts = {part.part: part for part in found.parts}
    assert parts["Norm"].replaced == 2 and parts["gated"].replaced == 1, parts  # layers, and a function
    for part in (parts["Norm"], parts["gated"]):
        assert part.times is not None and part.kept == (part.times.speedup.low > 1), part
        assert list(part.times.sizes) == ["batch=64, length=64", "batch=5, length=300"]
    assert "the step does not call what it replaces" in parts["loss"].reason  # but what `build` returned
    assert parts["gated"].kept, parts["gated"]  # two to six times as fast in its sandbox
    kept = [part for part in parts.values() if part.kept]
    assert bool(kept) == (tmp_path / "out" / "package").exists() == (found.comparison is not None)
    for each in found.comparison.deviations if found.comparison is not None else ():
        assert each.drop_in_error < 1e-5, each
    tasks = {path.name for path in (tmp_path / "out" / "tasks").glob("*_norm*")}
    assert any(name.endswith("_gradient.py") for name in tasks)
    assert (tmp_path / "out" / "report.md").read_text().strip() in done.stdout
    again = optimize(tmp_path, *words, "--json")
    assert json.loads(again.stdout) == found.model_dump(mode="json") and "builtin coder" not in again.stderr


def test_a_report_tells_the_whole_step_and_each_kernel() -> None:
    left = KEPT.model_copy(
        update={"part": "Mlp", "times": None, "kept": False, "reason": "no correct kernel"}
    )
    result = ModelResult(model="m.py:build", trains=True, parts=(KEPT, left), comparison=COMPARISON)
    text = markdown(result, Path("o"))
    unsure = TIMES.model_copy(update={"speedup": Interval(median=1.02, low=0.96, high=1.06)})
    other = result.model_copy(update={"comparison": COMPARISON.model_copy(update={"eager": unsure})})
    assert "not certainly faster" in markdown(other, Path("o")) and "not certainly faster" not in text
    assert "# m.py:build: a step of training" in text
    assert "| eager | 12 ms | 10 ms | 1.2" in text and "| 3.0 MiB | 2.0 MiB | 1.50 |" in text
    assert "All 2 results are no farther from float64" in text
    assert "gradient of w, by 3e-07" in text and "pip install --no-build-isolation o/package" in text
    assert "| Mlp | 2 |  | no correct kernel |" in text


def test_a_package_that_changes_the_results_is_not_to_be_used() -> None:
    """One result outside its budget, or none where the model has one."""
    for error in (0.01, math.inf, math.nan):
        off = ResultDeviation(name="gradient of v", stock_error=1e-7, drop_in_error=error, budget=6e-5)
        comparison = COMPARISON.model_copy(update={"deviations": (*COMPARISON.deviations, off)})
        found = ModelResult(model="m.py:build", trains=True, parts=(KEPT,), comparison=comparison)
        text = markdown(found, Path("o"))
        assert "1 of 3 results are **farther** from float64" in text and "Farthest: gradient of v, by" in text
        assert "Do not use `o/package`" in text and "pip install" not in text


def test_kernels_are_left_out_of_a_compiled_step_that_is_not_faster() -> None:
    slower = TIMES.model_copy(update={"speedup": Interval(median=0.95, low=0.93, high=0.97)})
    found = ModelResult(
        model="m.py:build", trains=True, parts=(KEPT,), comparison=COMPARISON, compiled=slower
    )
    said = "the compiled step is 0.950× [0.930, 0.970] as fast, so they are left out of it"
    assert said in markdown(found, Path("o"))
    assert "left out" not in markdown(found.model_copy(update={"compiled": TIMES}), Path("o"))


def test_without_a_kernel_that_pays_there_is_no_package_to_install() -> None:
    text = markdown(ModelResult(model="m.py:build", trains=False, parts=(), comparison=None), Path("o"))
    assert "computes its part faster, so there is no package" in text and "pip install" not in text


def test_a_folder_of_another_step_is_refused(tmp_path: Path) -> None:
    found = ModelResult(model="torch.nn:ReLU", trains=True, parts=(), comparison=None)
    (tmp_path / "comparison.json").write_text(found.model_dump_json())

    def optimized(name: ModelName, trains: bool) -> ModelResult:
        return ModelOptimization(name, trains, tmp_path, 24).run(RunConfig(), "")

    relu, other = ModelName.of("torch.nn:ReLU"), ModelName.of("torch.nn:ReLU", ["8,8"])
    assert optimized(relu, True) == found
    for name, trains in ((relu, False), (other, True), (ModelName.of("torch.nn:GELU"), True)):
        with pytest.raises(UsageError, match=r"is of torch\.nn:ReLU --train — give another --out"):
            optimized(name, trains)


PART = ExtractedPart(
    kind="m.Norm", is_module=True, places=("a", "b"), calls=2, forward_s=0.1, backward_s=0.1, products_s=0.0,
    kept_bytes=0, task="01_norm.py",
)  # fmt: skip


def test_a_gradient_without_a_kernel_is_left_to_operators() -> None:
    """A run has kernels for other parts, and for the gradient of this one, or none."""
    norm, gradient, training, other = (
        winner(RMS_NORM, RMS_NORM_KERNEL, f"01_norm{end}")
        for end in ("", "_gradient", "_training", "s_gradient")
    )
    assert packaged_kernel(PART, norm, [norm, other]).backward == ()
    found = packaged_kernel(PART, norm, [norm, training, other, gradient])
    assert found.backward == (training, gradient) and found.layers == {"m.Norm": {}}


def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelOptimization:
    """Optimization whose part is packaged."""
    packaged = KEPT.model_copy(update={"times": None, "kept": False})
    monkeypatch.setattr(ModelOptimization, "_packaged", lambda self, part: packaged)
    return ModelOptimization(ModelName.of("torch.nn:ReLU"), True, tmp_path, 24)


def test_a_part_that_was_timed_is_not_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "kernels_norm.json").write_text(KEPT.model_dump_json())
    assert work(tmp_path, monkeypatch)._result(PART) == KEPT


@pytest.mark.parametrize(("error", "again"), [(StepEndedError, True), (UsageError, False)])
def test_a_step_that_ended_its_process_is_timed_again(
    error: type[UsageError], again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: ModelOptimization, part: ExtractedPart, result: PartResult) -> PartResult:
        raise error("it was killed", "try again")

    monkeypatch.setattr(ModelOptimization, "_timed", fails)
    assert work(tmp_path, monkeypatch)._result(PART).reason == "it was killed"
    assert (tmp_path / "packages" / "kernels_norm.json").exists() != again


def test_results_without_numbers_are_read_again(tmp_path: Path) -> None:
    nan = ResultDeviation(name="loss", stock_error=0.0, drop_in_error=math.inf)
    found = ModelResult(
        model="m.py:build",
        trains=True,
        parts=(KEPT,),
        comparison=COMPARISON.model_copy(update={"deviations": (nan,)}),
    )
    (tmp_path / "comparison.json").write_text(found.model_dump_json())
    assert read(tmp_path / "comparison.json", ModelResult) == found
    text = markdown(
        found.model_copy(update={"comparison": COMPARISON.model_copy(update={"deviations": ()})}), tmp_path
    )
    assert "float64" not in text


def test_a_damaged_file_of_the_folder_is_said_with_the_remedy(tmp_path: Path) -> None:
    assert read(tmp_path / "comparison.json", ModelResult) is None
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(StorageError, match="delete it"):
        read(tmp_path / "comparison.json", ModelResult)
