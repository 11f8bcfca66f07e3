"""Runs of every search with a model whose endpoint fails in all ways, killed with kill -9 and resumed.

    python -m benchmarks faults

Twelve small tasks: one fails, one is a library's, two have odd inputs. Half of the files that a scripted
model gives over HTTP are wrong, broken, endless or cheat; a quarter of its answers comes late, in pieces, in
strange forms or not at all. Each run has limits, and is killed four times. Then everything that it has
recorded is held against what the endpoint knows (`benchmarks/agent/run_audit.py`). Timings are brief, as
speedups do not matter here. What is done is in runs/bench-faults, from where a benchmark that was ended goes
on. Machine: CPU, any. Time: 50 minutes, on a busy one. Writes cpu/faults.md.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.agent.faulty_model import FaultyModel, broken
from benchmarks.agent.killed_runs import Kill, carried_out
from benchmarks.agent.run_audit import Audited
from benchmarks.publishing import CPU, log, made_by, table
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.llm.endpoint.fake_endpoint import FakeEndpoint
from kernelwright.agent.llm.endpoint.scripted_model import files_of
from kernelwright.agent.replay import differences
from kernelwright.agent.spending.budget import SpendingLimits
from kernelwright.agent.tracing import trace
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.evaluator import Limits
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import RunFolder, write_atomically
from kernelwright.results.summary import summarize

_FOLDER = Path("runs") / "bench-faults"
_TASKS = """
builtin:level1/softmax set batch_size=128 features=1024
builtin:level1/layer_norm set batch_size=256 features=512
builtin:level1/gelu set batch_size=128 features=1024
builtin:level1/cumsum set batch_size=128 features=1024
builtin:level1/matmul_square set size=512
builtin:level2/add_rms_norm set batch_size=2 tokens=64 features=1024
builtin:level2/group_norm_swish set batch_size=2 channels=64 height=32 width=32
builtin:level2/masked_softmax set batch_size=2 heads=4 queries=64 keys=256
builtin:level2/linear_int8_weight set batch_size=16 in_features=512 out_features=512
builtin:level2/cross_entropy_z_loss set tokens=64 vocabulary=2000
"""  # small, so that evaluations take seconds; two have odd inputs and one an odd weight
_FAILURE = "this reference fails on purpose"
_OWN_TASKS = {
    "fails": f"""
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        raise ValueError("{_FAILURE}")


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
""",
    "odd": """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(128, 256).t())  # not contiguous
        self.register_buffer("scale", torch.tensor(0.5))  # a scalar

    def forward(self, x, rows, mask):
        return torch.sigmoid(x[rows] * self.scale).masked_fill(mask, 0.0) * self.weight


def get_inputs():
    mask = torch.rand(256, 256) < 0.1
    return [torch.randn(128, 64).t(), torch.randint(64, (256,)), mask[:, ::2]]


def get_init_inputs():
    return []
