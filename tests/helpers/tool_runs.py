"""Runs whose files come from outside, with the pool of `conversing`, which believes what a file says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.tool.run import ExternalRun
from kernelwright.kernelbench.options import build
from kernelwright.results.store.database import NoRunError, RunDatabase
from kernelwright.results.store.folder import RunFolder
from tests.helpers.anywhere import TARGET
from tests.helpers.conversing import TASK, Pool


@contextmanager
def tool_run(folder: Path, pool: Pool | None = None, **options: Any) -> Iterator[ExternalRun]:
    """Open the run of `TASK` in a folder, new or begun; `say` of its lines is `run.lines`."""
    config = build(RunConfig, {"seed": "none", **options})
    try:
        database = RunDatabase.open(folder / "run.db")
    except NoRunError:
        folder.mkdir(exist_ok=True)
        database = RunDatabase.create(
            folder / "run.db", settings=config.record(), target=TARGET, tasks=[TASK]
        )
    lines: list[str] = []
    with database:
        run = ExternalRun(config, RunFolder(folder), database, pool or Pool(), lines.append)  # type: ignore[arg-type]
        run.lines = lines  # type: ignore[attr-defined]
        yield run
