"""Parquet files whose columns do not depend on the number of rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.kernelbench.errors import MissingPrerequisite, StorageError

if TYPE_CHECKING:
    import pyarrow

_COLUMNS = {
    "messages": ("prompt", "completion", "chosen", "rejected"),
    "text": (
        "reasoning", "task", "task_sha256", "family", "language", "author", "candidate", "chip", "run",
        "source", "data", "rejected_verdict", "answer", "info",
    ),
    "texts": ("completions", "verdicts"),
    "number": (
        "speedup_low", "speedup_median", "speedup_high", "own_kernel_share", "chosen_speedup_low",
        "rejected_speedup_low", "best_speedup_low",
    ),
    "numbers": ("scores",),
    "count": ("level", "difficulty"),
    "flag": ("concise",),
}  # fmt: skip


def require() -> None:
    """Raise MissingPrerequisite without pyarrow."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise MissingPrerequisite(
            "data sets need the package pyarrow", "pip install 'kernelwright[rl]'"
        ) from None


def write(path: Path, rows: Sequence[dict[str, Any]], schema: "pyarrow.Schema | None" = None) -> None:
    """Write at least one row; all have the same columns. Raises StorageError.

    `schema`: of columns that are not the data set's.
    """
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(list(rows), schema=schema or _schema(list(rows[0])))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(table, path)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error}", "free some space, or use another --out"
        ) from error


def read(path: Path) -> list[dict[str, Any]]:
    """Read all rows. Raises StorageError, MissingPrerequisite."""
    require()
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise StorageError(f"{path} cannot be read: {error}", "make the data set again") from None
    return rows


def _schema(columns: Sequence[str]) -> "pyarrow.Schema":
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    types = {
        "messages": pa.list_(message),
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "number": pa.float64(),
        "numbers": pa.list_(pa.float64()),
        "count": pa.int64(),
        "flag": pa.bool_(),
    }
    kinds = {column: kind for kind, names in _COLUMNS.items() for column in names}
    return pa.schema([(column, types[kinds[column]]) for column in columns])
