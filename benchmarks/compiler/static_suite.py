"""The builtin coder's GPU kernels for the suite at its GPU sizes, built for an H100, with predicted times.

    python -m benchmarks static-suite [LEVEL...]

Every task is rendered in CUDA C++ and Triton, its kernels are built for sm_90, and the cost model
(`kernelbench.chips.cost_model`) predicts how long a call takes, beside the time of the task's bytes alone.
Nothing is run: tensors are zeros that take no memory. Kernels are built outside the sandbox, for the builtin
coder wrote them.

Candidates and rows are kept in runs/bench-static-suite; delete rows.jsonl to predict again what is rendered
there, or the folder to begin again. Machine: CPU with the `cuda` extra.
Time: 40 minutes (estimate). Writes static/suite_sm90.md.
"""

import json
import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.compiler.static_call import BuiltTask, build
from benchmarks.publishing import STATIC, log, made_by, table
from kernelwright.agent.builtin.coder import LANGUAGES, BuiltinCoder
from kernelwright.agent.builtin.ir.graph import Graph
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.chips.cards import card_of
from kernelwright.kernelbench.chips.cost_model import (
    DRAM_SHARE,
    STATED_ERROR,
    TENSOR_SHARE,
    predicted_call,
)
from kernelwright.kernelbench.chips.occupancy import occupancy
from kernelwright.kernelbench.errors import TaskError
from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.machine import cache_folder, fingerprint, physical_threads
from kernelwright.kernelbench.records import Task
from kernelwright.results.store.folder import write_atomically

_CHIP = "sm_90"
_LANGUAGES = ("cuda", "triton")
_FOLDER = Path("runs") / "bench-static-suite"
_ROWS = _FOLDER / "rows.jsonl"  # a line for each task and language
_LIMIT_S = 240.0
_NONE = "—"
_WORK_US = 5.0  # of a kernel, from which it counts as having work for all multiprocessors
_HEADER = (
    "task", "predicted µs", "bytes alone µs", "ratio", "longest kernel", "bound by", "blocks", "waves",
    "occupancy", "registers", "local", "tensor", "torch",
)  # fmt: skip


@dataclass(frozen=True)
class SuiteRow:
    """A task in a language. The figures of a kernel are those of the longest.

    `floor_us`: of the bytes alone; `products_us`: of the FLOPs at the peak; `torch`: share of the predicted
    time that torch's calls have. `problem`: why there are no figures.
    """

    task: str
    language: str
    problem: str = ""
    predicted_us: float = 0.0
    floor_us: float = 0.0
    products_us: float = 0.0
    torch: float = 0.0
    kernel: str = ""
    kernel_us: float = 0.0
    bound: str = ""
    blocks: int = 0
    waves: float = 0.0
    busy: float = 0.0
    occupancy: float = 0.0
    registers: int = 0
    local: int = 0  # instructions that access local memory, of all kernels
    tensor: int = 0  # instructions of tensor cores, of all kernels
    kernels: int = 0
    launches: int = 0
    by_data: float = 0.0  # share of its accesses whose addresses are not known

    @property
    def ratio(self) -> float:
        return self.predicted_us / self.floor_us

    @property
    def memory_bound(self) -> bool:
        """True of a task whose bytes take longer than its products."""
        return self.floor_us >= self.products_us


def run(
    levels: Annotated[list[int] | None, typer.Argument(help="Levels 1, 2, 3; all by default.")] = None,
) -> None:
    kept = [SuiteRow(**json.loads(line)) for line in _ROWS.read_text().splitlines()] if _ROWS.exists() else []
    rows = {(row.task, row.language): row for row in kept}
    names = [f"builtin:level{level}/*" for level in levels or (1, 2, 3)]
    tasks = sources.resolve(names, device="cuda:0")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with Referee.start(cache=cache_folder()) as evaluator, _ROWS.open("a") as file:
        for number, task in enumerate(tasks, 1):
            missing = [each for each in _LANGUAGES if (task.id, each) not in rows]
            coder = partial(_traced_once, {}, partial(trace, evaluator.sessions.pool)) if missing else None
            for language in missing:
                assert coder is not None
                row = _row(task, language, BuiltinCoder(coder, language))
                rows[task.id, language] = row
                file.write(json.dumps(asdict(row)) + "\n")
                file.flush()
                log(f"{number}/{len(tasks)}  {' | '.join([language, *_cells(row)])}")
            write_atomically(STATIC / "suite_sm90.md", "\n".join(_page(list(rows.values()), len(tasks))))


