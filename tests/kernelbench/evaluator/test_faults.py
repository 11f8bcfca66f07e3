"""What the machine does wrong is nobody's verdict, is said in one line, and leaves nothing behind."""

import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kernelwright.kernelbench import machine_cache
from kernelwright.kernelbench.errors import InfrastructureError, StorageError
from kernelwright.kernelbench.evaluator import EAGER, Referee, faults
from kernelwright.kernelbench.evaluator.correctness import oracle_client
from kernelwright.kernelbench.evaluator.processes import scratch
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.machine import cache_folder, fingerprint, physical_threads
from kernelwright.kernelbench.records import Ceilings, Verdict
from tests.helpers.evaluator.trial import REFERENCE, Evaluate, candidate_of, task_of, variant

pytestmark = pytest.mark.builds

BROKEN = "import nowhere\n" + variant("Model", "Model")

FULL_DISK = """
import json, os, subprocess, sys
from pathlib import Path
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(folder)], check=True)
(folder / "tmp").mkdir()
os.environ["TMPDIR"] = str(folder / "tmp")
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of, variant
from kernelwright.kernelbench.errors import KernelwrightError
from kernelwright.kernelbench.evaluator import EAGER, Effort, Referee, Protocol
from kernelwright.kernelbench.evaluator.timing import target
target._MEASURED = target._MOST_MEASURED = 1
protocol = Protocol(effort=Effort(rounds=1, processes=1, most_processes=1, half_width=1.0), min_rounds=1)
honest = candidate_of(variant("Model", "Model"))
said = []
with Referee.start(cache=folder / "cache", protocol=protocol) as evaluator:
    evaluator.sessions.open(task_of(REFERENCE))
    for full in (True, False):
        filler = folder / "filler"
        if full:
            with filler.open("wb") as file:
                try:
                    while True:
                        file.write(bytes(1 << 16))
                        file.flush()
                except OSError:
                    pass
        else:
            filler.unlink()
        try:
            said.append(str(evaluator.evaluate(task_of(REFERENCE), honest, EAGER).verdict))
        except KernelwrightError as error:
            said.append(f"{type(error).__name__}: {error}")
print(json.dumps(said))
"""


