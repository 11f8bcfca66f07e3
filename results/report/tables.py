"""A table of a report, beside those of tasks and aggregates."""

import re
from dataclasses import dataclass

_NUMBER = re.compile(r"[$≈<]?[\d—]|$")  # as a cell begins, or nothing
_LONGEST_NUMBER = 40  # characters of a cell, such as an interval or some means with their counts


@dataclass(frozen=True)
class ReportTable:
    title: str
    note: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def of_text(self, column: int) -> bool:
        """Return True for the first column and those of words, which are not aligned as numbers are."""
        cells = [row[column] for row in self.rows]
        numbers = all(_NUMBER.match(cell) and len(cell) <= _LONGEST_NUMBER for cell in cells)
        return column == 0 or not numbers