def _traced_once(known: dict[str, Graph | Untraceable], ask: partial[Graph], task: Task) -> Graph:
    """Return the graph of a task, which is traced once for all languages. Raises Untraceable, TaskError."""
    if task.id not in known:
        try:
            known[task.id] = ask(task)
        except Untraceable as error:
            known[task.id] = error
    found = known[task.id]
    if isinstance(found, Untraceable):
        raise found
    return found


def _row(task: Task, language: str, coder: BuiltinCoder) -> SuiteRow:
    assert language in LANGUAGES
    card = card_of(_CHIP)
    assert card is not None and card.bytes_s is not None
    file = _FOLDER / f"{task.id.replace(':', '-').replace('/', '-')}-{language}.py"
    try:
        if not file.exists():
            write_atomically(file, coder.propose(task, [], None).source)
    except TaskError as error:
        return SuiteRow(task.id, language, problem=error.message)
    found = built_apart(file.read_text(), task)
    if isinstance(found, str):
        return SuiteRow(task.id, language, problem=found)
    call = predicted_call(found.kernels, found.torch_calls, card)
    if call.left:
        return SuiteRow(task.id, language, problem=call.left[0])
    floor_us = found.moved_bytes / (DRAM_SHARE * card.bytes_s) * 1e6
    products_us = sum(
        flops / (TENSOR_SHARE * card.peaks.get(precision, card.peaks["fp32"])) * 1e6
        for precision, flops in found.flops.items()
    )
    row = SuiteRow(
        task.id,
        language,
        predicted_us=call.time_us,
        floor_us=floor_us,
        products_us=products_us,
        torch=call.torch_us / call.time_us,
        local=sum(kernel.whole.spills for kernel in found.kernels),
        tensor=sum(kernel.whole.tensor for kernel in found.kernels),
        kernels=len(found.kernels),
        launches=sum(kernel.launches for kernel in found.kernels),
    )
    if not call.launches:
        return row
    longest, predicted = max(call.launches, key=lambda each: each[0].launches * each[1].time_us)
    x, y, z = longest.grid
    held = occupancy(_CHIP, longest.threads, longest.registers, longest.shared_bytes)
    figures = {
        "kernel": longest.name,
        "kernel_us": longest.launches * predicted.time_us,
        "bound": predicted.bound,
        "blocks": x * y * z,
        "waves": predicted.waves,
        "busy": predicted.busy,
        "occupancy": held.share,
        "registers": longest.registers,
        "by_data": longest.trace.by_data if longest.trace is not None else 0.0,
    }
    return SuiteRow(**{**asdict(row), **figures})


