"""Environment of a training: versions of packages, the commit, hashes of files."""

import hashlib
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kernelwright.kernelbench.errors import StorageError

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")
_CHECKOUT = Path(__file__).resolve().parents[2]


def packages() -> dict[str, str]:
    """Return the versions of the installed packages."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit(folder: Path = _CHECKOUT) -> str | None:
    """Return the commit of a checkout, with "+" if files have changed since; None without one, or git."""
    if not (folder / ".git").exists():
        return None
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def hashes(paths: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of files, by their paths as given. Raises StorageError."""
    found = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                found[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise StorageError(
                f"{path} cannot be read: {error.strerror or error}", "use readable files"
            ) from error
    return found


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
