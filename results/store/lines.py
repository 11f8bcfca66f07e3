"""A file to which lines are appended, each flushed before the next step begins."""

import json
from collections.abc import Iterator
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


def whole_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file that hold JSON, without those that a kill cut off. Raises StorageError."""
    if not path.exists():
        return
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror or error}", "use another --out"
        ) from error
    for line in lines:
        try:
            json.loads(line)
        except ValueError:
            continue
        yield line
