"""The formats, and which of them is at a path."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources.formats.backend_bench import BackendBenchFormat
from kernelwright.kernelbench.sources.formats.data_sets import CudaAgentOpsFormat, KernelBookFormat
from kernelwright.kernelbench.sources.formats.flashinfer import FlashInferFormat
from kernelwright.kernelbench.sources.formats.gpu_mode import GpuModeFormat
from kernelwright.kernelbench.sources.formats.interface import TaskFile, TaskFormat
from kernelwright.kernelbench.sources.formats.kernelbench_hard import KernelBenchHardFormat
from kernelwright.kernelbench.sources.formats.multi_kernel_bench import MultiKernelBenchFormat
from kernelwright.kernelbench.sources.formats.robust_kbench import RobustKbenchFormat
from kernelwright.kernelbench.sources.formats.triton_bench import TritonBenchFormat
from kernelwright.kernelbench.sources.formats.triton_bench_operators import TritonBenchOperatorsFormat

FORMATS: tuple[TaskFormat, ...] = (
    FlashInferFormat(),
    GpuModeFormat(),
    RobustKbenchFormat(),
    KernelBenchHardFormat(),
    MultiKernelBenchFormat(),
    KernelBookFormat(),
    CudaAgentOpsFormat(),
    BackendBenchFormat(),  # which takes every other Parquet file
    TritonBenchFormat(),
    TritonBenchOperatorsFormat(),
)
_DEPTH = 3  # levels of folders below one that is no task itself
_log = logging.getLogger("kernelwright")


def task_files(path: Path, sizes: Mapping[str, str] | None = None) -> list[TaskFile]:
    """Return the tasks of other formats at a path, or in the folders below it; none if there are none.

    Of several, those that cannot be read are left out and logged, as is what a task leaves out of its files.
    Raises UsageError where none can be read.
    """
    places = list(_places(path))
    found: list[TaskFile] = []
    failed: UsageError | None = None
    for kind, place in places:
        try:
            file = kind.task(place, sizes or {})
        except UsageError as error:
            if len(places) == 1:
                raise
            failed = failed or error
            _log.warning("left out: %s", error)
            continue
        found.append(file)
        for note in file.notes:
            _log.warning("%s: %s", file.name, note)
    if failed is not None and not found:
        raise failed
    return found


def candidate_text(path: Path) -> str | None:
    """Return a kernel of another format as a file with ModelNew; None if it is none. Raises UsageError."""
    kind = next((each for each in FORMATS if each.holds_candidate(path)), None)
    return None if kind is None else kind.candidate(path)


def _places(path: Path, depth: int = _DEPTH) -> Iterator[tuple[TaskFormat, Path]]:
    for kind in FORMATS:
        if tasks := kind.task_paths(path):
            yield from ((kind, task) for task in tasks)
            return
    if path.is_dir() and depth:
        for folder in _folders(path):
            yield from _places(folder, depth - 1)


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    except OSError:
        return []
