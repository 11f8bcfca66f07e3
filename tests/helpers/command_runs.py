"""Runs of a command as the coder, with the pool of `conversing`, which believes what a file says.

python -m tests.helpers.command_runs FOLDER COMMAND   # a process that a test can kill
"""

import sys
from pathlib import Path
from typing import Any

from kernelwright.agent.display.progress import RunProgress
from kernelwright.agent.options.run import RunConfig
from kernelwright.agent.run import Run
from kernelwright.kernelbench.options import build
from kernelwright.kernelbench.records import Task
from tests.helpers.conversing import TASK, Pool, file, opened


class Said(RunProgress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def execute(
    folder: Path, pool: Pool, command: str, said: Said | None = None, task: Task = TASK, **options: Any
) -> bool:
    """Run a task with a command, or go on with it; whether it could be done."""
    asked = {"coder": "command", "command": command, "rounds": 9, "seed": "none"}
    config = build(RunConfig, asked | options)
    config = config.model_copy(update={"search": config.search.for_coder("command")})
    folder.mkdir(exist_ok=True)
    with opened(folder) as database:
        database.add_task(task)
        run = Run(config, database, pool, progress=said or Said(), workspaces=folder / "workspaces")  # type: ignore[arg-type]
        return run.execute()


def writing(says: float | str, name: str = "kernel.py") -> str:
    """A command that writes a file with this speedup."""
    return f"cat > {name} <<'END'\n{file(says)}END\n"


if __name__ == "__main__":
    execute(Path(sys.argv[1]), Pool(0.2, Path(sys.argv[1]) / "evaluated"), sys.argv[2])
