"""The commands `tasks` and `evaluate`."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from kernelwright.kernelbench import sources
from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.chips.occupancy import CHIPS
from kernelwright.kernelbench.devices import devices_of
from kernelwright.kernelbench.errors import KernelwrightError, UsageError
from kernelwright.kernelbench.evaluator import (
    ALL_BASELINES,
    BASELINES,
    COMPILE_S,
    EFFORTS,
    Limits,
    Measurement,
    Protocol,
    Referee,
    sanitizer,
)
from kernelwright.kernelbench.evaluator.correctness.oracle_client import MutationRecords
from kernelwright.kernelbench.fitting import GIB, fit_header, fit_row, fitting, usable_bytes
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Precision, Task, Verdict
from kernelwright.kernelbench.speed_of_light import score_of
from kernelwright.kernelbench.terminal import show
from kernelwright.kernelbench.without_gpu import DEFAULT_CHIPS, start_evaluator

log = Console(stderr=True, highlight=False)

KernelbenchDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="KERNELBENCH_DIR", help="Folder of a KernelBench checkout."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a module constant of the task."),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=X,…", help="Size of the task, one of several."),
]
CastTo = Annotated[
    Precision,
    typer.Option("--precision", help="Type of inputs and weights."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="SIZES", help="Input of a module, as 8,128:bf16."),
]
Init = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]X", help="Argument of its constructor."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]
Baselines = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        help="Baseline: eager, compile, max-autotune, cuda-graphs or traffic; repeatable.",
        show_default="eager, compile",
    ),
]
CompileLimit = Annotated[
    float,
    typer.Option(
        "--compile-limit",
        metavar="S",
        help="Seconds of torch.compile.",
    ),
]
OwnKernels = Annotated[
    float,
    typer.Option(
        "--require-own-kernels",
        metavar="X",
        help="Least share of own kernels.",
    ),
]
EffortName = Annotated[str, typer.Option("--effort", help="Effort of timing: quick, full or thorough.")]
Hot = Annotated[bool, typer.Option("--hot", help="Leave the caches as the last call left them.")]
Server = Annotated[
    float | None,
    typer.Option(
        "--server",
        metavar="RATE",
        help="Time calls one at a time, like a server's, after random pauses of 1/RATE s on average.",
    ),
]
CheckFirst = Annotated[
    bool,
    typer.Option(
        "--check-first",
        help="Check CUDA C++ in emulation first.",
    ),
]
TargetName = Annotated[str, typer.Option(help="Target device: cpu, or cuda:0 for the first GPU.")]
TargetNames = Annotated[
    str, typer.Option(help="Target: cpu, cuda:0 for the first GPU, or cuda:0-3 for several of one kind.")
]
_ANY_TARGET = "cpu, cuda:0, cuda (the first GPU, else emulation) or sm_90 (a chip to build for)"
AnyTarget = Annotated[str, typer.Option(help=f"Device: {_ANY_TARGET}.")]
AnyTargets = Annotated[
    str,
    typer.Option(
        help="Device: cpu, cuda (the first GPU, else emulation), cuda:0, cuda:0-3, cuda:0,2 or sm_90 "
        "(to build for)."
    ),
]


def tasks(
    suite: Annotated[
        str | None,
        typer.Option(help="Suite to list: builtin, builtin:level1, kernelbench:2, or a list file."),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Run the tasks to find those that measure nothing.")
    ] = False,
    mutations: Annotated[
        bool,
        typer.Option("--mutations", help="Find mutations of a task that would still be judged correct."),
    ] = False,
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory",
            metavar="GB",
            help="Compute which tasks can be evaluated on a GPU with so much memory, and what takes it.",
        ),
    ] = None,
    overrides: Overrides = None,
    kernelbench_dir: KernelbenchDir = None,
    as_json: Json = False,
) -> None:
    """List tasks; with --audit or --mutations, find those with meaningless or inflated speedups."""
    if audit + mutations + (memory is not None) > 1:
        raise UsageError("--audit, --mutations and --memory cannot be combined", "run one after the other")
    if memory is not None:
        return show_fitting(suite or "builtin", memory, overrides, kernelbench_dir, as_json)
    if audit or mutations:
        return _examine(suite or "builtin", overrides, kernelbench_dir, as_json, mutations)
    listings = sources.catalogue(suite, kernelbench_dir=kernelbench_dir)
    if as_json:
        print(json.dumps({"schema": 1, "tasks": [listing.model_dump() for listing in listings]}))
        return None
    table = Table(box=None, header_style="bold")
    for column in ("task", "what", "constants (--set)"):
        table.add_column(column, overflow="fold")
    for listing in listings:
        constants = " ".join(f"{name}={value}" for name, value in listing.constants.items())
        sizes = f" ({len(listing.sizes)} sizes)" if listing.sizes else ""
        table.add_row(listing.id, f"{listing.title}{sizes}", constants)
    Console().print(table)
    return None


def show_fitting(
    suite: str, memory: float, overrides: list[str] | None, kernelbench_dir: Path | None, as_json: bool
) -> None:
    """Print which tasks fit on a GPU that is sold with so many gigabytes."""
    if not 1 <= memory <= 1e4:
        raise UsageError(f"invalid --memory {memory:g}", "use the gigabytes of a GPU, such as 80")
    chosen = sources.resolve(
        [], suite=suite, kernelbench_dir=kernelbench_dir, overrides=sources.from_words(overrides or [])
    )
    usable = usable_bytes(memory)
    with Referee.start(cache=cache_folder()) as evaluator:
        found = list(fitting(evaluator.sessions, chosen, usable))
    if as_json:
        print(json.dumps({"schema": 1, "memory_bytes": usable, "tasks": [f.model_dump() for f in found]}))
        return
    table = Table(box=None, header_style="bold")
    for column in fit_header():
        table.add_column(column, overflow="fold")
    for fit in found:
        table.add_row(*fit_row(fit, usable))
    out = Console(highlight=False)
    out.print(table)
    number = sum(fit.fits for fit in found)
    out.print(f"{number} of {len(found)} fit in {usable / GIB:.1f} GiB, with eager and torch.compile")


def _examine(
    suite: str, overrides: list[str] | None, kernelbench_dir: Path | None, as_json: bool, mutations: bool
) -> None:
    chosen = sources.resolve(
        [], suite=suite, kernelbench_dir=kernelbench_dir, overrides=sources.from_words(overrides or [])
    )
    found: dict[str, object] = {}
    effects: dict[str, list[str]] = {}
    with Referee.start(cache=cache_folder()) as evaluator:
        for number, task in enumerate(chosen, 1):
            try:
                oracle = evaluator.sessions.open(task).oracle
                effects[task.id] = oracle.effects
                if mutations:
                    result = oracle.mutations(evaluator.sessions.protocol.families)
                    found[task.id], said = result.model_dump(), _unnoticed(result)
                else:
                    findings = oracle.audit()
                    found[task.id], said = findings, "; ".join(findings) or "no problem found"
                    said += "".join(f" ({effect})" for effect in oracle.effects)
            except KernelwrightError as error:
                said = f"cannot be run: {error.message}"
                found[task.id] = {"error": error.message} if mutations else [said]
            (log if as_json else Console(highlight=False)).print(
                f"[{number}/{len(chosen)}] {task.id}: {said}", markup=False
            )
    if as_json:
        answer = {"mutations": found} if mutations else {"audit": found, "effects": effects}
        print(json.dumps({"schema": 1, **answer}))


def _unnoticed(mutations: MutationRecords) -> str:
    """Return the mutations that would go unnoticed, a line each."""
    changing = sum(mutation.changes for mutation in mutations.tried)
    unnoticed = mutations.unnoticed
    first = f"{changing - len(unnoticed)} of {changing} mutations would be detected"
    return "\n  ".join([first, *map(str, unnoticed)])


def evaluate(
    task: Annotated[str, typer.Argument(help="A task: FILE.py, FILE.py:CLASS or builtin:level1/softmax.")],
    candidate: Annotated[Path, typer.Argument(help="A Python file that defines ModelNew.")],
    target: AnyTarget = "cpu",
    inputs: Inputs = None,
    init: Init = None,
    overrides: Overrides = None,
    sizes: Sizes = None,
    precision: CastTo = Precision.task,
    baselines: Baselines = None,
    compile_limit: CompileLimit = COMPILE_S,
    own_kernels: OwnKernels = 0.0,
    hot: Hot = False,
    server: Server = None,
    effort: EffortName = "full",
    sanitize: Annotated[
        str | None,
        typer.Option(
            help="Tool of compute-sanitizer to run first on a GPU: memcheck, racecheck, initcheck, synccheck."
        ),
    ] = None,
    check_first: CheckFirst = False,
    kernelbench_dir: KernelbenchDir = None,
    as_json: Json = False,
) -> int:
    """Verify and time one candidate against a task's reference."""
    devices, chips = with_or_without_gpu(target)
    device = only_device(target, devices)
    wanted, protocol = check_protocol(
        baselines, own_kernels, effort, "hot" if hot else "cold", server, device, check_first
    )
    if sanitize is not None:
        protocol = protocol.model_copy(update={"sanitize": check_sanitizer(sanitize, device)})
    chosen = one_task(task, overrides, precision, kernelbench_dir, device, inputs, init, sizes)
    proposed = candidate_from_file(candidate)
    limits = check_limits(compile_limit)
    with start_evaluator(
        cache=cache_folder(), protocol=protocol, limits=limits, devices=devices, chips=chips
    ) as evaluator:
        evaluation = evaluator.evaluate(chosen, proposed, Measurement(wanted))
    if as_json:
        scored = {**json.loads(evaluation.model_dump_json()), "speed_of_light_score": score_of(evaluation)}
        print(json.dumps(scored))
    else:
        show(evaluation)
    right = Verdict.unmeasured if chips else Verdict.correct
    return 0 if evaluation.verdict is right and (evaluation.correctness or not chips) else 1


