"""Options of `kernelwright export`, the package that they ask for, and `kernelwright gradient`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kernelwright.kernelbench.cli import CastTo, Init, Inputs, Json, KernelbenchDir, Overrides, one_task
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.options import Section
from kernelwright.kernelbench.records import Precision
from kernelwright.results.dropin.format import UNSTATED, Format

if TYPE_CHECKING:
    from kernelwright.results.dropin.kernel_folder import PackagedKernel


class SourceOptions(Section):
    """Kernels to export, and the layers they replace; with --all each option says which kernel it is for."""

    run: Annotated[str, typer.Argument(help="Run folder or database URL.", metavar="RUN")]
    task: Annotated[str, typer.Argument(help="Task id, or the end of it.", metavar="TASK")] = ""
    every: Annotated[bool, typer.Option("--all", help="Export all tasks with a verified kernel.")] = False
    layer: Annotated[
        tuple[str, ...],
        typer.Option(help="Classes to replace, as module.Class or Class.", metavar="[TASK:]CLASS"),
    ] = ()
    function: Annotated[
        tuple[str, ...],
        typer.Option(help="Functions to replace, as module.function.", metavar="[TASK:]FUNCTION"),
    ] = ()
    rename: Annotated[
        tuple[str, ...],
        typer.Option(
            help="Name of a task's parameter = the layer's name.", metavar="[TASK:][CLASS:]NAME=NAME"
        ),
    ] = ()
    backward: Annotated[
        tuple[str, ...],
        typer.Option(help="Run of what `kernelwright gradient` wrote.", metavar="[TASK:]RUN"),
    ] = ()
    train: Annotated[
        bool,
        typer.Option(
            "--train", help="Run the agent on gradients, too; keep kernels with which training is faster."
        ),
    ] = False
    overrides: Overrides = None
    kernelbench_dir: KernelbenchDir = None


class PackageOptions(Section):
    """Package to write."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the package.")]
    name: Annotated[str, typer.Option(help="Name of the package.", show_default="the task's")] = ""
    format: Annotated[
        Format,
        typer.Option(
            help="Form: torch (a pip project), hf (a Hugging Face kernels repository), torchtitan (with "
            "overrides), megatron (with layer specs) or vllm (a plugin)."
        ),
    ] = Format.torch
    where_faster: Annotated[
        bool,
        typer.Option(
            "--where-faster/--everywhere",
            help="Call a kernel only in modes (forward or training, eager or compiled) it was measured to be "
            "faster in.",
        ),
    ] = True
    licence: Annotated[str, typer.Option(metavar="SPDX", help="Licence, such as Apache-2.0.")] = UNSTATED


class MeasurementOptions(Section):
    """Timing of the package."""

    measure: Annotated[bool, typer.Option(help="Time it in its wrapper, eager and compiled.")] = True
    inside: Annotated[
        str, typer.Option(help="Time this whole model, with and without it.", metavar="TASK")
    ] = ""


class ExportOutputOptions(Section):
    """Format of the summary."""

    as_json: Json = False


class ExportConfig(Section):
    source: SourceOptions
    package: PackageOptions
    measurement: MeasurementOptions = MeasurementOptions()
    output: ExportOutputOptions = ExportOutputOptions()


def chosen_kernels(source: SourceOptions) -> "list[PackagedKernel]":
    """Return the kernels that are to be exported. Raises UsageError, StorageError."""
    from kernelwright.results.dropin.kernel_folder import PackagedKernel
    from kernelwright.results.dropin.layer_names import renamed
    from kernelwright.results.dropin.winner import Winner

    if bool(source.task) == source.every:
        raise UsageError("give a task, or --all", "kernelwright export RUN TASK --out DIR")
    winners = Winner.all_of(source.run) if source.every else [Winner.of(source.run, source.task)]
    names = [winner.name for winner in winners]
    layers = _by_kernel(source.layer, names, "--layer", source.every)
    functions = _by_kernel(source.function, names, "--function", source.every)
    renames = _by_kernel(source.rename, names, "--rename", source.every)
    runs = _by_kernel(source.backward, names, "--backward", source.every)
    return [
        PackagedKernel(
            named,
            winner,
            renamed(layers[named], renames[named]),
            functions[named],
            Winner.all_of(runs[named][0]) if runs[named] else (),
        )
        for named, winner in zip(names, winners, strict=True)
    ]


def write_package(config: ExportConfig, kernels: "Sequence[PackagedKernel]") -> None:
    """Write the package, and print its summary. Raises UsageError, StorageError."""
    from kernelwright.results.dropin.package import write

    source, package, measurement = config.source, config.package, config.measurement
    whole = None
    if measurement.inside:
        whole = one_task(measurement.inside, source.overrides, Precision.task, source.kernelbench_dir)
    metadata = write(
        kernels,
        package.out,
        package.name or (kernels[0].name if len(kernels) == 1 else "drop_in"),
        package.format,
        measurement.measure,
        whole,
        package.licence,
        package.where_faster and measurement.measure,
    )
    if config.output.as_json:
        print(json.dumps({"schema": 1, "folder": str(package.out), "metadata": metadata}))
        return
    _show(metadata, package.out)


