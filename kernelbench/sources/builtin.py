"""The built-in suite: `kernelbench/tasks/level1/softmax.py` is the task `builtin:level1/softmax`."""

from pathlib import Path

from kernelwright.kernelbench.sources.entry import Entry, level_folders

ROOT = Path(__file__).parent.parent / "tasks"


def entries(root: Path | None = None) -> list[Entry]:
    return [
        Entry(f"builtin:level{level}/{path.stem}", level, path.stem, path=path)
        for level, folder in level_folders(root or ROOT)
        for path in sorted(folder.glob("[!_.]*.py"))
    ]
