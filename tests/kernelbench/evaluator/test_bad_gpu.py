"""What keeps a GPU from being a target is said in one line with its fix.

Shown by faults of the tests' own driver (tests/helpers/gpu), or where there is none.
"""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import InfrastructureError, MissingPrerequisite
from kernelwright.kernelbench.evaluator import EAGER, Limits, session
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.timing import gpu
from kernelwright.kernelbench.evaluator.timing.target import describe_gpu, detect_target
from kernelwright.kernelbench.records import Candidate, Task
from kernelwright.profiling.gpu import nsight
from tests.helpers.gpu.evaluating import command, fake_gpu, gpu_referee
from tests.helpers.gpu.fake_driver import OUT_OF_MEMORY, Page
from tests.helpers.gpu.neighbour import neighbour

STUB, UNAVAILABLE, NO_DEVICE, MISMATCH, UNKNOWN = 34, 46, 100, 803, 999  # CUresult
EXCLUSIVE = 3  # CUcomputemode
TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""
CANDIDATE = TASK.replace("class Model(", "class ModelNew(")
ONE_LINE = re.compile(r"error: [^\n]+ — [^\n]+\n")


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


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A task and a candidate."""
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "candidate.py").write_text(CANDIDATE)
    return str(tmp_path / "task.py"), str(tmp_path / "candidate.py")


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


def test_an_index_beyond_the_last_gpu(made: tuple[WorkerPool, Page]) -> None:
    with pytest.raises(
        MissingPrerequisite, match=r"no target cuda:3: the driver has 1 GPU — use --target cuda:0"
    ):
        detect_target(made[0], "cuda:3")


def test_a_driver_that_does_not_answer_is_the_machine_s_fault(
    made: tuple[WorkerPool, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelwright.kernelbench.evaluator.timing.target._DESCRIBED_S", 0.0)
    with pytest.raises(InfrastructureError, match=r"the driver of cuda:0 does not answer.*nvidia-smi"):
        describe_gpu(made[0], "cuda:0")


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


@pytest.mark.builds
@pytest.mark.parametrize("name", ["run", "evaluate", "profile", "doctor"])
def test_commands_say_it_in_one_line(
    name: str, files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"run": [files[0], "--out", str(tmp_path / "out")], "doctor": []}.get(name, list(files))
    with fake_gpu(tmp_path) as page:
        old(page)
        assert command(name, *given, "--target", "cuda:0") == 2
    said = capsys.readouterr().err
    assert ONE_LINE.fullmatch(said) and "the driver is too old" in said, said


@pytest.mark.builds
def test_without_a_driver(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    if gpu.DEV.joinpath("nvidiactl").exists():
        pytest.skip("there is a driver here")
    assert command("evaluate", *files, "--target", "cuda:0") == 2
    said = capsys.readouterr().err
    assert ONE_LINE.fullmatch(said), said
    assert "libcuda.so.1 is not found, and there is no /dev/nvidia0 — install NVIDIA's driver" in said


@pytest.mark.builds
def test_without_cuda_bindings(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no_bindings.py").write_text("import sys\nsys.modules['cuda.bindings'] = None\n")
    with fake_gpu(tmp_path, modules=("fake_gpu", "no_bindings")):
        assert command("evaluate", *files, "--target", "cuda:0") == 2
    said = capsys.readouterr().err
    assert ONE_LINE.fullmatch(said) and "pip install 'cuda-bindings" in said, said


def test_doctor_says_that_counters_are_for_administrators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho 'Version 2025.3.0.0 (build 1)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    parameters = tmp_path / "params"
    monkeypatch.setattr(nsight, "_PARAMETERS", parameters)
    assert "2025.3.0.0" in nsight.NsightCompute().available()  # no file: no driver, or none that restricts
    parameters.write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n")
    with pytest.raises(nsight.Unavailable, match="NVreg_RestrictProfilingToAdminUsers=0"):
        nsight.NsightCompute().available()


FORBIDDEN = """\
#!/bin/sh
case "$1" in
--version) echo "Version 2025.3.0.0 (build 1)"; exit;;
--query-metrics) exit;;
esac
echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
exit 1
"""


@pytest.mark.builds
@pytest.mark.slow
def test_profile_says_who_may_count(
    files: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool = tmp_path / "cuda" / "bin" / "ncu"
    tool.parent.mkdir(parents=True)
    tool.write_text(FORBIDDEN)
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))  # which candidates may read
    with fake_gpu(tmp_path):
        assert command("profile", *files, "--target", "cuda:0") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the driver restricts counters to administrators" in said, said


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
    with (
        WorkerPool(threads=1, cache=tmp_path / "cache", limits=Limits()) as pool,
        pool.start("candidate", "tests.helpers.evaluator.surroundings:serve", "0" * 64) as worker,
    ):
        asked = {"names": [*values, "CUDA_INJECTION64_PATH"], "files": [str(ptxas), str(secret)]}
        answer = worker.ask(asked, 60)
        fenced = "landlock" in {layer.name for layer in pool.layers() if layer.on}
    assert answer["values"] == values
    assert answer["readable"] == ([str(ptxas)] if fenced else [str(ptxas), str(secret)])
