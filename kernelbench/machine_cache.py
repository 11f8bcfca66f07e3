"""Measurements of a machine, stored in the cache folder under everything they depend on."""

import hashlib
import os
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kernelwright.kernelbench.errors import StorageError
from kernelwright.kernelbench.records import Fingerprint, Record

R = TypeVar("R", bound=Record)


def file_for(cache: Path, kind: str, mark: Fingerprint) -> Path:
    """Return the cache file for a record of this kind about the machine of `mark`."""
    key = hashlib.sha256(mark.model_dump_json().encode()).hexdigest()[:16]
    return cache / kind / f"{key}.json"


def read(file: Path, of: type[R]) -> R | None:
    """Read the record in `file`; None if there is no such file. Raises StorageError if it holds another."""
    try:
        return of.model_validate_json(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged, or of another version"
        raise StorageError(f"{file} cannot be read: {why}", "delete it; it is measured again") from None


def write(file: Path, record: Record) -> None:
    """Write atomically: concurrent readers find the old record. Raises StorageError."""
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(record.model_dump_json())
        temporary.rename(file)
    except OSError as error:
        raise StorageError(
            f"{file} cannot be written: {error.strerror}", "set KERNELWRIGHT_HOME to a writable folder"
        ) from None
