"""Landlock: what lies beneath the named folders stays open, everything else is shut, for children too."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.kernelbench.evaluator.sandbox import files, landlock
from tests.helpers.evaluator.trial import in_child

pytestmark = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")


SYSTEM = [Path("/usr"), Path("/lib"), Path("/lib64"), Path(sys.base_prefix)]


def restricted(folder: Path, action: Callable[[], object]) -> str:
    """What `action` does in a child that may read and write beneath `folder`, and read the system's files."""
    return in_child(lambda: landlock.restrict(SYSTEM, [folder]), action)


def test_files_beneath_the_writable_folder_can_be_read_written_and_removed(tmp_path: Path) -> None:
    def use() -> object:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "b").write_text("here")
        found = (tmp_path / "a" / "b").read_text()
        (tmp_path / "a" / "b").unlink()
        return found

    assert restricted(tmp_path, use) == "here"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_TRUNC])
def test_other_files_cannot_be_opened(
    flags: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("other") / "secret"
    secret.write_text("reference")
    assert restricted(tmp_path, lambda: os.open(secret, flags)) == "EACCES"
    assert secret.read_text() == "reference"


def test_other_folders_can_be_neither_listed_nor_written_to(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "kept").touch()
    assert restricted(tmp_path, lambda: os.listdir(other)) == "EACCES"
    assert restricted(tmp_path, lambda: (other / "new").mkdir()) == "EACCES"
    assert restricted(tmp_path, lambda: (other / "kept").unlink()) == "EACCES"
    link = tmp_path / "link"
    link.symlink_to(other / "kept")
    assert restricted(tmp_path, link.read_text) == "EACCES"


def test_children_are_restricted_too(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("other") / "secret"
    secret.write_text("reference")
    said = restricted(
        tmp_path, lambda: subprocess.run(["/usr/bin/cat", secret], capture_output=True, text=True).stderr
    )
    assert "Permission denied" in said


@pytest.mark.skipif(landlock.version() < 6, reason="signals are restricted from Landlock 6 on")
def test_processes_outside_cannot_be_signalled(tmp_path: Path) -> None:
    outside = subprocess.Popen(["sleep", "60"])
    try:
        assert restricted(tmp_path, lambda: os.kill(outside.pid, signal.SIGTERM)) == "EPERM"
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()


@pytest.mark.parametrize("role", ["builder", "candidate"])
def test_no_role_of_a_candidate_may_read_a_folder_that_the_tasks_lie_in(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where kernelwright is installed below /usr, and /lib is a link into it."""
    root, link = tmp_path / "usr", tmp_path / "lib"
    tasks = root / "lib" / "packages" / "kernelbench" / "tasks"
    tasks.mkdir(parents=True)
    (root / "lib" / "libc.so").touch()
    link.symlink_to(root / "lib")
    (root / "loop").symlink_to(root)
    monkeypatch.setattr(files, "PACKAGE", tasks.parent)
    monkeypatch.setattr(files, "_SYSTEM", (str(root), str(link)))
    allowed = files.access(role, tmp_path / "scratch", tmp_path / "cache", tmp_path / "headers")
    assert not any(tasks.is_relative_to(path.resolve()) for path in (*allowed.read, *allowed.write))
    assert root / "lib" / "libc.so" in allowed.read


def test_packages_on_pythons_path_are_open_and_other_folders_on_it_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages, tasks = tmp_path / "site", tmp_path / "tasks"
    (packages / "torch-2.11.0.dist-info").mkdir(parents=True)
    tasks.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages), str(tasks)])
    allowed = files.access("candidate", tmp_path / "scratch", tmp_path / "cache", tmp_path / "headers")
    assert packages in allowed.read and tasks not in allowed.read
