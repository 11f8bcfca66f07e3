"""`kernelwright report`: prints a run. The front door registers it."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kernelbench.errors import StorageError
from results.database import RunDatabase
from results.folder import write_atomically
from results.formats import TABLE_WIDTH, Format, render, table
from results.report import Report


def report(
    run: Annotated[str, typer.Argument(help="A run folder or a database URL.", metavar="RUN")],
    format: Annotated[Format, typer.Option(help="How to show it.")] = Format.table,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of the screen.")] = None,
) -> None:
    """Shows what a run achieved."""
    with RunDatabase.open(run, read_only=True) as database:
        content = Report.read(database)
    if output is not None:
        try:
            write_atomically(output, render(content, format))
        except OSError as error:
            raise StorageError(
                f"{output} cannot be written ({error.strerror or error})", "choose another --output"
            ) from error
    elif format == Format.table:
        console = Console()
        Console(width=None if console.is_terminal else TABLE_WIDTH).print(table(content))
    else:
        sys.stdout.write(render(content, format))
