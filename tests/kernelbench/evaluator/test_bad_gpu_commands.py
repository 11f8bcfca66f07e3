"""Commands of which a GPU is asked that cannot be used end with one line, which has the fix."""

import re
from pathlib import Path

import pytest

from kernelwright.kernelbench.evaluator.timing import gpu
from kernelwright.profiling.gpu import nsight
from tests.helpers.gpu.evaluating import CANDIDATE, TASK, command, fake_gpu

pytestmark = pytest.mark.builds

ONE_LINE = re.compile(r"error: [^\n]+ — [^\n]+\n")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A task and a candidate."""
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "candidate.py").write_text(CANDIDATE)
    return str(tmp_path / "task.py"), str(tmp_path / "candidate.py")


@pytest.mark.parametrize("name", ["run", "evaluate", "profile", "doctor"])
def test_commands_say_it_in_one_line(
    name: str, files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"run": [files[0], "--out", str(tmp_path / "out")], "doctor": []}.get(name, list(files))
    with fake_gpu(tmp_path) as page:
        page.driver_version = 11040
        assert command(name, *given, "--target", "cuda:0") == 2
    said = capsys.readouterr().err
    assert ONE_LINE.fullmatch(said) and "the driver is too old" in said, said


def test_without_a_driver(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    if gpu.DEV.joinpath("nvidiactl").exists():
        pytest.skip("there is a driver here")
    assert command("evaluate", *files, "--target", "cuda:0") == 2
    said = capsys.readouterr().err
    assert ONE_LINE.fullmatch(said), said
    assert "libcuda.so.1 is not found, and there is no /dev/nvidia0 — install NVIDIA's driver" in said


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
