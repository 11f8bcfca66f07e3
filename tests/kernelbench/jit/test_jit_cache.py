import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.jit import openmp
from kernelwright.kernelbench.jit.cache import BuildCache, content_key
from kernelwright.kernelbench.jit.library import build

pytestmark = pytest.mark.builds

SOURCE = 'extern "C" int answer() { return 42; }'
LOG = 'case "$*" in *" -c "*) echo compiled >> $D/log;; esac'

fork = multiprocessing.get_context("fork")


def entries(folder: Path) -> list[Path]:
    return [path.parent for path in folder.rglob("kernel.so")]


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*/*") if ".tmp-" in path.name]


def load_answer(start, answers) -> None:
    start.wait()
    answers.put(jit.compile_cpp(SOURCE).answer())


def test_the_second_call_finds_the_first_ones_build(wrapper: Callable[[str], Path]):
    folder = wrapper(LOG)
    assert jit.compile_cpp(SOURCE).answer() == jit.compile_cpp(SOURCE).answer() == 42
    assert (folder / "log").read_text().split() == ["compiled"]


def test_eight_processes_build_once(wrapper: Callable[[str], Path], cache_folder: Path):
    openmp.torch_runtime()
    folder = wrapper(f"{LOG}\nsleep 0.3")
    start, answers = fork.Barrier(8), fork.Queue()
    processes = [fork.Process(target=load_answer, args=(start, answers)) for _ in range(8)]
    for process in processes:
        process.start()
    assert [answers.get(timeout=60) for _ in processes] == [42] * 8
    for process in processes:
        process.join()
    assert (folder / "log").read_text().split() == ["compiled"]
    assert len(entries(cache_folder)) == 1
    assert not leftovers(cache_folder)
    assert not list(cache_folder.rglob("*.lock"))


def test_a_builder_killed_midway_leaves_the_cache_usable(wrapper: Callable[[str], Path], cache_folder: Path):
    folder = wrapper("if [ -e $D/slow ]; then echo half > kernel.so; echo $$ > $D/pid; exec sleep 60; fi")
    (folder / "slow").touch()
    process = fork.Process(target=build, args=(SOURCE, (), BuildCache(), 100.0))
    process.start()
    wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip() != "")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert leftovers(cache_folder)
    (folder / "slow").unlink()
    try:
        assert jit.compile_cpp(SOURCE, timeout_s=20).answer() == 42
        assert not leftovers(cache_folder)
    finally:
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def test_a_timeout_ends_every_process_of_the_compiler(wrapper: Callable[[str], Path], cache_folder: Path):
    folder = wrapper("sleep 60 & echo $! > $D/pid; sleep 60")
    with pytest.raises(jit.BuildError, match=r"took longer than 0\.5 s"):
        jit.compile_cpp(SOURCE, timeout_s=0.5)
    child = int((folder / "pid").read_text())
    wait_for(lambda: not running(child))
    assert not entries(cache_folder)
    assert not leftovers(cache_folder)


def test_what_a_process_is_stopped_for_is_not_on_the_limit(
    wrapper: Callable[[str], Path], cache_folder: Path
) -> None:
    """An evaluator has its workers stand still while others are timed."""
    folder = wrapper('touch $D/begun; while [ ! -e "$D/go" ]; do sleep 0.05; done')
    answers = fork.Queue()
    process = fork.Process(target=lambda: answers.put(jit.compile_cpp(SOURCE, timeout_s=3.0).answer()))
    process.start()
    wait_for(lambda: (folder / "begun").exists())
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(3.5)
    os.kill(process.pid, signal.SIGCONT)
    time.sleep(0.2)
    (folder / "go").touch()
    assert answers.get(timeout=30) == 42
    process.join()


def test_a_failed_build_is_not_kept(wrapper: Callable[[str], Path], cache_folder: Path):
    folder = wrapper(f"{LOG}\nif [ -e $D/broken ]; then echo no >&2; exit 1; fi")
    (folder / "broken").touch()
    for _ in range(2):
        with pytest.raises(jit.BuildError, match=r"exit status 1.*\nno"):
            jit.compile_cpp(SOURCE)
    assert not entries(cache_folder)
    assert not leftovers(cache_folder)
    (folder / "broken").unlink()
    assert jit.compile_cpp(SOURCE).answer() == 42


def test_a_held_lock_is_waited_for_only_so_long(cache_folder: Path):
    cache = BuildCache()
    held, release = fork.Event(), fork.Event()

    def hold(_: Path) -> None:
        held.set()
        release.wait(60)

    process = fork.Process(target=cache.get_or_build, args=("k" * 40, hold, 1.0))
    process.start()
    assert held.wait(30)
    with pytest.raises(jit.BuildError, match="another process holds"):
        cache.get_or_build("k" * 40, lambda _: None, wait_s=0.2)
    release.set()
    process.join()
    assert cache.get_or_build("k" * 40, lambda _: pytest.fail("it is built"), wait_s=0.2).is_dir()


def test_a_leftover_lock_file_means_nothing():
    cache = BuildCache()
    entry = cache.entry("k" * 40)
    entry.parent.mkdir(parents=True)
    entry.with_name(f"{entry.name}.lock").touch()
    assert cache.get_or_build("k" * 40, lambda folder: None, wait_s=0.2) == entry


def built() -> Path:
    return build(SOURCE, (), BuildCache(), 60)[0]


@pytest.mark.parametrize("left", [0, 100, 5000])
def test_an_entry_that_lost_a_part_is_built_once_more(wrapper: Callable[[str], Path], left: int) -> None:
    """As after a full disk, or one that lost what it had not written. A library cut short kills who loads it."""
    folder = wrapper(LOG)
    os.truncate(built(), left)
    assert jit.compile_cpp(SOURCE).answer() == jit.compile_cpp(SOURCE).answer() == 42
    assert (folder / "log").read_text().split() == ["compiled"] * 2


def test_an_entry_that_lost_a_file_is_built_once_more() -> None:
    built().unlink()
    assert built().exists()


def test_a_library_of_zeros_is_built_once_more(wrapper: Callable[[str], Path], cache_folder: Path) -> None:
    folder, path = wrapper(LOG), built()
    path.write_bytes(bytes(path.stat().st_size))
    assert jit.compile_cpp(SOURCE).answer() == jit.compile_cpp(SOURCE).answer() == 42
    assert (folder / "log").read_text().split() == ["compiled"] * 2
    assert len(entries(cache_folder)) == 1 and not leftovers(cache_folder)


def test_a_library_that_cannot_be_loaded_is_built_twice_and_no_more(
    wrapper: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, load = wrapper(LOG), ctypes.CDLL

    def refuse(name: str | None) -> ctypes.CDLL:
        if name is not None and name.endswith("kernel.so"):
            raise OSError("wrong ELF class")
        return load(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(jit.BuildError, match="cannot be loaded: wrong ELF class"):
        jit.compile_cpp(SOURCE)
    assert (folder / "log").read_text().split() == ["compiled"] * 2


def test_a_build_is_on_the_disk_before_it_is_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, to: events.append("renamed") or rename(path, to))
    path = built()
    assert events.index("kernel.so") < events.index("sizes.json") < events.index("renamed")
    assert events.index("renamed") < events.index(path.parent.parent.name)


READ_ONLY = """
from kernelwright import jit
assert jit.compile_cpp('extern "C" int answer() { return 42; }').answer() == 42
try:
    jit.compile_cpp('extern "C" int other() { return 43; }')
except jit.BuildError as error:
    print(error)
"""


def without_root_power() -> None:
    """File modes bind root too once CAP_DAC_OVERRIDE (1) has left the bounding set."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


def test_a_read_only_cache_serves_what_it_has_and_says_so_otherwise(cache_folder: Path):
    jit.compile_cpp(SOURCE)
    folders = [cache_folder, *(path for path in cache_folder.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY], preexec_fn=without_root_power, capture_output=True, text=True
        )
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert "has no such build and cannot be written (Permission denied)" in done.stdout
    assert "set KERNELWRIGHT_CACHE to a writable folder" in done.stdout


def test_the_key_covers_source_flags_and_compiler(wrapper: Callable[[str], Path]):
    paths = [build(SOURCE, (), BuildCache(), 60)[0], build(SOURCE, ("-O2",), BuildCache(), 60)[0]]
    paths.append(build(SOURCE + " ", (), BuildCache(), 60)[0])
    wrapper("")
    paths.append(build(SOURCE, (), BuildCache(), 60)[0])
    assert len(set(paths)) == 4
    assert content_key("ab", "c") != content_key("a", "bc")


def test_trim_keeps_what_was_used_last():
    cache = BuildCache()
    made = [cache.get_or_build(f"{i}" * 40, lambda folder: None, wait_s=1) for i in range(4)]
    for age, entry in enumerate(made):
        os.utime(entry, (1000 - age, 1000 - age))
    cache.touch(made[3])
    cache.trim(keep=2)
    assert [entry.exists() for entry in made] == [True, False, False, True]


def wait_for(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
