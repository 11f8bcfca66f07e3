"""Landlock: what lies beneath the named folders stays open, everything else is shut, for children too."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelbench.evaluator import landlock, sandbox

pytestmark = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")


def restricted(folder: Path, action: Callable[[], object]) -> str:
    """What `action` does in a child that may read and write beneath `folder`, and read the system's files."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            sandbox.no_new_privileges()
            landlock.restrict([Path("/usr"), Path("/lib"), Path("/lib64"), Path(sys.base_prefix)], [folder])
            os.write(write_end, str(action()).encode())
        except OSError as error:
            os.write(write_end, (error.strerror or str(error)).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


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
    assert restricted(tmp_path, lambda: os.open(secret, flags)) == "Permission denied"
    assert secret.read_text() == "reference"


def test_other_folders_can_be_neither_listed_nor_written_to(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "kept").touch()
    assert restricted(tmp_path, lambda: os.listdir(other)) == "Permission denied"
    assert restricted(tmp_path, lambda: (other / "new").mkdir()) == "Permission denied"
    assert restricted(tmp_path, lambda: (other / "kept").unlink()) == "Permission denied"
    link = tmp_path / "link"
    link.symlink_to(other / "kept")
    assert restricted(tmp_path, link.read_text) == "Permission denied"


def test_children_are_restricted_too(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("other") / "secret"
    secret.write_text("reference")
    said = restricted(
        tmp_path, lambda: subprocess.run(["/usr/bin/cat", secret], capture_output=True, text=True).stderr
    )
    assert "Permission denied" in said or "No such file" in said


@pytest.mark.skipif(landlock.version() < 6, reason="signals are restricted from Landlock 6 on")
def test_processes_outside_cannot_be_signalled(tmp_path: Path) -> None:
    outside = subprocess.Popen(["sleep", "60"])
    try:
        assert restricted(tmp_path, lambda: os.kill(outside.pid, signal.SIGTERM)) == "Operation not permitted"
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()