""",
}
_PRICES = (2.0, 8.0)
_REPLY_TOKENS = 8192
_TASKS_AT_ONCE = 4
_SILENCE_S = 6.0
_HEADER = (
    *("search", "processes, killed during", "tasks", "requests", "with a fault", "recorded, of a limit"),
    *("given out", "answers lost at kills", "evaluations, of a limit", "attempts", "checks that fail"),
    "minutes",
)
_NO_SEED = ("--seed", "none", "--all-tasks")


@dataclass(frozen=True)
class FaultySetup:
    """A search, the limits of its run, and the parameter that its endpoint refuses."""

    options: tuple[str, ...]
    limits: SpendingLimits
    rounds: int
    refuses: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        limits = {
            "usd": self.limits.usd,
            "evaluations": self.limits.evaluations,
            "minutes": self.limits.minutes,
        }
        given = [(f"--max-{name}", f"{value:g}") for name, value in limits.items() if value is not None]
        return (*self.options, "--rounds", str(self.rounds), *(word for pair in given for word in pair))


_SETUPS = {
    "refine": FaultySetup((), SpendingLimits(usd=1.2, minutes=60), 3, "temperature"),
    "best-of-n": FaultySetup(_NO_SEED, SpendingLimits(usd=0.8, evaluations=45), 3, "max_tokens"),
    "beam": FaultySetup(
        (*_NO_SEED, "--beam-width", "2"), SpendingLimits(usd=0.7, evaluations=60), 4, "response_format"
    ),
    "evolve": FaultySetup(("--islands", "2"), SpendingLimits(usd=2.0, evaluations=70), 4, "reasoning_effort"),
    "agent": FaultySetup((), SpendingLimits(usd=2.0, evaluations=80), 3, "stream_options"),
}


def run(
    search: Annotated[list[str] | None, typer.Option(help="Searches; all by default.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of answers, faults and kills.")] = 0,
    kills: Annotated[int, typer.Option(help="Kills of each run.")] = 4,
    rate: Annotated[float, typer.Option(help="Share of requests with a fault.")] = 0.25,
) -> None:
    folder = _FOLDER / f"{seed}-{kills}-{rate:g}"
    words, files = written(folder)
    found = []
    for name in search or list(_SETUPS):
        found.append(audited_run(name, folder, words, files, seed, kills, rate))
    if not search:
        _publish(found)


def written(folder: Path, tasks: str = _TASKS) -> tuple[list[str], dict[str, dict[str, list[str]]]]:
    """Return the names of the tasks, whose files are written, and the model's files by task and kind."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [str(folder / f"{name}.py") for name in _OWN_TASKS]
    for path, source in zip(names, _OWN_TASKS.values(), strict=True):
        Path(path).write_text(source)
    (folder / "tasks.txt").write_text(tasks)
    names = [str(folder / "tasks.txt"), *names]
    kept = folder / "files.json"
    if not kept.exists():
        files = {}
        with WorkerPool(threads=1, cache=cache_folder(), limits=Limits()) as pool:
            for task in sources.resolve(names):
                try:
                    files[task.id] = broken(files_of(task, trace(pool, task)))
                except Untraceable as error:
                    log(f"{task.id}: {error}")
                    files[task.id] = broken([])
        write_atomically(kept, json.dumps(files))
    return names, json.loads(kept.read_text())


def audited_run(
    name: str,
    folder: Path,
    tasks: Sequence[str],
    files: Mapping[str, Mapping[str, Sequence[str]]],
    seed: int,
    kills: int,
    rate: float,
) -> "AuditedSearch":
    """Make the run of a search, or finish it, and audit it."""
    setup, out = _SETUPS[name], folder / name
    model = FaultyModel(files, folder / f"{name}.jsonl", seed, rate, setup.refuses, _SILENCE_S)
    words = [
        *tasks, "--coder", "llm", "--model", "faulty", "--search", name, *setup.words, *_WORDS,
        "--price", "/".join(f"{price:g}" for price in _PRICES),
        "--tasks-at-once", str(_TASKS_AT_ONCE), "--workers", "2",
        "--silence-limit", f"{_SILENCE_S:g}", "--reply-tokens", str(_REPLY_TOKENS),
    ]  # fmt: skip
    planned = Kill.some(kills, seed + list(_SETUPS).index(name))
    model.outages[kills] = range(20, 32)
    with FakeEndpoint().serving() as endpoint:
        endpoint.script = model
        environment = {**os.environ, "OPENAI_BASE_URL": endpoint.base_url}
        environment.pop("OPENAI_API_KEY", None)
        done = carried_out(words, environment, out, model, planned, folder / f"{name}.json")
    audited = Audited(
        out, model.given, done, setup.limits, setup.rounds, _PRICES,
        _TASKS_AT_ONCE * max(2, setup.rounds), "file:fails", _FAILURE,
    )  # fmt: skip
    faults = [*audited.faults(), *_replayed(folder, name)]
    for fault in faults:
        log(f"{name}: {fault}")
    return AuditedSearch(name, setup, audited, tuple(faults))


# Temperature and effort are there to be refused.
_WORDS = (
    "--temperature", "0.7", "--reasoning-effort", "high", "--effort", "quick", "--baseline", "eager",
    "--profilers", "quick", "--retry-limit", "10", "--call-limit", "60",
)  # fmt: skip


def _replayed(folder: Path, name: str) -> list[str]:
    """Return what is wrong with the replay of a run, which is made unless it is there."""
    replay = folder / f"{name}-replay"
    if RunFolder(replay).holds_run:
        with (
            RunDatabase.open(folder / name, read_only=True) as recorded,
            RunDatabase.open(replay) as replayed,
        ):
            if not differences(recorded, replayed):
                return []
    shutil.rmtree(replay, ignore_errors=True)
    command = ["run", "--replay", str(folder / name), "--out", str(replay)]
    found = subprocess.run(
        [sys.executable, "-m", "kernelwright", *command], capture_output=True, text=True, check=False
    )
    return [] if found.returncode == 0 else [f"the replay decides otherwise: {found.stderr[-500:]}"]


