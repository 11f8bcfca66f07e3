"""Control groups: limits on a worker's whole tree, and nothing left of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import EAGER, Referee
from kernelwright.kernelbench.evaluator.sandbox import cgroups
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE, Evaluate, candidate_of, task_of, variant

RETURN = "return torch.nn.functional.gelu(self.norm(x))"
# Each of the three stays below the limit of one process (2 GiB), together they do not.
HUNGRY = (
    """import mmap, os, signal
        for _ in range(2):
            ready, done = os.pipe()
            if os.fork() == 0:
                held = mmap.mmap(-1, 600 << 20)
                held[::4096] = bytes(len(held[::4096]))
                os.write(done, b"x")
                signal.pause()
            os.read(ready, 1)
        held = mmap.mmap(-1, 1400 << 20)
        held[::4096] = bytes(len(held[::4096]))
        """
    + RETURN
)


@pytest.fixture
def parents() -> cgroups.Parents:
    found = cgroups.parents()
    if isinstance(found, str):
        pytest.skip(f"no control groups here: {found}")
    return found


def left_behind(parents: cgroups.Parents) -> list[Path]:
    folders = {folder for parent in parents.folders.values() for folder in parent.glob("kernelwright-*")}
    return [folder for folder in folders if folder.name.startswith(f"kernelwright-{os.getpid()}-")]


@pytest.mark.slow
def test_a_tree_that_takes_too_much_memory_together_is_ended(
    parents: cgroups.Parents, evaluate: Evaluate
) -> None:
    evaluation = evaluate(variant(RETURN, HUNGRY))
    assert evaluation.verdict is Verdict.runtime_error
    assert "too much memory together" in evaluation.reason
    assert evaluate(variant("Model", "Model")).verdict is Verdict.correct


@pytest.mark.slow
def test_an_evaluator_leaves_no_group_behind(parents: cgroups.Parents, evaluator: Referee) -> None:
    with Referee.start(cache=evaluator.sessions.pool.cache, protocol=evaluator.sessions.protocol) as made:
        before = set(left_behind(parents))
        made.evaluate(task_of(REFERENCE), candidate_of("x = 1"), EAGER)
        mine = set(left_behind(parents)) - before
        assert mine  # the oracle's, at least
    assert not any(folder.exists() for folder in mine)


def test_a_reference_that_had_enough_memory_before_is_not_at_fault(
    parents: cgroups.Parents, evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the run goes on with --resume; the task is not given up."""
    session = evaluator.sessions.open(task_of(REFERENCE))
    os.kill(session.oracle._worker.pid, signal.SIGKILL)
    monkeypatch.setattr(cgroups.Group, "out_of_memory", True)
    with pytest.raises(InfrastructureError, match="ran out of memory"):
        session.oracle.audit()


def test_processes_are_limited(parents: cgroups.Parents) -> None:
    group = parents.make(1 << 30, 8)
    code = f"""
import os, time
for entrance in {group.entrances!r}:
    open(entrance, "w").write("0")
made = []
try:
    for _ in range(20):
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        made.append(child)
except OSError:
    print(len(made))
for child in made:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    finally:
        deadline = time.monotonic() + 5
        while not group.remove() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert int(done.stdout) == 7
    assert not any(folder.exists() for folder in group.folders.values())


def test_groups_of_killed_judges_are_swept(parents: cgroups.Parents) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    folder = parents.folders["pids"] / f"kernelwright-{dead.pid}-0"
    folder.mkdir()
    try:
        parents.sweep()
        assert folder.exists()  # it may just have been made by somebody whom this process cannot see
        cgroups._OLD_S, kept = 0.0, cgroups._OLD_S
        try:
            parents.sweep()
        finally:
            cgroups._OLD_S = kept
        assert not folder.exists()
    finally:
        if folder.exists():
            folder.rmdir()


def delegated(folder: Path, processes: list[int]) -> Path:
    """A folder as the kernel shows a group of version 2."""
    (folder / "cgroup.controllers").write_text("cpu memory pids\n")
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in processes))
    (folder / "cgroup.subtree_control").write_text("")
    return folder


def test_a_delegated_group_of_version_2_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = delegated(tmp_path, [os.getpid()])
    monkeypatch.setattr(cgroups, "_own_folder", lambda controller: None if controller else own)
    found = cgroups._version_2()
    assert found is not None and set(found.folders.values()) == {own}
    assert (own / "kernelwright-judge" / "cgroup.procs").read_text() == "0"
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_group_that_others_share_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = delegated(tmp_path, [os.getpid(), 1])
    monkeypatch.setattr(cgroups, "_own_folder", lambda controller: None if controller else own)
    with pytest.raises(OSError, match="other processes"):
        cgroups._version_2()
    assert (own / "cgroup.subtree_control").read_text() == ""
