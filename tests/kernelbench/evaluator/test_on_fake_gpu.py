"""The evaluator on cuda:0, whose driver is the tests' own: memory, clocks, faults, through the real cuda-bindings.

What runs is torch on the CPU; see tests/helpers/gpu.
"""

from collections.abc import Iterator

import pytest

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import EAGER, Limits, Measurement, Referee
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from tests.helpers.gpu.busy_tasks import BRIEF, candidate_of, task_of
from tests.helpers.gpu.evaluating import gpu_referee
from tests.helpers.gpu.fake_driver import OUT_OF_MEMORY, Page


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Referee, Page]]:
    folder = tmp_path_factory.mktemp("gpu")
    with gpu_referee(folder, folder / "cache", limits=Limits(call_s=3.0)) as made:
        yield made


@pytest.fixture
def page(gpu: tuple[Referee, Page]) -> Iterator[Page]:
    page = gpu[1]
    yield page
    for fault in page.faults:
        fault.error = 0
    page.sync_ns = page.teardown_ns = page.launch_ns = 0


@pytest.fixture
def evaluated(gpu: tuple[Referee, Page]) -> Iterator[object]:
    referee = gpu[0]

    def evaluate(candidate: Candidate, task: Task | None = None, how: Measurement = BRIEF) -> Evaluation:
        return referee.evaluate(task or task_of(), candidate, how)

    yield evaluate


def test_a_right_candidate_is_timed_by_both_clocks(evaluated, page: Page) -> None:  # type: ignore[no-untyped-def]
    found = evaluated(candidate_of())
    assert found.verdict is Verdict.correct, found.reason
    assert found.timing.device_us > 10 and found.timing.clocks_differ > 0
    assert found.target.device == "cuda:0" and page.used_bytes > 0


def test_a_wrong_candidate_is_found_out(evaluated) -> None:  # type: ignore[no-untyped-def]
    assert evaluated(candidate_of("x * self.scale")).verdict is Verdict.wrong_output


def test_a_lost_context_is_the_candidate_s_runtime_error(evaluated) -> None:  # type: ignore[no-untyped-def]
    found = evaluated(candidate_of(before="lose_context(700)"))
    assert found.verdict is Verdict.runtime_error and "an error" in found.reason, found.reason
    assert evaluated(candidate_of()).verdict is Verdict.correct


def test_a_kernel_that_never_ends_is_a_timeout_and_leaves_the_device_free(evaluated) -> None:  # type: ignore[no-untyped-def]
    found = evaluated(candidate_of(before="busy(1e15)"))
    assert found.verdict is Verdict.timeout, found.reason
    assert evaluated(candidate_of()).verdict is Verdict.correct


def test_kernels_that_outlive_their_block_are_cheating(evaluated) -> None:  # type: ignore[no-untyped-def]
    before = "busy(50_000); torch.cuda.synchronize = lambda *_: None"
    found = evaluated(candidate_of(before=before))
    assert found.verdict is Verdict.cheating and "still running" in found.reason, found.reason


def test_memory_of_a_process_that_is_being_torn_down_is_waited_for(evaluated, page: Page) -> None:  # type: ignore[no-untyped-def]
    page.teardown_ns = 500_000_000
    page.fail("cuMemCreate", OUT_OF_MEMORY, times=3)
    assert evaluated(candidate_of()).verdict is Verdict.correct


def test_a_full_device_is_said_in_one_line(evaluated, page: Page) -> None:  # type: ignore[no-untyped-def]
    page.fail("cuMemCreate", OUT_OF_MEMORY, times=-1)
    with pytest.raises(InfrastructureError, match="no memory on cuda:0"):
        evaluated(candidate_of(), task_of(21.0))


@pytest.mark.timed
@pytest.mark.parametrize("sync_us", [0, 500, 2000])
@pytest.mark.parametrize(("us", "ratio"), [(20, 1.0), (20, 2.0), (200, 1.2), (200, 10.0), (5000, 2.0)])
def test_the_speedup_is_the_ratio_of_what_kernels_take(
    evaluated,
    page: Page,
    sync_us: int,
    us: float,
    ratio: float,  # type: ignore[no-untyped-def]
) -> None:
    page.sync_ns = 1000 * sync_us
    found = evaluated(candidate_of("x + 1.0", f"busy({us})"), task_of(us * ratio), EAGER)
    assert found.verdict is Verdict.correct, found.reason
    assert found.speedup.eager.median == pytest.approx(ratio, rel=0.03)
