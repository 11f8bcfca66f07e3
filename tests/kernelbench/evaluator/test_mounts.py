"""A worker's view of the file system: what it may change, what it finds, whom it sees in /proc."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.evaluator.sandbox import mounts
from tests.helpers.evaluator.trial import in_child

LAYER = next(layer for layer in sandbox.layers(None) if layer.name == "mount_namespace")
pytestmark = pytest.mark.skipif(not LAYER.on, reason=LAYER.why)


def enclosed(
    folder: Path,
    action: Callable[[], object],
    hidden: tuple[Path, ...] = (),
    writable_processes: bool = False,
) -> str:
    """What `action` does where only `folder` can be written to."""
    return in_child(
        lambda: sandbox.unshare_namespaces(("pid_namespace", "mount_namespace")),
        lambda: in_child(lambda: mounts.enclose([folder], hidden, writable_processes), action),
    )


def test_only_the_writable_folder_can_be_changed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "file"
    other.write_text("kept")
    assert enclosed(tmp_path, lambda: (tmp_path / "mine").write_text("here")) == "4"
    assert (tmp_path / "mine").read_text() == "here"
    assert enclosed(tmp_path, lambda: other.write_text("changed")) == "EROFS"
    assert enclosed(tmp_path, other.unlink) == "EROFS"
    assert enclosed(tmp_path, other.read_text) == "kept"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this machine has no /dev/shm")
def test_shared_memory_is_its_own_and_limited(tmp_path: Path) -> None:
    """Where multiprocessing.Lock keeps its semaphore."""
    left = Path("/dev/shm/left")
    assert enclosed(tmp_path, lambda: (left.write_text("mine"), os.listdir("/dev/shm"))) == "(4, ['left'])"
    assert not left.exists()
    assert enclosed(tmp_path, lambda: left.write_bytes(bytes(65 << 20))) == "ENOSPC"


def test_hidden_folders_are_empty(tmp_path: Path) -> None:
    hidden = tmp_path / "tasks"
    hidden.mkdir()
    (hidden / "reference.py").touch()
    folder = tmp_path / "scratch"
    folder.mkdir()
    assert enclosed(folder, lambda: os.listdir(hidden), (hidden,)) == "[]"
    assert os.listdir(hidden) == ["reference.py"]


def test_proc_shows_no_other_process(tmp_path: Path) -> None:
    found = enclosed(tmp_path, lambda: sorted(int(name) for name in os.listdir("/proc") if name.isdigit()))
    assert found == "[1]"


def test_where_processes_are_writable_settings_of_the_kernel_are_not(tmp_path: Path) -> None:
    def name_thread() -> int:
        return Path(f"/proc/self/task/{os.getpid()}/comm").write_text("cuda")

    def change(setting: str) -> Callable[[], object]:
        return lambda: os.close(os.open(f"/proc/{setting}", os.O_WRONLY))

    assert enclosed(tmp_path, name_thread) == "EROFS"
    assert enclosed(tmp_path, name_thread, writable_processes=True) == "4"
    for setting in ("sys/kernel/core_pattern", "sys/vm/drop_caches"):
        assert enclosed(tmp_path, change(setting), writable_processes=True) in ("EROFS", "EACCES")
