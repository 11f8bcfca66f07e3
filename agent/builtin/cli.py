"""The command `compile`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.agent.builtin.schedule import GRAPH_KNOBS, KERNEL_KNOBS, Schedule, legal
from kernelwright.kernelbench.cli import CastTo, Init, Inputs, KernelbenchDir, Overrides, one_task
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.evaluator import Limits
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.machine import cache_folder
from kernelwright.kernelbench.records import Precision, Task
from kernelwright.kernelbench.sources.assignments import constants


def compile_task(
    task: Annotated[str, typer.Argument(help="A task id or a file.", metavar="TASK")],
    language: Annotated[str, typer.Option(help="The language of the kernels: cpp, triton, cuda.")] = "cpp",
    schedule: Annotated[
        list[str] | None,
        typer.Option(metavar="KNOB=VALUE", help="Give a knob of the schedule this value: k0.block=256."),
    ] = None,
    dump: Annotated[
        bool, typer.Option("--dump", help="Print every form of the task on the way to its kernels.")
    ] = False,
    free: Annotated[
        str | None,
        typer.Option(
            metavar="CONSTANT,...", help="Serve any value of these constants of the file, such as batch_size."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the candidate to this file.")] = None,
    inputs: Inputs = None,
    init: Init = None,
    overrides: Overrides = None,
    precision: CastTo = Precision.task,
    kernelbench_dir: KernelbenchDir = None,
) -> int:
    """Print the kernels that the builtin coder writes for a task, without evaluating them."""
    knobs = _knobs(schedule or ())
    from kernelwright.agent.builtin.coder import LANGUAGES
    from kernelwright.agent.builtin.compile import NothingToFuse
    from kernelwright.agent.builtin.dump import Dump
    from kernelwright.agent.builtin.ir.untraceable import Untraceable
    from kernelwright.agent.builtin.sizes.blocks import compiled
    from kernelwright.agent.builtin.sizes.free import trace_free
    from kernelwright.agent.tracing import FreeTracer, trace
    from kernelwright.results.store.folder import write_atomically

    if language not in LANGUAGES:
        raise UsageError(f"invalid language: {language}", f"use one of {', '.join(LANGUAGES)}")
    kind = LANGUAGES[language]
    chosen = Schedule.from_dict({**kind.defaults, **knobs})
    one = one_task(task, overrides, precision, kernelbench_dir, inputs=inputs, init=init)
    sizes = _sizes(one, free)
    forms = Dump()
    watch = forms if dump else (lambda step, form: None)
    source = None
    try:
        with WorkerPool(threads=1, cache=cache_folder(), limits=Limits()) as pool:
            tracer = FreeTracer(pool, one)
            graph = trace_free(tracer, sizes, kind.words) if sizes else trace(pool, one)
        source = compiled(graph, one.source, chosen, kind, watch).source
    except Untraceable as reason:
        typer.echo(f"{one.id} cannot be compiled: {reason}", err=True)
    except NothingToFuse:
        typer.echo(f"{one.id} has no kernel of its own: every operation is a library call", err=True)
    if dump:
        typer.echo(forms)
    if source is None:
        return 1
    if out is None:
        typer.echo(source, nl=False)
        return 0
    try:
        write_atomically(out, source)
    except OSError as error:
        raise StorageError(
            f"{out} cannot be written ({error.strerror or error})", "choose another file"
        ) from error
    return 0


def _sizes(task: Task, free: str | None) -> dict[str, int]:
    """Return the values in a task's file of the constants that are free."""
    known = {name: value for name, value in constants(task.source, task.id).items() if value.isdecimal()}
    found = {}
    for name in filter(None, (word.strip() for word in (free or "").split(","))):
        if name not in known:
            raise UsageError(f"{task.id} has no size {name}", f"give some of {', '.join(known)}")
        found[name] = int(known[name])
    return found


def _knobs(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        knob, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"invalid schedule: {word}", "write KNOB=VALUE, such as k0.block=256")
        if not legal(knob):
            known = ", ".join((*GRAPH_KNOBS, *(f"k0.{name}" for name in KERNEL_KNOBS)))
            raise UsageError(f"invalid schedule: there is no knob {knob}", f"use one of {known}")
        if value not in legal(knob):
            raise UsageError(f"invalid schedule: {word}", f"use one of {', '.join(legal(knob))}")
        found[knob] = value
    return found
