"""One task as its suite lists it, before its text is read."""

import re
from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.errors import StorageError, TaskError
from kernelwright.kernelbench.text_files import text_of


@dataclass(frozen=True)
class Entry:
    id: str
    level: int  # 0: belongs to no level
    name: str  # the file's stem: "softmax", "40_Matmul_Scaling_ResidualAdd"
    number: int | None = None  # the problem's number within its level, where the suite numbers them
    path: Path | None = None
    text: str = ""  # the source, where it lies in no file

    def read(self) -> str:
        return self.text if self.path is None else read_text(self.path)

    @property
    def where(self) -> str:
        """Name of the task in errors: the user knows a file of their own by its path."""
        return str(self.path) if self.path and self.id.startswith("file:") else self.id

    @property
    def title(self) -> str:
        """The name as words: "40_Matmul_Scaling_" is "Matmul Scaling"."""
        return " ".join(self.short_name.replace("_", " ").split())

    @property
    def short_name(self) -> str:
        """The name without its number."""
        return self.name if self.number is None else re.sub(r"^\d+_", "", self.name)

    @property
    def folder(self) -> str:
        """The part of its suite that its id names: "level1" of `builtin:level1/softmax`."""
        return self.id.rpartition(":")[2].partition("/")[0]

    @property
    def long_id(self) -> str:
        """The id with the level and the name spelled out: `kernelbench:level2/40_Matmul_Scaling`."""
        suite = self.id.rpartition(":")[0]
        return f"{suite}:level{self.level}/{self.name}" if self.level else self.id


def read_text(path: Path) -> str:
    """Return a task file's text with its own line ends; a byte order mark is dropped."""
    try:
        return text_of(path)
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 text", "save it as UTF-8") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}", "check its permissions") from error


def from_file(path: Path) -> Entry:
    """Return the entry of a task file; its level is that of the folder `level1` … that it may lie in."""
    folder = re.fullmatch(r"level_?(\d+)", path.resolve().parent.name)
    level = int(folder[1]) if folder else 0
    return Entry(f"file:{path.stem}", level, path.stem, path=path)


def level_folders(root: Path) -> list[tuple[int, Path]]:
    """Return the folders `level1`, `level2` … of a suite, in order."""
    found = ((re.fullmatch(r"level(\d+)", folder.name), folder) for folder in root.glob("level*"))
    return sorted((int(match[1]), folder) for match, folder in found if match and folder.is_dir())
