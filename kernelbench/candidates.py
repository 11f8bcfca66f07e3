"""Candidates from files."""

from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.kernels import kernel_file
from kernelwright.kernelbench.records import Candidate, Language, Task


def language_of(source: str) -> Language:
    """Return the language of a file's kernels; "torch" if there are none, or it is not Python."""
    file = kernel_file(source)
    return "torch" if file is None else file.language


def candidate_from_file(path: Path) -> Candidate:
    """Read a candidate. Raises UsageError if the file cannot be read."""
    try:
        source = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "give a Python file that defines ModelNew") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text", "give a Python file that defines ModelNew") from None
    return Candidate(source=source, language=language_of(source), author="file")


def reference_candidate(task: Task) -> Candidate:
    """Return the reference of a task as its own candidate, whose speedup over eager is 1."""
    source = task.source.replace("class Model(", "class ModelNew(").replace("super(Model,", "super(ModelNew,")
    return Candidate(source=source, language="torch", author="reference")
