"""Candidates from files."""

import re
from pathlib import Path

from kernelbench.errors import UsageError
from kernelbench.records import Candidate, Language


def language_of(source: str) -> Language:
    """The language of the kernels in a candidate file, by the calls that build them."""
    if re.search(r"^\s*(import triton|from triton)", source, re.MULTILINE):
        return "triton"
    if re.search(r"\bcompile_cuda\b|\bcuda_sources\b|\bRawModule\b|\bRawKernel\b", source):
        return "cuda"
    if re.search(r"\bload_inline\b", source) and re.search(r"\b__global__\b", source):
        return "cuda"
    if re.search(r"\bcompile_cpp\b|\bload_inline\b|\bcpp_sources\b", source):
        return "cpp"
    return "torch"


def candidate_from_file(path: Path) -> Candidate:
    """Raises UsageError when the file cannot be read."""
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "give a Python file that defines ModelNew") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text", "give a Python file that defines ModelNew") from None
    return Candidate(source=source, language=language_of(source), author="file")
