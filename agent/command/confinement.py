"""View of the machine that a coding agent has while it works for a run, by bubblewrap (`bwrap`).

It keeps its home folder and the network, for its settings and its model. The run's folder with the database,
those of runs beside it, the evaluator's caches, other processes and the GPU are not there, nor are keys and
passwords of other machines and the sockets by which processes outside are started; what kernelwright takes
programs and modules from cannot be written. Its /tmp is its own and empty: in that of all, it could put links
in the place of files that compilers and profilers outside write, and read those of other agents.

A folder that is mounted could not be replaced, but one above it could: those are mounted, too. What an agent
leaves in the home folder for the next login is not guarded against.
https://github.com/containers/bubblewrap
"""

import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import kernelwright
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.results.store.connection import ELSEWHERE, FILE

# Of services that run what they are told, outside: systemd's, by D-Bus or its own; containers; terminals.
_SOCKETS = ("/run/dbus", "/run/systemd/private", "/run/docker.sock", "/run/containerd", "/run/podman",
            "/run/screen", "/run/user/{user}")  # fmt: skip
_SECRETS = (".ssh", ".pgpass")  # in the home folder, of machines and databases that a run may use


@dataclass(frozen=True)
class Confinement:
    """`run`: the folder that is hidden, but for those of its folders that a command may write.

    `secrets`: other files and folders that are hidden.
    """

    run: Path
    secrets: tuple[Path, ...] = ()

    def words(self, folders: Iterable[Path]) -> list[str]:
        """Return the words to put before a command; none where there is no bubblewrap."""
        beside = self.run.resolve().parent
        runs = (each.parent for name in (FILE, ELSEWHERE) for each in beside.glob(f"*/{name}"))
        hidden = [each.resolve() for each in (self.run, *runs, *self.secrets)]
        return _words(hidden, [each.resolve() for each in folders]) if why_not() is None else []


@cache
def why_not() -> str | None:
    """Return why commands cannot be confined here, and what helps; None if they can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (apt-get install bubblewrap)"
    with tempfile.TemporaryDirectory() as folder:
        words = [*_words([Path(folder)], []), "true"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or "bwrap fails") if done.returncode else None


def _words(hidden: Iterable[Path], folders: Iterable[Path]) -> list[str]:
    words = ["bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc"]
    words += ["--cap-drop", "ALL"]  # root would unmount what hides the run
    words += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    mounts = _mounts(hidden) | dict.fromkeys(folders, "--bind")
    for path in sorted(mounts):  # a folder comes before those in it
        if mounts[path] == "--tmpfs" and not path.is_dir():
            words += ["--ro-bind", "/dev/null", str(path)]
        else:
            words += [mounts[path], *([] if mounts[path] == "--tmpfs" else [str(path)]), str(path)]
    return [*words, "--"]


def _mounts(of_the_run: Iterable[Path]) -> dict[Path, str]:
    """Return how each path is mounted, without the folders that a command works in."""
    home = Path.home().resolve()
    temporary = {Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve()} - {home}
    sockets = [Path(each.format(user=os.getuid())) for each in _SOCKETS]
    hidden = [cache_folder().resolve(), *(home / name for name in _SECRETS), *sockets, *of_the_run]
    kept = {home} - {Path("/")}
    trusted = _trusted(kept | temporary)
    mounts = {
        **dict.fromkeys(temporary, "--tmpfs"),
        **dict.fromkeys(kept, "--bind"),
        **{each: "--ro-bind" for each in trusted if not trusted & set(each.parents)},
        **{each.resolve(): "--tmpfs" for each in hidden if each.exists()},
    }
    for path in tuple(mounts):
        above = list(path.parents)
        mounted = next((n for n, parent in enumerate(above) if parent in mounts), None)
        if mounted is not None and mounts[above[mounted]] == "--bind":
            mounts |= dict.fromkeys(above[:mounted], "--bind")
    return mounts


def _trusted(writable: set[Path]) -> set[Path]:
    """Return the writable folders that this process, and those it starts, take programs and modules from.

    One that is not there is made, for whoever makes it fills it.
    """
    programs = os.get_exec_path()
    programs += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    modules = [sys.prefix, sys.base_prefix, *sys.path, *map(str, _package())]
    for each in programs:
        if writable & set(Path(each).parents):
            with suppress(OSError):
                Path(each).mkdir(parents=True, exist_ok=True)
    found = {Path(each).resolve() for each in (*programs, *modules)}
    return {each for each in found if writable & set(each.parents) and each.exists()}


def _package() -> list[Path]:
    """Return the folders of the package; in a checkout its rooms are links to others."""
    package = Path(kernelwright.__file__).resolve().parent
    return [package, *(each.resolve() for each in package.iterdir() if each.is_symlink() and each.is_dir())]