def built_apart(source: str, task: Task, chip: str = _CHIP) -> BuiltTask | str:
    """Build in a process of its own, or say why that failed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.compiler.static_call"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, source, task.source, chip))
    process.start()
    there.close()
    try:  # whatever it is that ended the process is its row
        if not here.poll(_LIMIT_S):
            return f"not built within {_LIMIT_S:g} s"
        found: BuiltTask | str = here.recv()
        return found
    except EOFError:
        return "the process that built it ended"
    finally:
        process.kill()
        process.join()


def _answer(channel: Connection, *words: str) -> None:
    try:
        channel.send(build(*words))
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its row
        channel.send(f"{type(error).__name__}: {error}"[:300])


def _page(rows: Sequence[SuiteRow], tasks: int) -> list[str]:
    card = card_of(_CHIP)
    assert card is not None and card.bytes_s is not None
    machine = fingerprint(physical_threads())
    lines = [
        "# The builtin coder's GPU kernels for the suite, predicted for an H100",
        "",
        f"{made_by('static-suite', machine)} Nothing here has run on a GPU: times are predicted by a model "
        f"whose error was within a factor of {STATED_ERROR:g} where it was checked ([how](cost_model.md)).",
        "",
        f'For {card.name}: {card.multiprocessors} SMs, {card.bytes_s / 1e12:g} TB/s. "Bytes alone" are '
        f"inputs, weights and outputs, once each, at {DRAM_SHARE:.0%} of that bandwidth. Sizes: "
        "gpu_sizes.toml. The ratio is predicted time / bytes alone; of tasks whose products take longer than "
        "their bytes it is not counted below. "
        f"{len({row.task for row in rows})} of {tasks} tasks were built.",
        "",
        *table(("", *_LANGUAGES), [[name, *values] for name, values in _side_by_side(rows)]),
        "",
    ]
    for language in _LANGUAGES:
        own = sorted(
            (row for row in rows if row.language == language and not row.problem and row.kernels),
            key=lambda row: -row.ratio,
        )
        lines += [f"## {language}", "", *table(_HEADER, [_cells(row) for row in own]), ""]
        left = [row for row in rows if row.language == language and not row.problem and not row.kernels]
        lines += [f"All of it left to torch: {', '.join(row.task for row in left)}.", ""] if left else []
        for row in rows:
            if row.language == language and row.problem:
                lines += [f"- {row.task}: {row.problem}"]
        lines += [""]
    return lines


def _side_by_side(rows: Sequence[SuiteRow]) -> list[tuple[str, list[str]]]:
    columns = [_summary([row for row in rows if row.language == language]) for language in _LANGUAGES]
    return [(name, [column[name] for column in columns]) for name in columns[0]]


def _summary(rows: Sequence[SuiteRow]) -> dict[str, str]:
    own = [row for row in rows if not row.problem and row.kernels]
    bound = [row for row in own if row.memory_bound]
    ratios = sorted(row.ratio for row in bound)
    worked = [row for row in own if row.kernel_us > _WORK_US]
    return {
        "tasks with kernels of their own, of all": f"{len(own)} of {len(rows)}",
        "memory-bound ones of these": str(len(bound)),
        "median ratio": f"{statistics.median(ratios):.2f}" if ratios else _NONE,
        "95th percentile": f"{ratios[int(0.95 * (len(ratios) - 1))]:.2f}" if ratios else _NONE,
        "ratio of at most 1.3": _share(sum(ratio <= 1.3 for ratio in ratios), len(ratios)),
        "ratio of at most 2": _share(sum(ratio <= 2 for ratio in ratios), len(ratios)),
        "all: longest kernel has fewer blocks than SMs": _share(
            sum(row.busy < 1 for row in worked), len(worked)
        ),
        "all: longest kernel is less than one wave": _share(
            sum(row.waves < 1 for row in worked), len(worked)
        ),
        "all: accesses of local memory": _share(sum(row.local > 0 for row in own), len(own)),
        "all: products on tensor cores": _share(sum(row.tensor > 0 for row in own), len(own)),
    }


def _share(count: int, of: int) -> str:
    return f"{count} ({count / of:.0%})" if of else _NONE


def _cells(row: SuiteRow) -> list[str]:
    if row.problem:
        return [row.task, row.problem, *[_NONE] * 11]
    return [
        row.task.removeprefix("builtin:"),
        f"{row.predicted_us:.0f}",
        f"{row.floor_us:.0f}",
        f"{row.ratio:.2f}" + ("" if row.memory_bound else " (products)"),
        f"`{row.kernel}`" if row.kernel else _NONE,
        row.bound,
        str(row.blocks),
        f"{row.waves:.2g}",
        f"{row.occupancy:.0%}",
        str(row.registers),
        str(row.local),
        str(row.tensor),
        f"{row.torch:.0%}",
    ]
