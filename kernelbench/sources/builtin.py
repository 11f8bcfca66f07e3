"""The built-in suite: `kernelbench/tasks/level1/softmax.py` is the task `builtin:level1/softmax`."""

import tomllib
from pathlib import Path

from kernelwright.kernelbench.sources.entry import Entry, level_folders

ROOT = Path(__file__).parent.parent / "tasks"


def entries(root: Path | None = None) -> list[Entry]:
    return [
        Entry(f"builtin:level{level}/{path.stem}", level, path.stem, path=path)
        for level, folder in level_folders(root or ROOT)
        for path in sorted(folder.glob("[!_.]*.py"))
    ]


def gpu_sizes() -> dict[str, dict[str, str]]:
    """Return the constants that tasks have on a GPU, by their ids: `{"batch_size": "16384"}`."""
    tables = tomllib.loads((ROOT / "gpu_sizes.toml").read_text())
    return {
        f"builtin:{level}/{name}": {constant: repr(value) for constant, value in sizes.items()}
        for level, table in tables.items()
        for name, sizes in table.items()
    }
