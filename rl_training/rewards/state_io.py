"""State of rewards in files, stored with a run's checkpoints."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Record
from kernelwright.results.store.encoding import record_text
from kernelwright.results.store.folder import write_atomically

R = TypeVar("R", bound=Record)


def write(path: Path, record: Record) -> None:
    """Write a record atomically. Raises StorageError; the old file is then unchanged."""
    try:
        write_atomically(path, record_text(record) + "\n")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}", "free some space, or use another folder"
        ) from error


def read(path: Path, of: type[R]) -> R | None:
    """Read a record; None if there is no such file. Raises StorageError."""
    try:
        return of.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged, or of another version"
        raise StorageError(f"{path} cannot be read: {why}", "delete it to start again") from None
