from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.candidates import candidate_from_file, language_of
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.functions import with_module
from kernelwright.results.archives.reading import read_archive


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    """Python does so, too, and Windows editors write it."""
    file = tmp_path / "new.py"
    file.write_bytes("\ufeffx = 1\r\n".encode())
    assert candidate_from_file(file).source == "x = 1\n"


def test_a_candidate_that_has_one_all_the_same_is_read_as_python_reads_it() -> None:
    source = "\ufeffimport triton\n\n@triton.jit\ndef f(x):\n    pass\n"
    assert language_of(source) == "triton"


FUNCTIONS = """import torch
import triton


@triton.jit
def kernel(x, y, n):
    pass


def softmax(x):
    return _launch(x)


def _launch(x):
    kernel[(1,)](x, x, 1)
    return x
"""


def test_the_function_of_a_file_is_its_candidate(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(FUNCTIONS)
    for name in ("kernel.py", "kernel.py:softmax"):
        candidate = candidate_from_file(tmp_path / name)
        assert candidate.source.startswith(FUNCTIONS) and candidate.language == "triton"
        assert "return softmax(*inputs, **keywords)" in candidate.source
    assert "return _launch(*inputs" in candidate_from_file(tmp_path / "kernel.py:_launch").source


def test_a_file_with_its_own_module_or_with_several_functions_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    for more in ("\n\ndef another(x):\n    return x\n", "\n\nModelNew = make(softmax)\n"):
        file.write_text(FUNCTIONS + more)
        assert candidate_from_file(file).source == FUNCTIONS + more


def test_a_function_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(FUNCTIONS)
    with pytest.raises(UsageError, match="its functions are: kernel, softmax, _launch"):
        candidate_from_file(tmp_path / "kernel.py:soft")
    (tmp_path / "broken.py").write_text("def f(:")
    with pytest.raises(UsageError, match="is no Python"):
        candidate_from_file(tmp_path / "broken.py:f")


def test_a_wrapped_function_computes_the_same() -> None:
    found: dict[str, Any] = {}
    exec(with_module("def double(x, *, times=2):\n    return x * times\n", "double", "f.py"), found)
    module = found["ModelNew"](7, rows=3)
    assert module(4) == 8 and module(4, times=3) == 12


@pytest.mark.parametrize("read", [candidate_from_file, read_archive])
def test_a_file_without_an_end_is_refused(read: Callable[[Path], object], tmp_path: Path) -> None:
    endless = tmp_path / "kernel.py"
    endless.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="File too large"):
        read(endless)
