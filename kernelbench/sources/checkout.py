"""A checkout of KernelBench (github.com/ScalingIntelligence/KernelBench), read as data.

Its tasks are `KernelBench/level2/40_Matmul_Scaling_ResidualAdd.py` and so on; that one is `kernelbench:2/40`.
Upstream's Python package is never imported: it has the same name as ours.
"""

import os
import re
from pathlib import Path

from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.sources.entry import Entry, level_folders

VARIABLE = "KERNELBENCH_DIR"
FIX = (
    "run `git clone https://github.com/ScalingIntelligence/KernelBench` "
    f"and pass --kernelbench-dir KernelBench (or set {VARIABLE})"
)


def known(kernelbench_dir: Path | None) -> Path | None:
    """Return the folder given, else the one the environment names, else None."""
    if kernelbench_dir is not None:
        return kernelbench_dir
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else None


def find(kernelbench_dir: Path | None) -> Path:
    """Return the folder that holds `level1` …, given the checkout or that folder.

    Raises `MissingPrerequisite` if there is none.
    """
    folder = known(kernelbench_dir)
    if folder is None:
        raise MissingPrerequisite("no KernelBench checkout is given", FIX)
    if not folder.is_dir():
        raise MissingPrerequisite(f"the KernelBench checkout {folder} does not exist", FIX)
    for root in (folder / "KernelBench", folder):
        if level_folders(root):
            return root
    raise MissingPrerequisite(
        f"{folder} is not a KernelBench checkout: it has no folder KernelBench/level1", FIX
    )


def entries(root: Path) -> list[Entry]:
    found = []
    for level, folder in level_folders(root):
        numbered = ((re.match(r"(\d+)_", path.name), path) for path in folder.glob("*.py"))
        for number, path in sorted((int(match[1]), path) for match, path in numbered if match):
            found.append(Entry(f"kernelbench:{level}/{number}", level, path.stem, number, path))
    return found
