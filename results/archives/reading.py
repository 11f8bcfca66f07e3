"""Reader of archives, by what lies at a path."""

from pathlib import Path

from kernelwright.kernelbench.errors import UsageError
from kernelwright.results.archives import cuda_l1, kernelbench_runs
from kernelwright.results.archives.records import Archive, PublishedKernel

KINDS = "a run folder of KernelBench, or a JSON file as of CUDA-L1"


def read_archive(path: Path) -> Archive:
    """Read the kernels of a folder or file. Raises UsageError if there are none to be read."""
    if not path.exists():
        raise UsageError(f"{path} does not exist", f"give {KINDS}")
    if path.is_dir():
        suite, (kernels, left_out) = "kernelbench", kernelbench_runs.read(path)
        what = "no file level_L_problem_P_sample_S_kernel.py"
    else:
        suite, (kernels, left_out) = "cuda-l1", cuda_l1.read(path)
        what = "no kernel"
    if not kernels:
        why = f" that can be read: {left_out[0]}" if left_out else ""
        raise UsageError(f"{path} holds {what}{why}", f"give {KINDS}")
    return Archive.model_validate(
        {
            "path": str(path),
            "suite": suite,
            "kernels": sorted(kernels, key=_order),
            "left_out": left_out,
        }
    )


def _order(kernel: PublishedKernel) -> tuple[int, int, int]:
    return kernel.level, kernel.problem, kernel.sample
