"""A file to which lines are appended, each flushed before the next step begins."""

from pathlib import Path

from kernelwright.kernelbench.errors import StorageError


def append(path: Path, line: str) -> None:
    """Append a line, even after one that was cut off by a kill. Raises StorageError."""
    try:
        with path.open("ab+") as file:
            whole = file.tell() == 0 or _last_byte(path) == b"\n"
            file.write(b"" if whole else b"\n")
            file.write(f"{line}\n".encode())
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}",
            "free some space, and give the same command again to resume",
        ) from error


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1)