@dataclass(frozen=True)
class AuditedSearch:
    """A run and what is wrong with it."""

    search: str
    setup: FaultySetup
    audited: Audited
    faults: tuple[str, ...]

    @property
    def row(self) -> tuple[str, ...]:
        audited = self.audited
        with RunDatabase.open(audited.folder, read_only=True) as database:
            summary = summarize(database)
        failed = sum("the task fails" in (entry.stop_reason or "") for entry in audited.tasks)
        said = Counter[str](summary.outcomes)
        said["reference fails"] = failed
        said["not_tried"] -= failed
        given = [each for each in audited.given if each.role != "preflight"]
        spoilt = sum(bool(each.fault) for each in audited.given)
        limits, epochs = self.setup.limits, audited.run.epochs
        least, most = (
            audited.usd(*(sum(tokens[i] for tokens in each) for i in (0, 1)))
            for each in ([one.least for one in audited.given], [one.most for one in audited.given])
        )
        killed = Counter(epoch.killed for epoch in epochs if epoch.killed)
        return (
            self.search,
            f"{len(epochs)}: {', '.join(f'{number} × {name}' for name, number in killed.items())}",
            ", ".join(f"{number} {_IN_WORDS.get(name, name)}" for name, number in said.items() if number),
            str(len(given)),
            str(spoilt),
            f"${summary.usd:.3f} of ${limits.usd:g}",
            f"${least:.3f} to ${most:.3f}",
            str(audited.lost),
            f"{audited.evaluations}" + (f" of {limits.evaluations}" if limits.evaluations else ""),
            str(sum(map(len, audited.attempts.values()))),
            str(len(self.faults)),
            f"{sum(epoch.seconds for epoch in epochs) / 60:.0f}",
        )


_IN_WORDS = {
    "even": "not distinguishable",
    "reference": "slower",
    "not_own": "without kernels of its own",
    "not_correct": "without a right kernel",
    "not_tried": "without an attempt",
}
_CHECKED = (
    "Checked are, by [run_audit.py](../../../benchmarks/agent/run_audit.py):",
    "",
    "- why tasks ended, and verdicts, against what was done to each file;",
    "- tokens and dollars of each prompt, and that no answer that was recorded is asked for again;",
    "- limits; numbers, parents and answers of all attempts; SQLite's integrity check;",
    "- the summary and the files of winners; and that a replay decides the same.",
    "",
    "What was given out is a range, since nobody counts answers that break off, or come without a usage.",
)


def _publish(found: Sequence[AuditedSearch]) -> None:
    with RunDatabase.open(found[0].audited.folder, read_only=True) as database:
        machine = database.run.target.fingerprint
    faults = Counter(each.fault for one in found for each in one.audited.given if each.fault)
    reasons = Counter(
        re.sub(r"[\d.]+", "N", reason.partition(": ")[0])
        for one in found
        for reason in one.audited.reasons.values()
    )
    verdicts = sum((one.audited.verdicts for one in found), Counter[tuple[str, str]]())
    wrong = [f"- {one.search}: {fault}" for one in found for fault in one.faults]
    lines = [
        "# Every search with an endpoint that fails, killed with kill -9 and resumed",
        "",
        made_by("faults", machine),
        "",
        *table(_HEADER, [one.row for one in found]),
        "",
        *(wrong or ["No check fails: what each run has recorded is held against the log of its endpoint."]),
        "",
        *_CHECKED,
        "",
        *table(("why tasks ended", "tasks"), [(reason, str(n)) for reason, n in reasons.most_common()]),
        "",
        *table(("fault of the endpoint", "requests"), [(fault, str(n)) for fault, n in faults.most_common()]),
        "",
        *table(
            ("file that", "verdict", "attempts"),
            [(kind, verdict.replace("_", " "), str(n)) for (kind, verdict), n in sorted(verdicts.items())],
        ),
    ]
    write_atomically(CPU / "faults.md", "\n".join(lines) + "\n")
