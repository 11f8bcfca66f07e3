"""What memory a container leaves."""

from pathlib import Path

import pytest

from kernelbench import machine


@pytest.mark.parametrize(
    ("folder", "most", "taken"),
    [("", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes")],
)
def test_a_container_s_memory_counts(
    folder: str, most: str, taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    whole = machine.memory_bytes()
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / most).write_text(f"{100 << 20}\n")
    (tmp_path / folder / taken).write_text(f"{60 << 20}\n")
    (tmp_path / folder / "memory.stat").write_text(f"anon 5\ninactive_file {20 << 20}\n")
    assert machine.memory_bytes() == 100 << 20 < whole
    assert machine.available_bytes() == 60 << 20
    (tmp_path / folder / most).write_text("max\n")
    assert machine.memory_bytes() == whole and 0 < machine.available_bytes() <= whole
