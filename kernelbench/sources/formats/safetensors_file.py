"""Whole numbers of a .safetensors file, such as the offsets of a paged cache.

The file begins with the length of a JSON header, which has dtype, shape and place of each tensor
(github.com/huggingface/safetensors). It is read without torch.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kernelwright.kernelbench.errors import StorageError, UsageError

_FORMATS = {"I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "?"}  # of struct
_LARGEST_HEADER = 100 << 20  # bytes, as the format has it
_DEPTH = 6  # folders above a definition
_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class WholeNumbers:
    shape: tuple[int, ...]
    values: tuple[int, ...]  # row by row

    def __str__(self) -> str:
        """Return the numbers as Python's lists."""
        held: list[Any] = list(self.values)
        for size in reversed(self.shape[1:]):
            held = [held[start : start + size] for start in range(0, len(held), size)]
        return repr(held if self.shape else held[0])


def found_file(named: str, definition: Path) -> Path | None:
    """Return the file that a workload names, in a folder above its definition; None if it is not there.

    The first folders of the name may be those above the data set. Raises UsageError if it leads out.
    """
    place = PurePosixPath(named)
    if place.is_absolute() or ".." in place.parts or not place.parts:
        raise UsageError(
            f"a workload of {definition} names a file outside its data set, {named!r}", "give paths within it"
        )
    for folder in definition.resolve().parents[:_DEPTH]:
        for start in range(len(place.parts)):
            if (path := folder.joinpath(*place.parts[start:])).is_file():
                return path
    return None


def whole_numbers(path: Path, key: str, most: int) -> WholeNumbers | str:
    """Return a tensor of at most so many whole numbers, or why it is none: "it has 5000 elements".

    Raises UsageError for a damaged file and for one without the tensor.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(8)
            if begin == _POINTER[:8]:
                return "it is a pointer of Git LFS"
            length = int.from_bytes(begin, "little")
            if len(begin) < 8 or length > _LARGEST_HEADER:
                raise ValueError("its header is too long")
            header = json.loads(file.read(length))
            if key not in header:
                raise UsageError(f"{path} has no tensor {key}", f"it has {', '.join(header)}")
            held = header[key]
            shape = tuple(int(size) for size in held["shape"])
            count = math.prod(shape)
            if held["dtype"] not in _FORMATS:
                return f"it is of {held['dtype']}"
            if count > most:
                return f"it has {count} elements"
            file.seek(8 + length + int(held["data_offsets"][0]))
            form = f"<{count}{_FORMATS[held['dtype']]}"
            return WholeNumbers(shape, tuple(map(int, struct.unpack(form, file.read(struct.calcsize(form))))))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as error:
        raise UsageError(
            f"{path} is no file of safetensors: {error}", "download it again, or leave out its workloads"
        ) from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}", "check its permissions") from error