def one_task(
    name: str,
    overrides: Sequence[str] | None,
    precision: Precision,
    kernelbench_dir: Path | None,
    device: str = "cpu",
    inputs: Sequence[str] | None = None,
    init: Sequence[str] | None = None,
    sizes: Sequence[str] | None = None,
) -> Task:
    """Return the task of this name, on this device. Raises UsageError if it does not name exactly one."""
    chosen = sources.resolve(
        [name],
        kernelbench_dir=kernelbench_dir,
        overrides=sources.from_words(overrides or []),
        precision=precision,
        device=device,
        inputs=inputs or (),
        init=init or (),
        sizes=sizes or (),
    )
    if len(chosen) != 1:
        raise UsageError(f"'{name}' names {len(chosen)} tasks", "name one task; `run` takes several")
    return chosen[0]


def check_protocol(
    baselines: Sequence[str] | None,
    own_kernels: float,
    effort: str,
    caches: Literal["cold", "hot"] = "cold",
    arrivals_per_s: float | None = None,
    device: str = "cpu",
    check_first: bool = False,
) -> tuple[tuple[str, ...], Protocol]:
    """Return the baselines and the protocol of these options. Raises UsageError."""
    for name in baselines or []:
        if name not in ALL_BASELINES:
            raise UsageError(f"unknown baseline '{name}'", f"use one of {', '.join(ALL_BASELINES)}")
        if name == "cuda-graphs" and device == "cpu":
            raise UsageError("the baseline cuda-graphs needs a GPU", "use --target cuda:0, or leave it out")
    if not 0 <= own_kernels <= 1:
        raise UsageError(f"invalid --require-own-kernels {own_kernels:g}", "use a number from 0 to 1")
    if effort not in EFFORTS:
        raise UsageError(f"unknown effort '{effort}'", f"use one of {', '.join(EFFORTS)}")
    if arrivals_per_s is not None and not 1 <= arrivals_per_s <= 1000:
        raise UsageError(f"invalid --server {arrivals_per_s:g}", "use 1 to 1000 calls a second")
    if check_first and device == "cpu":
        raise UsageError(
            "--check-first needs a GPU target",
            "leave it out; without a GPU --target cuda makes the same check",
        )
    return tuple(baselines or BASELINES), Protocol(
        caches=caches,
        check_first=check_first,
        own_kernels=own_kernels,
        effort=EFFORTS[effort],
        arrivals_per_s=arrivals_per_s,
    )


