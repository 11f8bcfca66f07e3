"""The built-in suite: `kernelbench/tasks/level1/softmax.py` is the task `builtin:level1/softmax`.

Tasks of one subject are in a folder that is no level: `builtin:lowprec/linear_fp8`.
"""

import tomllib
from pathlib import Path

from kernelwright.kernelbench.sources.entry import Entry, level_folders

ROOT = Path(__file__).parent.parent / "tasks"


def entries(root: Path | None = None) -> list[Entry]:
    levels = level_folders(root or ROOT)
    known = {folder for _, folder in levels}
    subjects = [(0, folder) for folder in sorted((root or ROOT).glob("[!_.]*/")) if folder not in known]
    return [
        Entry(f"builtin:{folder.name}/{path.stem}", level, path.stem, path=path)
        for level, folder in [*levels, *subjects]
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
