"""Machine code of kernels that a candidate has built on a GPU, read together with a trace of their launches.

There is no GPU: the machine code is NVRTC's, in the candidate's build cache, and the trace is written by hand.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.gpu.kernels import base_name
from kernelwright.profiling.records import Profile
from kernelwright.profiling.rung import Subject
from kernelwright.profiling.static.cubins import Cubins
from tests.helpers.installed import require
from tests.helpers.profiling.evaluated import EXPONENTIALS

require("cuda.bindings.nvrtc")

pytestmark = pytest.mark.builds

SOURCE = """
namespace mine {
template <int ITEMS> __global__ void LIMITS sums(const float* x, float* y) {
    float kept[ITEMS];
    for (int i = 0; i < ITEMS; ++i) kept[i] = x[threadIdx.x * ITEMS + i];
    __syncthreads();
    for (int i = 0; i < ITEMS; ++i) y[threadIdx.x * ITEMS + i] = kept[ITEMS - 1 - i] + kept[i];
}
template __global__ void sums<ITEMS_>(const float*, float*);
}
"""
CUDA = '\nCUDA = "__global__ void sums(const float* x, float* y)"\n'
TASK = Task(id="file:exp", level=1, source=EXPONENTIALS)


def cubin(items: int, limits: str = "") -> bytes:
    return nvrtc.cubin(SOURCE.replace("ITEMS_", str(items)).replace("LIMITS", limits), "sm_90")


@pytest.fixture(scope="module")
def evaluator(home: Path) -> Iterator[Referee]:
    with Referee.start(cache=home) as made:
        yield made


def evaluation_on_gpu(evaluator: Referee, candidate: Candidate) -> Evaluation:
    found = evaluator.rejected(TASK, candidate, "").model_copy(update={"verdict": Verdict.correct})
    mark = found.target.fingerprint.model_copy(update={"chip": "NVIDIA H100 sm_90"})
    target = found.target.model_copy(update={"device": "cuda:0", "fingerprint": mark})
    return found.model_copy(update={"target": target})


class OnGpu:
    """An evaluator whose target is a GPU; its workers are the CPU's."""

    def __init__(self, evaluator: Referee, evaluation: Evaluation) -> None:
        self.sessions, self.target, self.emulating = evaluator.sessions, evaluation.target, None


def traced(registers: int, threads: int = 256) -> Profile:
    metrics = (
        metric("traced_launches", 3, "sums"), metric("grid_blocks", 64, "sums"),
        metric("block_threads", threads, "sums"), metric("registers", registers, "sums"),
        metric("shared_memory", 4096, "sums"), metric("traced_launches", 1, "vectorized_elementwise_kernel"),
        metric("block_threads", 128, "vectorized_elementwise_kernel"),
    )  # fmt: skip
    return Profile(metrics=metrics, bottleneck="unknown", speed_of_light=None)


def subject(evaluator: Referee, name: str, known: Profile | None, *builds: bytes) -> Subject:
    """Of a candidate with these cubins in its build cache."""
    source = f"# {name}\n" + EXPONENTIALS.replace("Model(", "ModelNew(") + CUDA
    candidate = Candidate(source=source, language="cuda", author="test")
    folder = evaluator.sessions.pool.builds_of(candidate.sha256) / "triton"
    folder.mkdir(parents=True, exist_ok=True)
    for number, code in enumerate(builds):
        (folder / f"{number}.cubin").write_bytes(code)
    evaluation = evaluation_on_gpu(evaluator, candidate)
    return Subject(OnGpu(evaluator, evaluation), TASK, candidate, evaluation, known=known)  # type: ignore[arg-type]


def values(of: Subject) -> dict[str, float]:
    reading = Cubins().read(of)
    assert {m.kernel for m in reading.metrics} == {"sums"} and {m.provenance for m in reading.metrics} == {
        "static"
    }
    return {m.name: m.value for m in reading.metrics}


def registers_of(evaluator: Referee, code: bytes) -> int:
    return int(values(subject(evaluator, f"alone {len(code)}", None, code))["built_registers"])


def test_a_build_is_read_with_its_launches(evaluator: Referee) -> None:
    code = cubin(8)
    registers = registers_of(evaluator, code)
    found = values(subject(evaluator, "traced", traced(registers), code))
    assert found["built_registers"] == registers and found["stack_bytes"] == found["local_accesses"] == 0
    assert not {"built_launches", "blocks", "threads"} & found.keys()  # which the trace has
    assert found["shared_bytes"] == 4096 and "configurations" not in found
    limits = [found[f"warps_by_{name}"] for name in ("registers", "shared_memory", "threads")]
    assert found["occupancy"] == min(limits) / 64


def test_of_several_builds_the_launched_one_is_told_by_its_registers(evaluator: Referee) -> None:
    small, spilling = cubin(8), cubin(64, "__launch_bounds__(1024, 2)")
    few, many = registers_of(evaluator, small), registers_of(evaluator, spilling)
    assert few < many
    for registers, spills in ((few, False), (many, True)):
        found = values(subject(evaluator, "both", traced(registers), small, spilling))
        assert (found["built_registers"], found["configurations"]) == (registers, 2)
        assert (found["local_accesses"] > 0) is spills is (found["stack_bytes"] > 0)


def test_without_a_trace_launches_are_unknown(evaluator: Referee) -> None:
    of = subject(evaluator, "untraced", None, cubin(8))
    assert "occupancy" not in values(of) and "unknown without a trace" in Cubins().read(of).how


def test_what_cannot_have_been_launched_has_no_occupancy(evaluator: Referee) -> None:
    found = values(subject(evaluator, "forged", traced(1, threads=1 << 40), cubin(8)))
    assert "built_registers" in found and "occupancy" not in found


def test_without_builds_it_says_so(evaluator: Referee) -> None:
    with pytest.raises(Unavailable, match="holds no machine code"):
        Cubins().read(subject(evaluator, "nothing", traced(32)))
    with pytest.raises(Unavailable, match="cuobjdump"):
        Cubins().read(subject(evaluator, "no cubin", traced(32), b"sums, but no machine code"))
    assert values(subject(evaluator, "one of two", traced(32), b"sums, but no machine code", cubin(8)))


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z7row_maxPKfPfi", "row_max"),
        ("_ZN4mine4sumsILi8EEEvPKfPf", "sums"),
        ("_ZN12_GLOBAL__N_13maxIfEEvPT_", "max"),
        ("_ZL4copyPf", "copy"),
        ("_Zebra", "_Zebra"),
        ("add_kernel_0d1d2", "add_kernel_0d1d2"),
    ],
)
def test_mangled_names_are_read(mangled: str, name: str) -> None:
    assert base_name(mangled) == name