@pytest.mark.slow
def test_a_full_disk_is_not_the_candidate_s_fault(tmp_path: Path) -> None:
    unshare = [shutil.which("unshare") or "", "--user", "--map-root-user", "--mount"]
    if not unshare[0] or subprocess.run([*unshare, "mount", "-t", "tmpfs", "t", str(tmp_path)]).returncode:
        pytest.skip("this machine does not permit a tmpfs in a mount namespace")
    script = [*unshare, sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    full, freed = json.loads(done.stdout)
    assert full.startswith("InfrastructureError: ") and "space" in full and "\n" not in full, full
    assert freed == "correct"


def test_a_build_that_failed_for_want_of_space_is_nobody_s(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate(BROKEN).verdict is Verdict.build_error
    monkeypatch.setattr(faults, "LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(InfrastructureError, match=r"no space is left in .* free some"):
        evaluate(BROKEN)


def test_a_build_that_leaves_too_much_is_refused_and_removed(evaluator: Referee) -> None:
    protocol = evaluator.sessions.protocol
    limits = evaluator.sessions.limits.model_copy(update={"builds_bytes": 4 << 20})
    leaves = "import os\nopen(os.environ['KERNELWRIGHT_CACHE'] + '/left', 'wb').write(bytes(8 << 20))\n"
    candidate = candidate_of(leaves + variant("Model", "Model"))
    with Referee.start(cache=evaluator.sessions.pool.cache, protocol=protocol, limits=limits) as strict:
        evaluation = strict.evaluate(task_of(REFERENCE), candidate, EAGER)
        assert evaluation.verdict is Verdict.build_error
        assert evaluation.reason == "its build left more than 4 MiB of files"
        assert not list(strict.sessions.pool.builds_of(candidate.sha256).iterdir())


def test_a_candidate_that_has_filled_the_disk_itself_is_judged(
    evaluator: Referee, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room again once its own builds are gone."""
    builds = evaluator.sessions.pool.builds_of(candidate_of(BROKEN).sha256)
    monkeypatch.setattr(faults, "space_left", lambda _: not (builds / "filler").exists())
    (builds / "filler").write_text("large")
    assert evaluate(BROKEN).verdict is Verdict.build_error
    assert not (builds / "filler").exists()


def test_no_more_files_are_not_the_candidate_s_fault(evaluator: Referee, evaluate: Evaluate) -> None:
    evaluate("x = 1")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 1, limit[1]))
        with pytest.raises(InfrastructureError, match=r"Too many open files.*ulimit -n"):
            evaluate(variant("Model", "Model"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert evaluate(variant("Model", "Model")).verdict is Verdict.correct
    assert not list(evaluator.sessions.pool._base.glob("builder-*"))


def test_what_is_no_fault_of_the_machine_s_stays_what_it_is() -> None:
    with pytest.raises(ConnectionResetError), faults.of_the_machine():
        raise ConnectionResetError(104, "reset")


def test_a_folder_without_space_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(StorageError, match=r"the cache folder .* MiB are free .* set KERNELWRIGHT_HOME"):
        Referee.start(cache=tmp_path)


@pytest.mark.parametrize("what", ["KERNELWRIGHT_HOME", "HOME"])
def test_a_folder_that_cannot_be_written_is_one_line(what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {name: value for name, value in os.environ.items() if name != "KERNELWRIGHT_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright", "doctor"],
        env=environment | {what: str(tmp_path / "file")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
    assert "set KERNELWRIGHT_HOME to a writable folder" in done.stderr


def test_without_a_temporary_folder_there_is_no_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", refuse)
    with pytest.raises(StorageError, match="set TMPDIR to a writable folder"):
        Referee.start(cache=tmp_path)


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("KERNELWRIGHT_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(StorageError, match="set KERNELWRIGHT_HOME"):
        cache_folder()


def old(folder: Path) -> Path:
    os.utime(folder, (time.time() - 3600,) * 2)
    return folder


def test_a_killed_judge_s_scratch_folder_is_swept_up_and_a_living_one_s_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = f"""
    import tempfile, time
    tempfile.tempdir = {str(tmp_path)!r}
    from kernelwright.kernelbench.evaluator.processes.scratch import ScratchFolder
    folder = ScratchFolder()
    (folder.path / "candidate-x").mkdir()
    print(folder.path, flush=True)
    time.sleep(100)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as judge:
        assert judge.stdout is not None
        left = old(Path(judge.stdout.readline().strip()))
        young = tmp_path / f"{scratch.PREFIX}1-young"
        young.mkdir()
        another = old(tmp_path)
        own = scratch.ScratchFolder()
        assert left.exists()  # its judge lives
        judge.kill()
        judge.wait()
        scratch.sweep(tmp_path)
    assert not left.exists()
    assert young.exists() and another.exists() and own.path.exists()
    scratch.sweep(tmp_path)
    old(own.path)
    scratch.sweep(tmp_path)
    assert own.path.exists()
    own.remove()
    assert not own.path.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("dear")
    old(elsewhere)
    (tmp_path / f"{scratch.PREFIX}1-link").symlink_to(elsewhere)
    scratch.sweep(tmp_path)
    assert (elsewhere / "file").read_text() == "dear"


def test_a_pool_leaves_no_scratch_folder(tmp_path: Path, evaluator: Referee) -> None:
    with WorkerPool(threads=1, cache=tmp_path, limits=evaluator.sessions.limits) as pool:
        base = pool._base
        assert base.exists()
    assert not base.exists()


def test_an_evaluator_without_its_own_loops_says_so_once(
    evaluator: Referee, caplog: pytest.LogCaptureFixture
) -> None:
    oracle_client._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "kernelwright"):
        for _ in range(2):
            oracle_client._warn_once("the evaluator's rows.cpp was not built")
    assert len(caplog.records) == 1


def test_sigterm_ends_an_evaluation_as_ctrl_c_does(tmp_path: Path) -> None:
    """As docker stop, Slurm and systemd send it."""
    (tmp_path / "task.py").write_text(REFERENCE)
    slow = "import time\ntime.sleep(60)\n" + variant("Model", "Model")
    (tmp_path / "slow.py").write_text(slow)
    (tmp_path / "tmp").mkdir()
    home, mark = tmp_path / "home", fingerprint(physical_threads())
    known = Ceilings(copy_bytes_s=1e10, cached_copy_bytes_s=1e11, fp32_flops_s=1e11)
    machine_cache.write(
        machine_cache.file_for(home, "ceilings", mark), known
    )  # so that they are not measured first
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "KERNELWRIGHT_HOME": str(home)}
    command = [sys.executable, "-m", "kernelwright", "evaluate", tmp_path / "task.py", tmp_path / "slow.py"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 200
        while not list((tmp_path / "tmp").glob(f"{scratch.PREFIX}*/builder-*/candidate.py")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        children = descendants(process.pid)
        assert children
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=30)
    assert process.returncode == 143
    assert out == "" and "terminated" in error and "Traceback" not in error
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not list((tmp_path / "tmp").iterdir())


def descendants(pid: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found += [child, *descendants(child)]
    return found
