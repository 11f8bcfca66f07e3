"""Mutation testing of published correctness checks: how many wrong kernels would each accept.

    python -m benchmarks oracles [NAME...]

Each kernel of `benchmarks/checks/kernels` is right. Its mutants compute something else, or less exactly, and
are judged by the checks of other benchmarks (`benchmarks/checks/published.py`) and by the referee. Mutants
that nobody can tell from the right kernel, on any input tried, are left out. The table is written after each
kernel. Machine: CPU. Time: an hour. Writes audits/oracles.md.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.checks.judging import judge
from benchmarks.checks.mutants import Mutant, mutants
from benchmarks.checks.published import CHECKS
from benchmarks.publishing import AUDITS, log, made_by, table
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.evaluator import CHECK, Referee
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Candidate, Fingerprint, Task
from kernelwright.kernelbench.sources.overrides import apply
from kernelwright.results.store.folder import write_atomically

KERNELS = Path(__file__).parent / "kernels"
REFEREE = "kernelwright, one size"
AT_BOTH = "kernelwright, both sizes"

# Of each task the sizes that it is judged at. Checks of one size have the first, as the referee has.
SIZES: dict[str, tuple[str, ...]] = {
    "level1/gelu_tanh": ("batch_size=4 tokens=16 features=256", "batch_size=3 tokens=5 features=131"),
    "level1/softmax": ("batch_size=64 features=256", "batch_size=33 features=257"),
    "level1/logsumexp": ("batch_size=64 features=256", "batch_size=33 features=257"),
    "level1/layer_norm": ("batch_size=64 features=256", "batch_size=31 features=130"),
    "level1/rms_norm": ("batch_size=64 features=256", "batch_size=31 features=130"),
    "level1/matmul_small_k": ("rows=64 inner=32 columns=96", "rows=63 inner=33 columns=65"),
    "level1/conv2d": (
        "batch_size=2 in_channels=8 out_channels=12 height=16 width=16",
        "batch_size=1 in_channels=5 out_channels=7 height=13 width=11",
    ),
    "level1/max_pool2d": (
        "batch_size=2 channels=8 height=20 width=20",
        "batch_size=1 channels=5 height=17 width=15",
    ),
    "level1/cumsum": ("batch_size=32 features=512", "batch_size=9 features=1023"),
    "level1/cross_entropy": ("batch_size=64 classes=200", "batch_size=33 classes=101"),
    "level1/mean_middle": ("batch_size=8 tokens=48 features=64", "batch_size=3 tokens=37 features=50"),
    "level1/group_norm": (
        "batch_size=2 channels=16 groups=4 height=12 width=12",
        "batch_size=3 channels=9 groups=3 height=7 width=9",
    ),
    "level2/swiglu_gate": (
        "batch_size=2 tokens=16 hidden_features=96",
        "batch_size=1 tokens=7 hidden_features=33",
    ),
    "level2/matmul_scale_residual": ("rows=48 inner=64 columns=80", "rows=47 inner=33 columns=65"),
    "level2/linear_gelu_layer_norm": (
        "batch_size=32 in_features=64 out_features=128",
        "batch_size=17 in_features=33 out_features=65",
    ),
    "level2/masked_softmax": (
        "batch_size=2 heads=2 queries=24 keys=32",
        "batch_size=1 heads=3 queries=17 keys=19",
    ),
}


@dataclass(frozen=True)
class JudgedMutant:
    """A mutant and who accepts it, the referee included."""

    task: str
    mutant: Mutant
    accepted: Mapping[str, bool]


def run(
    names: Annotated[list[str] | None, typer.Argument(help="Names of kernels; all by default.")] = None,
    places: Annotated[int, typer.Option(help="Places of a kernel that each rewrite is tried at.")] = 1,
) -> None:
    judged: list[JudgedMutant] = []
    right: list[Mapping[str, bool]] = []
    equal = broken = 0
    with Referee.start(cache=cache_folder()) as referee:
        for name, sizes in SIZES.items():
            if names and name.rpartition("/")[2] not in names:
                continue
            source = (KERNELS / f"{name.rpartition('/')[2]}.py").read_text()
            (task,) = sources.resolve([f"builtin:{name}"])
            tasks = [at(task, size) for size in sizes]
            texts = [each.source for each in tasks]
            for mutant in (Mutant("unmutated", "", source, False), *mutants(source, places)):
                found = judge(texts, mutant.source, source)
                if found is None:
                    broken += 1
                    continue
                candidate = candidate_of(mutant.source)
                accepted = {**found.accepted, REFEREE: referee.evaluate(tasks[0], candidate, CHECK).right}
                accepted[AT_BOTH] = accepted[REFEREE] and all(
                    referee.evaluate(other, candidate, CHECK).right for other in tasks[1:]
                )
                marks = "".join(".A"[yes] for yes in accepted.values())
                log(f"{name} {mutant.kind} ({mutant.where}): {marks}{'' if found.differs else ' equal'}")
                if mutant.kind == "unmutated":
                    right.append(accepted)
                elif found.differs or not all(accepted.values()):
                    judged.append(JudgedMutant(name, mutant, accepted))
                else:
                    equal += 1
            command = " ".join(["oracles", *(names or [])])
            text = report(judged, right, equal, broken, referee.target.fingerprint, command)
            AUDITS.mkdir(parents=True, exist_ok=True)
            write_atomically(AUDITS / "oracles.md", text)
    log(text)


def at(task: Task, size: str) -> Task:
    """Return the task with these constants: "rows=64 columns=96"."""
    overrides = dict(pair.split("=") for pair in size.split())
    return task.model_copy(update={"source": apply(task.source, overrides), "overrides": overrides})


def candidate_of(source: str) -> Candidate:
    return Candidate(source=source, language=language_of(source), author="mutation")


def report(
    judged: Sequence[JudgedMutant],
    right: Sequence[Mapping[str, bool]],
    equal: int,
    broken: int,
    machine: Fingerprint,
    command: str,
) -> str:
    """Return the text of oracles.md."""
    oracles = (*CHECKS, REFEREE, AT_BOTH)
    rows = [
        (kind, *_survivors([each for each in judged if each.mutant.kind == kind], oracles))
        for kind in dict.fromkeys(each.mutant.kind for each in judged)
    ]
    wrong = [each for each in judged if not each.mutant.inexact]
    rows += [
        ("**all that compute something else**", *_survivors(wrong, oracles)),
        (
            "**all that are less exact**",
            *_survivors([each for each in judged if each.mutant.inexact], oracles),
        ),
        (
            "right kernels accepted",
            str(len(right)),
            *(str(sum(accepted[name] for accepted in right)) for name in oracles),
        ),
    ]
    missed = [each for each in wrong if each.accepted[REFEREE]]
    return "\n".join(
        [
            "# Wrong kernels that published checks accept",
            "",
            made_by(command, machine),
            "",
            "Share of mutants that a check accepts, with its 95% interval by Wilson. Of GPU MODE, where "
            "tolerances are a task's own, its default and that of conv2d. KernelBench has one size, "
            "the others both. The referee verifies here and times nothing, so calls are few.",
            "",
            *table(("mutation", "mutants", *oracles), rows),
            "",
            f"{equal} mutants that nobody could tell from the right kernel, and {broken} that do not build, "
            "are left out.",
            "",
            f"## Computes something else, and accepted by {REFEREE}",
            "",
            *(
                f"- {each.task}, {each.mutant.kind}{', at both' if each.accepted[AT_BOTH] else ''}: "
                f"`{each.mutant.where}`"
                for each in missed
            ),
            "",
        ]
    )


def _survivors(judged: Sequence[JudgedMutant], oracles: Sequence[str]) -> Iterator[str]:
    yield str(len(judged))
    for name in oracles:
        number = sum(each.accepted[name] for each in judged)
        low, high = wilson(number, len(judged))
        yield f"{number / max(len(judged), 1):.0%} [{100 * low:.0f}, {100 * high:.0f}]"


def wilson(number: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95% interval of a share, after Wilson, "Probable Inference" (1927)."""
    if of == 0:
        return 0.0, 1.0
    share, scale = number / of, 1 + z * z / of
    middle = (share + z * z / (2 * of)) / scale
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)
