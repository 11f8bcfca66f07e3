"""The published plot is what the published tables give."""

import shutil
from pathlib import Path

import pytest

from benchmarks.compiler import plot


def test_the_plot_is_of_the_tables_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = Path(__file__).parents[2] / plot.CPU
    for table in published.glob("*.csv"):
        shutil.copy(table, tmp_path)
    monkeypatch.setattr(plot, "CPU", tmp_path)
    plot.run()
    assert (tmp_path / "speedups.svg").read_text() == (published / "speedups.svg").read_text()