def check_limits(compile_s: float) -> Limits:
    """Return the limits. Raises UsageError."""
    if not 0 < compile_s < math.inf:
        raise UsageError(f"invalid --compile-limit {compile_s:g}", "use a number of seconds above 0")
    return Limits(compile_s=compile_s)


def check_sanitizer(tool: str, device: str) -> str:
    """Return the tool. Raises UsageError, MissingPrerequisite if compute-sanitizer is not installed."""
    if tool not in sanitizer.TOOLS:
        raise UsageError(
            f"unknown tool of compute-sanitizer: '{tool}'", f"use one of {', '.join(sanitizer.TOOLS)}"
        )
    if device == "cpu":
        raise UsageError("compute-sanitizer needs a GPU", "use --target cuda:0, or leave it out")
    sanitizer.require()
    return tool


def check_target(name: str) -> str:
    """Return the device of a target: "cuda" is the first GPU. Raises UsageError."""
    return only_device(name, devices_of(name))


def only_device(target: str, devices: Sequence[str]) -> str:
    """Return the device of a target that may name one. Raises UsageError."""
    if len(devices) > 1:
        raise UsageError(
            f"--target {target} names {len(devices)} devices, and this command uses one",
            f"use --target {devices[0]}; `run` and `train rl` take several",
        )
    return devices[0]


def with_or_without_gpu(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the devices of a target, and the chips to build for if kernels are not timed.

    "cuda" is the first GPU, or without one the CPU, with kernels in emulation; "sm_90" always is that. Raises
    UsageError.
    """
    if name.startswith("sm_"):
        if name not in CHIPS:
            raise UsageError(f"unknown chip '{name}'", f"use one of {', '.join(CHIPS)}")
        return ("cpu",), (name,)
    if name == "cuda" and not any(Path("/dev").glob("nvidia[0-9]*")):
        chips = ", ".join(DEFAULT_CHIPS)
        log.print(f"no GPU found: kernels are emulated, not timed, and built for {chips}")
        return ("cpu",), DEFAULT_CHIPS
    return devices_of(name), ()
