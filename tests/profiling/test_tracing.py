"""Traces of a GPU with the fields that Kineto writes, constructed; and a real one of a CPU, through the sandbox."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.records import Candidate, Task, Verdict
from kernelwright.profiling.gpu import under_tool
from kernelwright.profiling.gpu.tracing import Trace, events, metrics_of
from kernelwright.profiling.records import Profile
from kernelwright.profiling.rung import Subject
from tests.helpers.profiling.evaluated import EXPONENTIALS

OWN = "void row_max<float, 4>(float const*, float*, int)"
LIBRARY = "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel>(int, F, D)"


def kernel(name: str, start: float, duration: float, **arguments: object) -> dict[str, object]:
    """As libkineto's CuptiActivity writes it."""
    given = {
        "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 4732,
        "registers per thread": 40, "shared memory": 1024, "blocks per SM": 6.060606, "warps per SM": 48.484848,
        "grid": [800, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 75,
        "graph id": 0, "graph node id": 0,
    }  # fmt: skip
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": duration,
        "args": given | arguments,
    }


COPY = {
    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "pid": 0, "tid": 7,
    "ts": 1040.0, "dur": 10.0,
    "args": {"device": 0, "context": 1, "stream": 7, "correlation": 5135, "bytes": 8388608,
             "memory bandwidth (GB/s)": 800.5},
}  # fmt: skip
ELSEWHERE = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::exp",
        "pid": 1,
        "tid": 1,
        "ts": 900.0,
        "dur": 500.0,
        "args": {},
    },
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    {"ph": "s", "id": 5133, "pid": 1, "tid": 1, "ts": 900.0, "cat": "ac2g", "name": "ac2g"},
]
CALL = [
    kernel(LIBRARY, 1000.0, 20.0, grid=[100, 2, 1]),
    kernel(OWN, 1025.5, 4.5, **{"est. achieved occupancy %": 50}),
    kernel(OWN, 1030.0, 13.5, block=[128, 2, 1], **{"registers per thread": 64}),
    COPY,
]


def trace(*entries: dict[str, object]) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": list(entries)})


def test_a_call_is_its_launches_its_time_and_its_gaps() -> None:
    found = events(trace(*reversed(CALL)))
    metrics = tuple(metrics_of(found, frozenset({"row_max"})))
    profile = Profile(metrics=metrics, bottleneck="unknown", speed_of_light=None)
    assert profile.value("launches") == 3 and profile.value("own_launches") == 2
    assert profile.value("gpu_time") == pytest.approx(
        20 + 4.5 + 20
    )  # the copy begins 3.5 us before a kernel ends
    assert profile.value("gpu_gaps") == pytest.approx(5.5)
    assert profile.value("copy_time") == pytest.approx(COPY["dur"])  # type: ignore[arg-type]
    assert profile.value("own_share") == pytest.approx(18 / 48)
    assert profile.kernels == ("vectorized_elementwise_kernel", "row_max")
    of = {m.name: m.value for m in metrics if m.kernel == "row_max"}
    assert of == pytest.approx(
        {
            "traced_time": 18.0,
            "traced_share": 18 / 48,
            "traced_launches": 2,
            "grid_blocks": 800,
            "block_threads": 256,
            "registers": 64,  # of the longest launch
            "shared_memory": 1024,
            "blocks_per_sm": 6.060606,
            "estimated_occupancy": (0.5 * 4.5 + 0.75 * 13.5) / 18,
        }
    )
    assert profile.value("grid_blocks", "vectorized_elementwise_kernel") == 200
    assert {m.provenance for m in metrics} == {"cupti"}


def test_kernels_side_by_side_fill_each_others_gaps() -> None:
    found = events(trace(kernel(OWN, 0.0, 100.0), kernel(LIBRARY, 10.0, 20.0), kernel(OWN, 90.0, 20.0)))
    values = {m.name: m.value for m in metrics_of(found, frozenset()) if not m.kernel}
    assert (values["gpu_time"], values["gpu_gaps"]) == (110.0, 0.0)


def test_what_kineto_does_not_know_is_left_out() -> None:
    unknown = {"blocks per SM": "inf", "warps per SM": "inf", "est. achieved occupancy %": -100}
    unknown["shared memory"] = 10**400
    found = events(trace(kernel(OWN, 0.0, 1.0, **unknown)))
    names = {m.name for m in metrics_of(found, frozenset()) if m.kernel}
    assert "registers" in names and not names & {"blocks_per_sm", "estimated_occupancy", "shared_memory"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (trace(*ELSEWHERE), "CUPTI recorded nothing on the GPU"),
        ("", "invalid GPU trace"),
        ("{}", "invalid GPU trace"),
        (trace(kernel(OWN, 0.0, -1.0)), "invalid GPU trace"),
        (trace(kernel(OWN, 0.0, float("inf"))), "invalid GPU trace"),
        (trace(kernel(OWN, 0.0, 1.0, grid="everywhere")), "invalid GPU trace"),
        (trace(kernel(OWN, 0.0, 1e308), kernel(OWN, 1.0, 1e308)), "invalid GPU trace"),  # together infinite
        (trace(kernel(OWN, -1e308, 1.0), kernel(OWN, 1e308, 1.0)), "invalid GPU trace"),
        (trace(kernel(OWN, 0.0, 1.0, grid=[1e200, 1e200, 1])), "invalid GPU trace"),
        (trace(kernel(OWN, 0.0, 10**400)), "invalid GPU trace"),
    ],
)
def test_what_is_no_trace_of_a_gpu_is_said(text: str, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        events(text)


def test_other_events_may_have_other_fields() -> None:
    assert len(events(trace(*ELSEWHERE, *CALL))) == 4


@pytest.fixture(scope="module")
def evaluator(home: Path) -> Iterator[Referee]:
    with Referee.start(cache=home) as made:
        yield made


@pytest.fixture(scope="module")
def subject(evaluator: Referee) -> Subject:
    """As of a correct candidate, on a CPU."""
    source = EXPONENTIALS.replace("Model(", "ModelNew(")
    task = Task(id="file:exp", level=1, source=EXPONENTIALS)
    candidate = Candidate(source=source, language=language_of(source), author="test")
    evaluation = evaluator.rejected(task, candidate, "").model_copy(update={"verdict": Verdict.correct})
    return Subject(evaluator, task, candidate, evaluation)


@pytest.mark.slow
def test_a_real_trace_of_a_cpu_holds_nothing_of_a_gpu(subject: Subject) -> None:
    with pytest.raises(Unavailable, match="only for candidates on a GPU"):
        Trace().read(subject)
    session = subject.evaluator.sessions.open(subject.task)
    ran = under_tool.run(session, subject.candidate, "traced", (), 120.0)
    assert ran.status == 0, ran.log
    assert json.loads(ran.output) == {"traceEvents": []}


def test_a_candidate_that_fails_says_with_what(subject: Subject) -> None:
    broken = subject.candidate.model_copy(
        update={"source": subject.candidate.source.replace("exp", "nothing")}
    )
    session = subject.evaluator.sessions.open(subject.task)
    ran = under_tool.run(session, broken, "traced", (), 120.0)
    assert ran.status != 0 and "nothing" in under_tool.last_line(ran.log)
