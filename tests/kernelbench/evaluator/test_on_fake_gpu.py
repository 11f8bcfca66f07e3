"""The evaluator on cuda:0, whose driver is the tests' own: memory, clocks, faults, through the real cuda-bindings.

What runs is torch on the CPU; see tests/helpers/gpu.
"""

import time
from collections.abc import Iterator
from typing import Protocol

import pytest

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import EFFORTS, Limits, Measurement, Referee
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from tests.helpers.gpu.busy_tasks import BRIEF, candidate_of, copying, task_of
from tests.helpers.gpu.evaluating import gpu_referee
from tests.helpers.gpu.fake_driver import OUT_OF_MEMORY, Page


class Evaluated(Protocol):
    def __call__(
        self, candidate: Candidate, task: Task | None = None, how: Measurement = BRIEF
    ) -> Evaluation: ...


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Referee, Page]]:
    folder = tmp_path_factory.mktemp("gpu")
    with gpu_referee(folder, folder / "cache", limits=Limits(build_s=10.0, call_s=2.0)) as made:
        yield made


@pytest.fixture
def page(gpu: tuple[Referee, Page]) -> Iterator[Page]:
    page = gpu[1]
    yield page
    for fault in page.faults:
        fault.error = 0
    page.sync_ns = page.teardown_ns = page.launch_ns = page.throttle_reasons = page.nvml_error = 0
    page.sm_mhz = 1980


@pytest.fixture
def evaluated(gpu: tuple[Referee, Page]) -> Evaluated:
    referee = gpu[0]

    def evaluate(candidate: Candidate, task: Task | None = None, how: Measurement = BRIEF) -> Evaluation:
        return referee.evaluate(task or task_of(), candidate, how)

    return evaluate


def test_a_right_candidate_is_timed_by_both_clocks(evaluated: Evaluated, page: Page) -> None:
    found = evaluated(candidate_of())
    assert found.verdict is Verdict.correct, found.reason
    assert found.timing.device_us > 10 and found.timing.clocks_differ > 0
    assert found.target.device == "cuda:0" and page.used_bytes > 0


@pytest.mark.slow
def test_clocks_are_read_while_it_is_timed(evaluated: Evaluated, page: Page) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    page.sm_mhz, page.throttle_reasons = 1410, 0x4
    seen = evaluated(candidate_of()).timing.clocks
    assert seen is not None
    assert (seen.sm_mhz_low, seen.sm_mhz_high, seen.throttled) == (1410, 1410, ("power cap",))


@pytest.mark.slow
def test_who_may_not_read_the_clocks_is_timed_without(evaluated: Evaluated, page: Page) -> None:
    page.nvml_error = 4  # NVML_ERROR_NO_PERMISSION
    found = evaluated(candidate_of())
    assert found.verdict is Verdict.correct and found.timing.clocks is None


def test_a_wrong_candidate_is_found_out(evaluated: Evaluated) -> None:
    assert evaluated(candidate_of("x * self.scale")).verdict is Verdict.wrong_output


@pytest.mark.slow
def test_a_lost_context_is_the_candidate_s_runtime_error(evaluated: Evaluated) -> None:
    found = evaluated(candidate_of(before="lose_context(700)"))
    assert found.verdict is Verdict.runtime_error and "an error" in found.reason, found.reason
    assert evaluated(candidate_of()).verdict is Verdict.correct


@pytest.mark.slow
def test_a_kernel_that_never_ends_is_a_timeout_and_leaves_the_device_free(evaluated: Evaluated) -> None:
    found = evaluated(candidate_of(before="busy(1e15)"))
    assert found.verdict is Verdict.timeout, found.reason
    assert evaluated(candidate_of()).verdict is Verdict.correct


def test_work_after_the_answer_counts(evaluated: Evaluated) -> None:
    before = "busy(500); torch.cuda.synchronize = lambda *_: None"
    found = evaluated(candidate_of(before=before))
    assert found.verdict is Verdict.correct and found.timing.candidate_us.median > 450, found.reason


@pytest.mark.slow
def test_kernels_that_outlive_their_block_are_cheating(evaluated: Evaluated) -> None:
    before = "busy(1e15); torch.cuda.synchronize = lambda *_: None"
    found = evaluated(candidate_of(before=before))
    assert found.verdict is Verdict.cheating and "still running" in found.reason, found.reason


def test_memory_of_a_process_that_is_being_torn_down_is_waited_for(evaluated: Evaluated, page: Page) -> None:
    page.teardown_ns = 500_000_000
    page.fail("cuMemCreate", OUT_OF_MEMORY, times=3)
    assert evaluated(candidate_of()).verdict is Verdict.correct


@pytest.mark.slow
def test_a_full_device_is_said_in_one_line(evaluated: Evaluated, page: Page) -> None:
    page.fail("cuMemCreate", OUT_OF_MEMORY, times=-1)
    with pytest.raises(InfrastructureError, match="no memory on cuda:0"):
        evaluated(candidate_of(), task_of(21.0))


QUICK = Measurement(("eager",), EFFORTS["quick"])
POINTS = [  # of a kernel in us, the ratio, and what waiting for the device costs in us
    (50, 1.0, 0),
    (200, 10.0, 2000),
    pytest.param(200, 1.2, 0, marks=pytest.mark.slow),
    pytest.param(5000, 2.0, 2000, marks=pytest.mark.slow),
]


def spread_of_a_loop() -> float:
    """Return the mean over the least of the times of the same work, which is 1 where nothing disturbs it."""
    times = []
    for _ in range(200):
        began = time.perf_counter()
        sum(range(50_000))
        times.append(time.perf_counter() - began)
    return sum(times) / len(times) / min(times)


@pytest.mark.timed
@pytest.mark.parametrize(("us", "ratio", "sync_us"), POINTS)
def test_the_speedup_is_the_ratio_of_what_kernels_take(
    evaluated: Evaluated, page: Page, us: float, ratio: float, sync_us: int
) -> None:
    """All points of a wider grid: python -m tests.helpers.gpu.clock.

    The fake device's time is this machine's, which others use, too: a bias shows every time, a disturbance
    does not. What is off counts, unless loops of the same work, which the referee has no part in, differ;
    four that are far off count in any case.
    """
    page.sync_ns = 1000 * sync_us
    task, candidate = copying(us * ratio, us)
    off: list[str] = []
    far = 0
    for _ in range(4):
        before = spread_of_a_loop()
        found = evaluated(candidate, task, QUICK)
        eager = found.speedup.eager if found.speedup is not None else None
        if eager is not None and eager.median == pytest.approx(ratio, rel=0.01 if ratio == 1.0 else 0.03):
            return
        far += eager is None or abs(eager.median / ratio - 1) > 0.15
        if max(before, spread_of_a_loop()) < 1.05:
            off.append(f"{found.reason}: {eager}")
    assert not off and far < 4, (off, far)
    pytest.skip("this machine is too busy for it")
