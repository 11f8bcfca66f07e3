"""Profilers of a search on cuda:0: which are asked, of what, how often, and what becomes of those that fail.

The driver is the tests' own (tests/helpers/gpu), and so are the profilers' readings: ncu is a script with a table
that was written by hand, the trace an object that counts how often it is asked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelwright.agent.profiled import ProfilingPool
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator import Limits, Measurement, Referee
from kernelwright.kernelbench.evaluator.protocol import Effort
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from kernelwright.profiling import ladder
from kernelwright.profiling.catalogue import metric
from kernelwright.profiling.records import Profile
from kernelwright.profiling.rung import Reading, Subject
from tests.helpers.gpu.evaluating import gpu_referee

pytestmark = pytest.mark.slow

BRIEF = Measurement(("eager",), Effort(rounds=1, processes=1, most_processes=1, half_width=1.0))
REFERENCE = """
import torch
from torch import nn
from tests.helpers.gpu.fake_torch import busy

class Model(nn.Module):
    def forward(self, x):
        busy({us})
        return torch.relu(x)

def get_inputs():
    return [torch.randn(32, 64)]

def get_init_inputs():
    return []
"""
KERNEL = '\nCUDA = "__global__ void softmax_kernel(float* x)"\n'
NCU = """\
#!/bin/sh
case "$1" in
--version) echo "Version 2025.1.1.0 (build 1)"; exit;;
--query-metrics) echo "dram__bytes_read"; echo "gpu__time_duration"; exit;;
esac
while [ "$1" != "--log-file" ]; do shift; done
cat "$0.table" > "$2"
"""
TABLE = """\
"ID","Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum"
"","","byte","ns"
"0","softmax_kernel(float *)","1,048,576","3,000"
"""
NO_PERMISSION = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"


@dataclass
class Counted:
    """A trace that reads two launches, except of a candidate that says `unprofilable`."""

    name: str = "cupti"
    asked: int = 0

    def available(self) -> str:
        return ""

    def read(self, subject: Subject) -> Reading:
        self.asked += 1
        if "unprofilable" in subject.candidate.source:
            raise Unavailable("the profiled call took more than 60 s; use smaller sizes")
        return Reading((metric("launches", 2), metric("gpu_time", 10.0)), "2 launches")


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script, whose table a test may replace."""
    folder = tmp_path_factory.mktemp("cuda") / "bin"
    folder.mkdir()
    (folder / "ncu").write_text(NCU)
    (folder / "ncu").chmod(0o755)
    return folder / "ncu"


@pytest.fixture(scope="module")
def referee(tool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    folder = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tool.parent), prepend=":")
        patch.setenv("CUDA_HOME", str(tool.parent.parent))  # which candidates may read
        options = {"limits": Limits(call_s=3.0), "without": ("distinct_uid",)}
        with gpu_referee(folder, folder / "cache", **options) as (made, _):
            yield made


@pytest.fixture
def trace(tool: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    tool.with_name("ncu.table").write_text(TABLE)
    made = Counted()
    monkeypatch.setattr(ladder, "ON_GPU", (made,))
    return made


def candidate_of(more: str = "") -> Candidate:
    source = REFERENCE.format(us=10).replace("Model(", "ModelNew(") + KERNEL + more
    return Candidate(source=source, language="torch", author="test")


TASK = Task(id="test:relu", level=1, source=REFERENCE.format(us=20))


def evaluated(pool: ProfilingPool, candidate: Candidate) -> Evaluation:
    found = pool.evaluate(TASK, candidate, BRIEF)
    assert found.verdict is Verdict.correct, found.reason
    return found


def outcomes(profile: Profile | None) -> dict[str, bool]:
    assert profile is not None
    return {rung.name: rung.on for rung in profile.rungs}


def test_each_candidate_is_traced_and_what_is_advised_on_is_counted_once(
    referee: Referee, trace: Counted, tool: Path
) -> None:
    with ProfilingPool(referee, slots=1, profilers="all") as pool:
        candidate = candidate_of()
        evaluation = evaluated(pool, candidate)
        quick = pool.profile(TASK, candidate, evaluation)
        assert outcomes(quick) == {"roofline": True, "cupti": True}
        closely = pool.profile(TASK, candidate, evaluation, quick, closely=True)
        assert outcomes(closely) == {"roofline": True, "cupti": True, "ncu": True}
        assert closely is not None and trace.asked == 1
        assert closely.value("launches") == 2 and closely.value("dram_read", "softmax_kernel") == 1048576
        assert closely.rungs[-1].seconds > 0 and closely.seconds >= closely.rungs[-1].seconds
        tool.with_name("ncu.table").unlink()  # were it asked again, it would find nothing
        assert pool.profile(TASK, candidate, evaluation, closely, closely=True) == closely
        again = pool.profile(TASK, candidate, evaluation.model_copy(update={"reason": "measured again"}))
        assert again is not None and again.value("dram_read", "softmax_kernel") == 1048576
        assert trace.asked == 1 and again.seconds == 0  # which the first profile has taken


def test_a_profiler_that_fails_leaves_the_others_alone(referee: Referee, trace: Counted) -> None:
    with ProfilingPool(referee, slots=1, profilers="all") as pool:
        candidate = candidate_of("\n# unprofilable\n")
        found = pool.profile(TASK, candidate, evaluated(pool, candidate), closely=True)
        assert outcomes(found) == {"roofline": True, "cupti": False, "ncu": True}
        assert found is not None and "use smaller sizes" in found.rungs[1].why and not found.rungs[1].for_all


def test_what_no_candidate_is_allowed_is_asked_for_once(referee: Referee, trace: Counted, tool: Path) -> None:
    tool.with_name("ncu.table").write_text(NO_PERMISSION)
    with ProfilingPool(referee, slots=1, profilers="all") as pool:
        first, second = candidate_of(), candidate_of("\n# another\n")
        found = pool.profile(TASK, first, evaluated(pool, first), closely=True)
        assert found is not None and found.rungs[-1].for_all and found.rungs[-1].seconds > 0
        assert "NVreg_RestrictProfilingToAdminUsers=0" in found.rungs[-1].why
        tool.with_name("ncu.table").write_text(TABLE)
        other = pool.profile(TASK, second, evaluated(pool, second), closely=True)
        assert outcomes(other) == {"roofline": True, "cupti": True, "ncu": False}
        assert other is not None and other.rungs[-1].seconds == 0
    with ProfilingPool(referee, slots=1, profilers="all") as later:  # of a run that goes on, with permission
        assert outcomes(later.profile(TASK, second, evaluated(later, second), other, closely=True))["ncu"]


@pytest.mark.parametrize(("profilers", "asked"), [("none", []), ("quick", ["cupti"])])
def test_profilers_that_are_not_wanted_are_not_asked(
    profilers: str, asked: list[str], referee: Referee, trace: Counted
) -> None:
    with ProfilingPool(referee, slots=1, profilers=profilers) as pool:  # type: ignore[arg-type]
        candidate = candidate_of()
        found = pool.profile(TASK, candidate, evaluated(pool, candidate), closely=True)
        assert list(outcomes(found)) == ["roofline", *asked]
