from pathlib import Path

from kernelwright.kernelbench.candidates import candidate_from_file


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    """Python does so, too, and Windows editors write it."""
    file = tmp_path / "new.py"
    file.write_bytes("\ufeffx = 1\r\n".encode())
    assert candidate_from_file(file).source == "x = 1\n"
