"""A new folder that a command writes."""

from pathlib import Path

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.results.store.folder import write_atomically


def begin(folder: Path) -> None:
    """Create the folder. Raises UsageError if it is not empty, StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty", "use another --out")
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}", "use another --out") from error


def write(path: Path, text: str) -> None:
    """Write a file atomically. Raises StorageError."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "use another --out") from error
