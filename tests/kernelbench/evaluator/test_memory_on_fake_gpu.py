"""Memory of an evaluation on cuda:0, whose driver is the tests' own: what fits, who sees what, who is blamed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import Limits, Measurement, Referee
from kernelwright.kernelbench.evaluator.memory import budget
from kernelwright.kernelbench.evaluator.protocol import Effort, Protocol
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict
from tests.helpers.gpu.evaluating import gpu_referee
from tests.helpers.gpu.fake_driver import OUT_OF_MEMORY, Page

SHORT = Protocol(max_calls=1, min_rounds=1, families=("task", "needle", "perturbed"))  # 16 calls on a GPU
BRIEF = Measurement(("eager",), Effort(rounds=1, processes=1, most_processes=1, half_width=1.0))
REFERENCE = """
import torch
from torch import nn
from tests.helpers.gpu.fake_torch import busy

class Model(nn.Module):
    def forward(self, x):
        busy(20)
        return torch.relu(x * 2)

def get_inputs():
    return [torch.randn({rows}, 256)]

def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
from torch import nn
from tests.helpers.gpu.fake_torch import busy, outside

class ModelNew(nn.Module):
    def forward(self, x):
        {body}
"""
MIB = 1 << 20


def task_of(rows: int = 64) -> Task:
    return Task(id=f"test:{rows}", level=1, source=REFERENCE.format(rows=rows))


def candidate_of(*body: str) -> Candidate:
    source = CANDIDATE.format(body="\n        ".join(body))
    return Candidate(source=source, language="torch", author="test")


RIGHT = candidate_of("return torch.relu(x * 2)")
ELSEWHERE = candidate_of("with outside():", "    y = torch.relu(x * 2)", "return y")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Referee, Page]]:
    folder = tmp_path_factory.mktemp("gpu")
    with gpu_referee(folder, folder / "cache", limits=Limits(call_s=3.0), protocol=SHORT) as made:
        yield made


@pytest.fixture
def page(gpu: tuple[Referee, Page]) -> Iterator[Page]:
    page = gpu[1]
    yield page
    for fault in page.faults:
        fault.error = 0
    page.teardown_ns = 0


def evaluate(gpu: tuple[Referee, Page], candidate: Candidate, rows: int = 64) -> Evaluation:
    return gpu[0].evaluate(task_of(rows), candidate, BRIEF)


@pytest.mark.slow
def test_an_honest_candidate_s_outputs_are_found_in_its_heap(gpu: tuple[Referee, Page]) -> None:
    found = evaluate(gpu, RIGHT)
    assert found.verdict is Verdict.correct, found.reason


@pytest.mark.slow
def test_outputs_from_elsewhere_are_copied_to_memory_that_is_lent_then(gpu: tuple[Referee, Page]) -> None:
    evaluate(gpu, RIGHT)
    before = gpu[1].used_bytes
    found = evaluate(gpu, ELSEWHERE)
    assert found.verdict is Verdict.correct, found.reason
    assert gpu[1].used_bytes > before


@pytest.mark.slow
def test_a_candidate_for_whose_copies_there_is_no_memory_is_told_what_to_do(
    gpu: tuple[Referee, Page], page: Page
) -> None:
    evaluate(gpu, RIGHT)  # the master, the window and eager's heap are there
    page.fail("cuMemCreate", OUT_OF_MEMORY, after=2, times=-1)  # builder's and candidate's heaps are made
    found = evaluate(gpu, ELSEWHERE)
    assert found.verdict is Verdict.runtime_error and "let torch allocate" in found.reason, found.reason


def test_a_candidate_that_writes_to_the_window_is_refused(gpu: tuple[Referee, Page]) -> None:
    found = evaluate(gpu, candidate_of("y = torch.relu(x * 2)", "x[3, 5] += 1", "return y"))
    assert found.verdict is Verdict.wrong_output and "changes its inputs" in found.reason, found.reason
    assert evaluate(gpu, RIGHT).verdict is Verdict.correct  # nothing of that is left


@pytest.mark.slow
def test_a_candidate_that_writes_to_slots_it_was_not_given_gains_nothing(gpu: tuple[Referee, Page]) -> None:
    body = (
        "import ctypes",
        "y = torch.relu(x * 2)",
        "for off in range(-1, 2, 2):",  # the slots beside its own, as far as they are mapped
        "    with open('/proc/self/maps') as f: maps = [l.split()[0].split('-') for l in f if 'device' in l]",
        "    at = x.data_ptr() + off * 4096",
        "    if any(int(a, 16) <= at < int(b, 16) - 4 for a, b in maps):",
        "        ctypes.c_int32.from_address(at).value = 1",
        "return y",
    )
    found = evaluate(gpu, candidate_of(*body))
    assert found.verdict in (Verdict.correct, Verdict.wrong_output), found.reason
    assert evaluate(gpu, RIGHT).verdict is Verdict.correct


def test_inputs_that_eager_gets_are_not_there_for_a_candidate(gpu: tuple[Referee, Page]) -> None:
    """One that answers from what lies in its window before it is asked is wrong: that is from an old block."""
    body = (
        "import atexit",
        "stale = self.__dict__.setdefault('stale', {})",
        "y = torch.relu(stale.get(x.data_ptr(), x) * 2)",
        "stale[x.data_ptr()] = x.clone()",
        "return y",
    )
    found = evaluate(gpu, candidate_of(*body))
    assert found.verdict is not Verdict.correct, found.reason


def test_kernels_that_outlive_their_block_are_found(gpu: tuple[Referee, Page]) -> None:
    body = ("torch.cuda.synchronize = lambda *_: None", "busy(20e6)", "return torch.relu(x * 2)")
    found = evaluate(gpu, candidate_of(*body))
    assert found.verdict is Verdict.cheating and "still running" in found.reason, found.reason


@pytest.mark.slow
def test_a_full_device_is_the_machine_s_fault_while_a_worker_is_made(
    gpu: tuple[Referee, Page], page: Page
) -> None:
    evaluate(gpu, RIGHT)
    page.fail("cuMemCreate", OUT_OF_MEMORY, times=-1)
    with pytest.raises(InfrastructureError, match="no memory on cuda:0") as raised:
        evaluate(gpu, RIGHT)
    assert "--set" in str(raised.value.fix)


def test_a_candidate_that_runs_out_of_memory_is_at_fault_itself(gpu: tuple[Referee, Page]) -> None:
    raised = (
        "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 90.00 GiB. "
        "Including non-PyTorch memory, this process has much.')"
    )
    found = evaluate(gpu, candidate_of(raised))
    assert found.verdict is Verdict.runtime_error, found.reason
    assert "90.00 GiB" in found.reason and "non-PyTorch" not in found.reason


@pytest.mark.slow
def test_large_calls_fit_that_did_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """48 MiB in and out on a device of 640 MiB: two copies of a slot, and an output for each worker."""
    monkeypatch.setattr(budget, "PROCESS_BYTES", 0)
    monkeypatch.setattr(budget, "_FIXED_BYTES", 8 * MIB)
    monkeypatch.setattr(budget, "_HEAP_BYTES", 32 * MIB)
    size, device = 48 * MIB, 640 * MIB
    # Each of two workers had two slots of its own, 1.25 times two outputs, and two more from elsewhere.
    assert 2 * (2 + 2.5 + 2) * size + 2 * (256 << 20) > device
    task = Task(id="test:large", level=1, source=REFERENCE.format(rows=size // 1024).replace("x * 2", "x"))
    with gpu_referee(tmp_path, tmp_path / "cache", memory_bytes=device, protocol=SHORT) as (referee, page):
        session = referee.sessions.open(task)
        assert (session.calls, session.most_calls, session.one_process) == (1, 1, True)
        assert isinstance(session.budget, budget.DeviceBudget) and session.budget.fits
        found = referee.evaluate(task, candidate_of("return torch.relu(x)"), BRIEF)
        assert found.verdict is Verdict.correct, found.reason
        assert 4 * size < page.used_bytes < device
