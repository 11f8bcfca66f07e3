"""A table of a report, beside those of tasks and aggregates."""

from dataclasses import dataclass

_LONGEST_NUMBER = 40  # characters of a cell, an interval or some means with their counts


@dataclass(frozen=True)
class ReportTable:
    title: str
    note: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def of_text(self, column: int) -> bool:
        """Return True for the first column and those of sentences, which are not aligned as numbers are."""
        return column == 0 or any(len(row[column]) > _LONGEST_NUMBER for row in self.rows)
