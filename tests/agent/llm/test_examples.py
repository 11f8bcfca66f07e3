"""The kernels that a model is shown: right, fast where they can be timed, and well built where they cannot."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.agent.llm.prompting import _FLAGS, FOLDER, NAMES, _template, examples
from kernelwright.kernelbench.chips import sass
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator import EAGER, Effort, Measurement, Protocol, Referee
from kernelwright.kernelbench.jit import cubin
from kernelwright.kernelbench.records import Candidate, Evaluation, Precision, Task, Verdict
from kernelwright.kernelbench.without_gpu import FEW, EmulatedEvaluator

EXAMPLES = FOLDER / "examples"
# Sizes at which a kernel goes through its branches and its edges; emulation takes 1000 times as long as a GPU.
SMALL = {
    "rms_norm_silu": {"rows": 3, "columns": 1032},
    "calibrated_log_softmax": {"batch": 2, "channels": 37, "size": 6},
    "batch_norm_hardswish_add": {"batch": 2, "channels": 5, "size": 47},
    "linear_gelu": {"rows": 20, "inputs": 48, "outputs": 48},
}
LEAST_OCCUPANCY = {"rms_norm_silu": 0.5, "calibrated_log_softmax": 0.4, "linear_gelu": 0.12}


def files(*languages: str) -> list[Path]:
    return [path for language in languages for path in sorted((EXAMPLES / language).glob("*.py"))]


def called(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def task(name: str, precision: Precision = Precision.task, **sizes: int) -> Task:
    source = (EXAMPLES / "tasks" / f"{name}.py").read_text()
    for constant, value in sizes.items():
        source, count = re.subn(rf"^{constant} = \d+$", f"{constant} = {value}", source, flags=re.MULTILINE)
        assert count == 1, constant
    return Task(id=f"file:{name}", level=1, source=source, precision=precision)


def candidate(path: Path) -> Candidate:
    return Candidate(source=path.read_text(), language=path.parent.name, author="test")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    """An evaluator with few inputs."""
    cache = tmp_path_factory.mktemp("examples")
    with Referee.start(cache=cache, protocol=Protocol(families=FEW)) as made:
        yield made


def evaluated(
    evaluator: Referee, path: Path, precision: Precision = Precision.task, **sizes: int
) -> Evaluation:
    small = task(path.stem, precision, **(SMALL[path.stem] | sizes))
    if path.parent.name != "cpp":
        return EmulatedEvaluator(evaluator, ("sm_80", "sm_90")).evaluate(small, candidate(path))
    brief = Effort(rounds=1, processes=1, most_processes=1, half_width=1.0)
    return evaluator.evaluate(small, candidate(path), Measurement(("eager",), brief))


def test_each_language_has_three_short_ones() -> None:
    for language in ("cpp", "triton", "cuda"):
        lengths = [len(path.read_text()) / 3.6 for path in files(language)]  # about what a token is of code
        assert len(lengths) == 3
        assert sum(lengths) < 3300
    assert {path.stem for path in files("cpp", "triton", "cuda")} == {path.stem for path in files("tasks")}


@pytest.mark.slow
@pytest.mark.builds
@pytest.mark.parametrize("path", files("cpp"), ids=called)
def test_cpp_is_right(evaluator: Referee, path: Path) -> None:
    evaluation = evaluated(evaluator, path)
    assert evaluation.verdict is Verdict.correct, evaluation.reason


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.parametrize("path", files("cpp"), ids=called)
def test_cpp_is_half_as_fast_again_as_eager(tmp_path: Path, path: Path) -> None:
    with Referee.start(cache=tmp_path) as made:
        evaluation = made.evaluate(task(path.stem), candidate(path), EAGER)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.speedup is not None and evaluation.speedup.eager is not None
    assert evaluation.speedup.eager.median >= 1.5


@pytest.mark.builds
@pytest.mark.parametrize("path", files("triton", "cuda"), ids=called)
def test_gpu_kernels_are_right_and_do_not_spill(evaluator: Referee, path: Path) -> None:
    evaluation = evaluated(evaluator, path)
    assert evaluation.verdict is Verdict.unmeasured, evaluation.reason
    assert re.match(r"right in (emulation|Triton's interpreter)", evaluation.reason), evaluation.reason
    builds = {build.chip: build for build in evaluation.builds}
    for chip in ("sm_80", "sm_90"):
        if builds[chip].ok is None:
            pytest.skip(builds[chip].problem)
        for kernel in builds[chip].kernels:
            assert (kernel.spills, kernel.stack_bytes) == (0, 0), (chip, kernel)
            assert kernel.occupancy >= LEAST_OCCUPANCY[path.stem], (chip, kernel)


# Where rows are not aligned, or the row does not fit into registers; and 16-bit numbers.
OTHERS = [
    ("cuda/rms_norm_silu", Precision.task, {"columns": 517}),
    ("cuda/rms_norm_silu", Precision.bf16, {}),
    ("cuda/calibrated_log_softmax", Precision.task, {"channels": 70}),
    ("triton/rms_norm_silu", Precision.bf16, {"columns": 16400}),
    ("triton/calibrated_log_softmax", Precision.bf16, {}),
    ("triton/linear_gelu", Precision.bf16, {"inputs": 35}),
    ("triton/linear_gelu", Precision.fp16, {}),
    ("cuda/linear_gelu", Precision.task, {"rows": 131, "inputs": 37, "outputs": 130}),
]


@pytest.mark.builds
@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision", "sizes"), OTHERS)
def test_other_sizes_and_precisions(
    evaluator: Referee, name: str, precision: Precision, sizes: dict[str, int]
) -> None:
    evaluation = evaluated(evaluator, EXAMPLES / f"{name}.py", precision, **sizes)
    assert evaluation.verdict is Verdict.unmeasured and evaluation.reason.startswith("right in"), (
        evaluation.reason
    )


@pytest.mark.gpu
@pytest.mark.acceptance
@pytest.mark.parametrize("path", files("triton", "cuda"), ids=called)
def test_gpu_kernels_pass_on_a_gpu(path: Path, tmp_path: Path) -> None:
    with Referee.start(cache=tmp_path, device="cuda:0") as made:
        evaluation = made.evaluate(task(path.stem), candidate(path), EAGER)
    assert evaluation.verdict is Verdict.correct, evaluation.reason


@pytest.mark.builds
def test_the_cuda_product_is_on_tensor_cores_and_its_sums_are_as_exact_as_fp32(
    evaluator: Referee, tmp_path: Path
) -> None:
    """With one product of TF32 in place of three it is refused, as on a GPU."""
    path = EXAMPLES / "cuda" / "linear_gelu.py"
    source = path.read_text()
    try:
        (kernel,) = sass.kernels(cubin.build(source.split('r"""')[1].split('"""')[0], (), "sm_90"))
    except Unavailable as error:
        pytest.skip(str(error))
    found = sass.whole(kernel)
    assert found.warp_products > 0 and found.spills == 0
    less, count = re.subn(r" +mma_sync\(total\[i\]\[j\], u(_small, v|, v_small)\[j\].*\n", "", source)
    assert count == 2
    once = candidate(path).model_copy(update={"source": less})
    small = task("linear_gelu", **SMALL["linear_gelu"])
    evaluation = EmulatedEvaluator(evaluator, ()).evaluate(small, once)
    assert evaluation.verdict is Verdict.wrong_output, evaluation.reason


def test_system_messages_are_short() -> None:
    """At most 5000 tokens of 3.6 characters: they are paid for, if less, with every call."""
    for language in ("cpp", "triton", "cuda"):
        shown = {"language": language, "names": NAMES, "flags": _FLAGS, "examples": examples(language)}
        assert len(_template("coder_system.md").render(**shown)) / 3.6 <= 5000