def gradient(
    task: Annotated[str, typer.Argument(help="A task id or a file.", metavar="TASK")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    saved: Annotated[
        bool, typer.Option("--saved", help="From outputs of the forward, where that leaves less to compute.")
    ] = False,
    forward: Annotated[
        Path | None,
        typer.Option(
            help="A file for a second task: the forward, with what else of it the gradient then takes: "
            "products, which would take long to compute again, and sums."
        ),
    ] = None,
    inputs: Inputs = None,
    init: Init = None,
    overrides: Overrides = None,
    precision: CastTo = Precision.task,
    kernelbench_dir: KernelbenchDir = None,
) -> None:
    """Write the gradient of a task as a separate task, for which `kernelwright run` finds a kernel."""
    from kernelwright.results.dropin.gradient_tasks import gradient_tasks
    from kernelwright.results.store.folder import write_atomically

    if forward == out:
        raise UsageError(f"--out and --forward are both {out}", "use two different files")
    way = "activations" if forward else "saved" if saved else "recompute"
    chosen = one_task(task, overrides, precision, kernelbench_dir, inputs=inputs, init=init)
    texts = gradient_tasks(chosen, way)
    for file, text in zip([out, forward] if forward else [out], texts, strict=False):
        try:
            write_atomically(file, text)
        except OSError as error:
            raise StorageError(
                f"{file} cannot be written ({error.strerror or error})", "choose another file"
            ) from error
        Console(highlight=False).print(f"Written to {file}.", markup=False, soft_wrap=True)


def _by_kernel(given: Sequence[str], names: list[str], option: str, every: bool) -> dict[str, list[str]]:
    """Group the values of an option by kernel; with --all each value names its kernel."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for text in given:
        named, colon, value = text.partition(":") if every else (names[0], ":", text)
        if option == "--backward" and not colon:
            for each in found.values():
                each.append(text)
            continue
        if not colon or named not in found:
            raise UsageError(
                f"{option} {text} does not name its kernel",
                f"use {option} {names[0]}:…; the kernels are {', '.join(names)}",
            )
        found[named].append(value)
    if option == "--backward" and (twice := [name for name, values in found.items() if len(values) > 1]):
        raise UsageError(f"{option} is given twice for {twice[0]}", "give it once")
    return found


def _show(metadata: dict[str, Any], out: Path) -> None:
    from kernelwright.results.dropin.runtime.sizes import said

    table = Table()
    for heading in ("kernel", "what", "reference", "drop-in", "speedup", "peak memory"):
        table.add_column(heading, justify="left" if heading in ("kernel", "what") else "right")
    slow, busy = [], []
    inside = metadata.get("measured_inside", {})
    whole = {inside["task"]: inside["the whole"]} if inside else {}
    for name, rows in {**metadata.get("measured", {}), **whole}.items():
        for what, found in rows.items():
            us = (f"{found[each]:.1f} µs" for each in ("reference_us", "drop_in_us"))
            mib = (f"{found[each] / 2**20:.2f}" for each in ("reference_peak_bytes", "drop_in_peak_bytes"))
            times = f"{found['speedup']:.2f} ({found['speedup_low']:.2f} to {found['speedup_high']:.2f})"
            table.add_row(name, what, *us, times, f"{' → '.join(mib)} MiB")
            if found["busy"]:
                busy.append(f"{name}, {what}")
            if found["speedup"] < 1:
                slow.append(f"{name}, {what}")
    console = Console(highlight=False)
    if table.row_count:
        console.print(table)
    left_out = [f"{kernel['name']}, {mode}" for kernel in metadata["kernels"] for mode in kernel["slower"]]
    for each in slow:
        end = ": layers do not use it there" if each in left_out else ""
        console.print(f"The drop-in is slower: {each}{end}.", markup=False, soft_wrap=True)
    for each in busy:
        text = f"Other work disturbed the measurement of {each}: measure again on a quiet machine."
        console.print(text, markup=False, soft_wrap=True)
    for kernel in metadata["kernels"]:
        if not kernel["backward"]:
            why = kernel["no_gradient"]
            console.print(f"{kernel['name']} has no gradient ({why}).", markup=False, soft_wrap=True)
        if kernel["limits"]:
            text = f"{kernel['name']} serves {said(kernel['limits'])}."
            console.print(text, markup=False, soft_wrap=True)
        elif why := kernel["one_size"]:
            text = f"{kernel['name']} serves the first of its sizes alone, because {why}."
            console.print(text, markup=False, soft_wrap=True)
        if relies := " and ".join(kernel["relies_on"]):
            text = f"{kernel['name']} relies on {relies}; under any other the reference computes."
            console.print(text, markup=False, soft_wrap=True)
    console.print(f"Written to {out}; see its README.md for how to use it.", markup=False, soft_wrap=True)
