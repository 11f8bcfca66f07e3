from pathlib import Path

from kernelwright.kernelbench.candidates import candidate_from_file, language_of


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    """Python does so, too, and Windows editors write it."""
    file = tmp_path / "new.py"
    file.write_bytes("\ufeffx = 1\r\n".encode())
    assert candidate_from_file(file).source == "x = 1\n"


def test_a_candidate_that_has_one_all_the_same_is_read_as_python_reads_it() -> None:
    source = "\ufeffimport triton\n\n@triton.jit\ndef f(x):\n    pass\n"
    assert language_of(source) == "triton"
