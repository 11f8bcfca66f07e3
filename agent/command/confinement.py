"""View of the machine that a coding agent has while it works for a run, by bubblewrap (`bwrap`).

It keeps its home folder, /tmp and the network, for its settings and its model. The run's folder with the
database, the evaluator's scratch files and caches, other processes and the GPU are not there; kernelwright
and its Python cannot be written. https://github.com/containers/bubblewrap
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import kernelwright
from kernelwright.kernelbench.evaluator.processes.scratch import PREFIX
from kernelwright.kernelbench.machine import cache_folder


@dataclass(frozen=True)
class Confinement:
    """`run`: the folder that is hidden, but for those of its folders that a command may write."""

    run: Path

    def words(self, folders: Iterable[Path]) -> list[str]:
        """Return the words to put before a command; none where there is no bubblewrap."""
        return (
            [*_words(self.run.resolve(), [each.resolve() for each in folders])] if why_not() is None else []
        )


@cache
def why_not() -> str | None:
    """Return why commands cannot be confined here, and what helps; None if they can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (apt-get install bubblewrap)"
    with tempfile.TemporaryDirectory() as folder:
        words = [*_words(Path(folder), []), "true"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or "bwrap fails") if done.returncode else None


def _words(run: Path, folders: Iterable[Path]) -> Iterable[str]:
    yield from ("bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc")
    yield from ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
    for folder in dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"), Path.home())):
        if folder != Path("/"):
            yield from ("--bind-try", str(folder), str(folder))
    pythons = (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    for folder in dict.fromkeys((*pythons, *_package())):
        yield from ("--ro-bind", str(folder), str(folder))
    hidden = [cache_folder(), *Path(tempfile.gettempdir()).glob(f"{PREFIX}{os.getpid()}-*"), run]
    for folder in hidden:
        if folder.is_dir():
            yield from ("--tmpfs", str(folder))
    for folder in folders:
        yield from ("--bind", str(folder), str(folder))
    yield "--"


def _package() -> list[Path]:
    """Return the folders of the package; in a checkout its rooms are links to others."""
    package = Path(kernelwright.__file__).resolve().parent
    return [package, *(each.resolve() for each in package.iterdir() if each.is_symlink() and each.is_dir())]
