"""Candidates from files: those that define ModelNew, and functions that compute the same.

    def softmax(x): ...           # kernel.py, beside its Triton kernels

is taken as `kernel.py`, or as `kernel.py:softmax` where the file has several functions. It becomes the text
of the file with a ModelNew that calls the function with the inputs of the task, in their order.
"""

import re
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.functions import with_module
from kernelwright.kernelbench.kernels import kernel_file
from kernelwright.kernelbench.records import Candidate, Language, Task
from kernelwright.kernelbench.text_files import text_of


def language_of(source: str) -> Language:
    """Return the language of a file's kernels; "torch" if there are none, or it is not Python."""
    file = kernel_file(source)
    return "torch" if file is None else file.language


def candidate_from_file(path: Path) -> Candidate:
    """Read a candidate: FILE.py, FILE.py:FUNCTION, or a file or folder in the format of another project.

    Raises UsageError if it cannot be read.
    """
    from kernelwright.kernelbench.sources.formats import candidate_text  # which needs the evaluator's modules

    file, function = _split(path)
    if (text := candidate_text(path if function else file)) is not None:
        return Candidate(source=text, language=language_of(text), author="file")
    try:
        source = text_of(file).replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}", "give a Python file that defines ModelNew") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text", "give a Python file that defines ModelNew") from None
    source = with_module(source, function, str(file))
    return Candidate(source=source, language=language_of(source), author="file")


def _split(path: Path) -> tuple[Path, str | None]:
    """Return the file and the function of `FILE.py:FUNCTION`, or the file and None."""
    found = re.fullmatch(r"(.+\.py):([A-Za-z_]\w*)", str(path))
    return (Path(found[1]), found[2]) if found and not path.exists() else (path, None)


def reference_candidate(task: Task) -> Candidate:
    """Return the reference of a task as its own candidate, whose speedup over eager is 1."""
    source = task.source.replace("class Model(", "class ModelNew(").replace("super(Model,", "super(ModelNew,")
    return Candidate(source=source, language="torch", author="reference")
