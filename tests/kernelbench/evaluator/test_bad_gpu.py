"""What keeps a GPU from being a target is said in one line with its fix.

Shown by faults of the tests' own driver (tests/helpers/gpu), or where there is none.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import InfrastructureError, MissingPrerequisite
from kernelwright.kernelbench.evaluator import EAGER, Limits, session
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.timing import gpu, target
from kernelwright.kernelbench.evaluator.timing.target import describe_gpu, detect_target
from kernelwright.kernelbench.records import Candidate, Task
from tests.helpers.gpu.evaluating import CANDIDATE, TASK, fake_gpu, gpu_referee
from tests.helpers.gpu.fake_driver import OUT_OF_MEMORY, Page
from tests.helpers.gpu.neighbour import neighbour

STUB, UNAVAILABLE, NO_DEVICE, MISMATCH, UNKNOWN = 34, 46, 100, 803, 999  # CUresult
EXCLUSIVE = 3  # CUcomputemode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def made(folder: Path) -> Iterator[tuple[WorkerPool, Page]]:
    with (
        fake_gpu(folder, memory_bytes=8 << 30) as page,
        WorkerPool(threads=1, cache=folder / "cache", limits=Limits(), device="cuda:0") as pool,
    ):
        yield pool, page


@pytest.fixture
def page(made: tuple[WorkerPool, Page]) -> Iterator[Page]:
    page = made[1]
    yield page
    page.driver_version, page.compute_mode = 13000, 0
    for fault in page.faults:
        fault.error = 0


def initializing(error: int) -> Callable[[Page], None]:
    return lambda page: page.fail("cuInit", error)


def old(page: Page) -> None:
    page.driver_version = 11040


def exclusive(page: Page) -> None:
    page.compute_mode = EXCLUSIVE


def held(page: Page) -> None:
    page.fail("cuDevicePrimaryCtxRetain", UNAVAILABLE)


def full(page: Page) -> None:
    page.fail("cuDevicePrimaryCtxRetain", OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("fault", "message", "fix"),
    [
        (old, "too old: it knows CUDA 11.4, torch is built for 12.8", "update the driver"),
        (initializing(NO_DEVICE), "the driver finds no GPU", "CUDA_VISIBLE_DEVICES"),
        (initializing(STUB), "the CUDA toolkit's stub", "LD_LIBRARY_PATH"),
        (initializing(MISMATCH), "of different drivers", "restart"),
        (exclusive, "lets one process in", "nvidia-smi -c DEFAULT"),
        (held, "held by another process", "end that process"),
        (full, "no memory left for a context", "end what fills it"),
    ],
    ids=["too old", "no device", "stub", "mismatch", "exclusive", "held", "full"],
)
def test_a_gpu_that_cannot_be_used(
    made: tuple[WorkerPool, Page], page: Page, fault: Callable[[Page], None], message: str, fix: str
) -> None:
    fault(page)
    with pytest.raises(MissingPrerequisite) as raised:
        detect_target(made[0], "cuda:0")
    assert message in raised.value.message and fix in raised.value.fix and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1, "no target cuda:3: this machine has 1 GPU — use --target cuda:0"),
        (None, "no target cuda:3: the driver has 0 GPUs, with CUDA_VISIBLE_DEVICES=3"),
    ],
    ids=["with NVML", "without"],
)
def test_an_index_beyond_the_last_gpu(
    count: int | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "gpu_count", lambda: count)
    with (
        fake_gpu(tmp_path),
        WorkerPool(threads=1, cache=tmp_path / "cache", limits=Limits(), device="cuda:3") as pool,
        pytest.raises(MissingPrerequisite, match=message),
    ):
        detect_target(pool, "cuda:3")


def test_a_driver_that_does_not_answer_is_the_machine_s_fault(
    made: tuple[WorkerPool, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelwright.kernelbench.evaluator.timing.target._DESCRIBED_S", 0.0)
    with pytest.raises(InfrastructureError, match=r"the driver of cuda:0 does not answer.*nvidia-smi"):
        describe_gpu(made[0])


def test_a_failure_that_the_driver_does_not_explain_is_looked_for_in_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidiactl", "nvidia3"):
        (tmp_path / name).touch()
    monkeypatch.setattr(gpu, "DEV", tmp_path)
    (problem,) = gpu._nodes()
    assert problem[0].endswith("nvidia-uvm is missing") and "nvidia-modprobe" in problem[1]
    (tmp_path / "nvidia-uvm").touch()
    assert not list(gpu._nodes())


def test_memory_that_others_use_is_said(
    made: tuple[WorkerPool, Page], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = made[0]
    with neighbour(folder, held_bytes=6 << 30), caplog.at_level(logging.WARNING, "kernelwright"):
        assert detect_target(pool, "cuda:0").device == "cuda:0"
    assert "cuda:0: other processes use 5 of its 8 GiB" in caplog.text
    caplog.clear()
    detect_target(pool, "cuda:0")
    assert not caplog.text


@pytest.mark.builds
def test_another_process_s_kernels_are_nobody_s_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_REST_S", 0.5)
    task = Task(id="test:relu", level=1, source=TASK)
    candidate = Candidate(source=CANDIDATE, language="torch", author="test")
    with gpu_referee(tmp_path, tmp_path / "cache", limits=Limits(call_s=1.0)) as (referee, _):
        referee.sessions.open(task)
        with (
            neighbour(tmp_path, busy=True),
            pytest.raises(InfrastructureError, match="another process's kernels are running on cuda:0 — end"),
        ):
            referee.evaluate(task, candidate, EAGER)


def test_workers_have_what_images_set_for_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    ptxas, secret = tools / "ptxas", tmp_path / "secret"
    ptxas.touch()
    secret.touch()
    values = {
        "CC": "gcc",
        "CUDA_PATH": str(tools),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TRITON_LIBCUDA_PATH": str(tools),
        "TRITON_PTXAS_PATH": str(ptxas),
    }
    for name, value in {**values, "CUDA_INJECTION64_PATH": str(ptxas)}.items():
        monkeypatch.setenv(name, value)
    asked = {"do": "look", "names": [*values, "CUDA_INJECTION64_PATH"], "files": [str(ptxas), str(secret)]}
    entry = "tests.helpers.evaluator.surroundings"
    with WorkerPool(threads=1, cache=tmp_path / "cache", limits=Limits()) as pool:
        pool.import_first([entry])  # from a folder that the sandbox hides
        with pool.start("candidate", f"{entry}:serve", "0" * 64) as worker:
            answer = worker.ask(asked, 60)
        fenced = "landlock" in {layer.name for layer in pool.layers() if layer.on}
    assert answer["values"] == values
    assert answer["readable"] == ([str(ptxas)] if fenced else [str(ptxas), str(secret)])
