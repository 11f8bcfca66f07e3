"""Archives of published kernels, written by hand, and a pool that believes what a file says of itself.

python -m tests.helpers.auditing FOLDER ARCHIVE   # a process that a test can kill
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from kernelwright.agent.audit.audit import Audit
from kernelwright.agent.audit.plan import AuditPlan, TaskFinder
from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.evaluator import Measurement
from kernelwright.kernelbench.records import Candidate, Evaluation, Interval, Task
from kernelwright.results.archives.kernelbench_runs import AUDIT
from kernelwright.results.archives.reading import read_archive
from kernelwright.results.store.database import NoRunError, RunDatabase
from kernelwright.results.store.folder import RunFolder
from tests.helpers.anywhere import TARGET
from tests.helpers.conversing import Pool

EAGER_US = 1e6  # of every task, as `Pool` has it
REFERENCE = """
import torch
from torch import nn

rows = 64
columns = 128


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0 + 1.0


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
"""


def checkout(folder: Path, problems: int = 3) -> Path:
    """A checkout of KernelBench with these problems of level 1."""
    level = folder / "checkout" / "KernelBench" / "level1"
    level.mkdir(parents=True)
    for number in range(1, problems + 1):
        (level / f"{number}_Relu_{number}.py").write_text(f"{REFERENCE}\n# problem {number}\n")
    return folder / "checkout"


def run_folder(folder: Path, kernels: Mapping[tuple[int, int], str], claims: object = None) -> Path:
    """A run folder of kernels by problem and sample, with this eval_results.json."""
    path = folder / "their_run"
    path.mkdir()
    for (problem, sample), source in kernels.items():
        (path / f"level_1_problem_{problem}_sample_{sample}_kernel.py").write_text(source)
    if claims is not None:
        (path / "eval_results.json").write_text(json.dumps(claims))
    return path


def result(
    correct: bool, runtime: float = -1.0, reference: float = -1.0, sample: int = 0
) -> dict[str, object]:
    """An entry of eval_results.json, of a GPU."""
    return {
        "sample_id": sample, "compiled": True, "correctness": correct, "runtime": runtime, "ref_runtime": reference,
        "metadata": {"hardware": "NVIDIA A100", "device": "cuda:0"}, "runtime_stats": {},
    }  # fmt: skip


class GradingDouble(Pool):
    """`Pool` on a GPU; a file that is wrong in some ways has the evaluator fail."""

    slots = 2

    def __init__(self, seconds: float = 0.0, log: Path | None = None, device: str = "cuda:0") -> None:
        super().__init__(seconds, log)
        self.target = TARGET.model_copy(update={"device": device})

    def evaluate(
        self, task: Task, candidate: Candidate, measurement: Measurement = Measurement()
    ) -> Evaluation:
        found = super().evaluate(task, candidate, measurement).model_copy(update={"target": self.target})
        match found.reason:
            case "the machine":
                raise InfrastructureError("no memory is left", "wait")
            case "the task":
                raise TaskError("its inputs raise", "correct it")
            case "the evaluator":
                raise ZeroDivisionError("a defect")
        if found.timing is None:
            return found
        eager = found.timing.model_copy(
            update={"eager_us": Interval(median=EAGER_US, low=EAGER_US, high=EAGER_US)}
        )
        return found.model_copy(update={"timing": eager, "own_kernel_share": 0.9})


def begun(folder: Path, archive: Path, kernelbench_dir: Path | None = None) -> tuple[RunDatabase, AuditPlan]:
    """The audit in a folder, new or begun."""
    try:
        return RunDatabase.open(folder / "run.db"), AuditPlan.read(folder)
    except NoRunError:
        read = read_archive(archive)
        plan, tasks = AuditPlan.of(read, TaskFinder(read.suite, kernelbench_dir, "cpu"))
        with RunFolder.hold(folder) as held:
            plan.write(held)
        settings = {AUDIT: {}}
        return RunDatabase.create(folder / "run.db", settings=settings, target=TARGET, tasks=tasks), plan


def cuda_l1(path: Path, kernels: Mapping[int, str]) -> Path:
    """A file of CUDA-L1's form, of problems of level 1, each claimed to be twice as fast."""
    records = [
        {"level_id": 1, "task_id": task, "ref_code": REFERENCE, "custom_code": source, "score_default": 2.0}
        for task, source in kernels.items()
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    return path


if __name__ == "__main__":
    opened, planned = begun(Path(sys.argv[1]), Path(sys.argv[2]))
    with opened:
        Audit(opened, GradingDouble(0.2, Path(sys.argv[1]) / "evaluated"), planned, ("eager",)).execute()  # type: ignore[arg-type]
