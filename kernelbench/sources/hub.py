"""KernelBench as a Hugging Face data set: splits `level_1` … of rows `code`, `level`, `name`, `problem_id`.

The name may also be a local folder, either with data files (`data/level_1-00000-of-00001.parquet`)
or written by `DatasetDict.save_to_disk`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.sources.entry import Entry

COLUMNS = ("code", "name", "problem_id")


def split_name(rest: str) -> tuple[str, str]:
    """Split `ScalingIntelligence/KernelBench:2/40` into dataset and selector, which may be missing."""
    dataset, colon, selector = rest.rpartition(":")
    if not colon:
        return rest, ""
    return dataset, selector


def entries(dataset: str) -> list[Entry]:
    found = []
    for split, rows in _load(dataset).items():
        match = re.fullmatch(r"level_?(\d+)", split)
        if not match:
            continue
        level = int(match[1])
        missing = [column for column in COLUMNS if column not in rows.column_names]
        if missing:
            raise UsageError(
                f"the data set {dataset} has no column {missing[0]} in {split}",
                "use a data set of KernelBench's form, e.g. hf:ScalingIntelligence/KernelBench",
            )
        for row in sorted(rows, key=lambda row: int(row["problem_id"])):
            number = int(row["problem_id"])
            name = str(row["name"]).removesuffix(".py")
            name = name if name.startswith(f"{number}_") else f"{number}_{name}"
            found.append(Entry(f"hf:{dataset}:{level}/{number}", level, name, number, text=str(row["code"])))
    if not found:
        raise UsageError(
            f"the data set {dataset} has no splits level_1 …",
            "use a data set of KernelBench's form, e.g. hf:ScalingIntelligence/KernelBench",
        )
    return sorted(found, key=lambda entry: (entry.level, entry.number))


def _load(dataset: str) -> Mapping[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise MissingPrerequisite(
            "tasks from Hugging Face need the package datasets", "pip install 'kernelwright[rl]'"
        ) from error
    saved = Path(dataset, "dataset_dict.json").is_file()
    try:
        loaded = datasets.load_from_disk(dataset) if saved else datasets.load_dataset(dataset)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[:1]
        raise MissingPrerequisite(
            f"the data set {dataset} cannot be loaded: {' '.join(reason)}",
            "check its name and the network, or use a checkout: --kernelbench-dir and kernelbench:2/40",
        ) from error
    assert isinstance(loaded, Mapping)
    return loaded
