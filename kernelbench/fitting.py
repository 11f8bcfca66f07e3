"""Tasks that fit on a GPU, and what takes the memory: by the evaluator's own calculation, without a GPU."""

from collections.abc import Iterator, Sequence

from pydantic import Field, PositiveInt

from kernelwright.kernelbench.evaluator.memory.budget import CallSizes, DeviceBudget, on_device
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker, WorkerDied, WorkerTimeout
from kernelwright.kernelbench.evaluator.protocol import BASELINES, Protocol
from kernelwright.kernelbench.evaluator.session import CALLS_ON_GPU
from kernelwright.kernelbench.evaluator.sessions import Sessions
from kernelwright.kernelbench.records import Record, Task

_SIZES = "kernelwright.kernelbench.evaluator.memory.sizes"  # imports torch, as this process does not
# Of what a GPU is sold with: CUDA gives programs 79.1 GiB of an H100's 80, 139.8 of an H200's 141.
_USABLE = 0.989
GIB = 1 << 30


class Sizes(Record):
    """`budget.CallSizes`, as a worker reports them."""

    inputs: int
    outputs: tuple[int, ...]
    weights: int
    live: int
    largest: int
    widening: PositiveInt
    slices: PositiveInt


class Fit(Record):
    """One task: the sizes of a call, the calls of a block, bytes by part; or why nothing is known."""

    task: str
    sizes: Sizes | None = None
    calls: int = 0
    parts: dict[str, int] = Field(default_factory=dict)
    fits: bool = False
    error: str = ""

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())


def usable_bytes(gigabytes: float) -> int:
    """Bytes that programs may take on a GPU that is sold with so many gigabytes."""
    return int(_USABLE * gigabytes * GIB)


def fitting(sessions: Sessions, tasks: Sequence[Task], memory_bytes: int) -> Iterator[Fit]:
    """Say of one task after the other whether candidate, eager and torch.compile fit in so much memory."""
    sessions.pool.import_first([_SIZES])  # in the sandbox it could not be read
    worker: Worker | None = None
    try:
        for task in tasks:
            if worker is None or worker.closed:
                worker = sessions.pool.start("oracle", f"{_SIZES}:serve")
            yield _fit(worker, task, sessions.limits.compile_s, memory_bytes)
    finally:
        if worker is not None:
            worker.close()


def _fit(worker: Worker, task: Task, within_s: float, memory_bytes: int) -> Fit:
    try:
        answer = worker.ask({"do": "size", "source": task.source, "precision": str(task.precision)}, within_s)
    except (WorkerDied, WorkerTimeout) as error:
        worker.close()
        answer = {"error": str(error)}
    if "error" in answer:
        return Fit(task=task.id, error=str(answer["error"]).partition("\n")[0])
    sizes = Sizes(**answer)
    budget = budget_of(sizes, memory_bytes)
    return Fit(task=task.id, sizes=sizes, calls=budget.calls, parts=budget.parts, fits=budget.fits)


def budget_of(sizes: Sizes, memory_bytes: int) -> DeviceBudget:
    """Return the budget of a task whose calls are short enough for as many as fit."""
    most = Protocol().max_calls * CALLS_ON_GPU
    return on_device(CallSizes(**sizes.model_dump()), memory_bytes, 1 + len(BASELINES), most)


PARTS = ("processes", "inputs", "outputs", "weights", "reference")


def fit_header() -> tuple[str, ...]:
    """Columns of `fit_row`; sizes are in GiB."""
    return ("task", "call: in", "out", "calls", *PARTS, "total", "candidate, eager and compile")


def fit_row(fit: Fit, memory_bytes: int) -> list[str]:
    if fit.sizes is None:
        return [fit.task, *[""] * (len(PARTS) + 4), reason(fit, memory_bytes)]
    sizes = [fit.sizes.inputs, sum(fit.sizes.outputs)]
    parts = [*(fit.parts[part] for part in PARTS), fit.total_bytes]
    in_gib, parts_in_gib = ([f"{size / GIB:.2f}" for size in some] for some in (sizes, parts))
    return [fit.task, *in_gib, str(fit.calls), *parts_in_gib, reason(fit, memory_bytes)]


def reason(fit: Fit, memory_bytes: int) -> str:
    """Say whether a task fits, and if not what takes most."""
    if fit.error:
        return f"unknown: {fit.error}"
    if fit.fits:
        return "fits"
    part = max(fit.parts, key=lambda name: fit.parts[name])
    over = (fit.total_bytes - memory_bytes) / GIB
    return f"{over:.1f} GiB too many, {fit.parts[part] / GIB:.1f} of all for {part}"
