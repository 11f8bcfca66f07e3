"""Benchmarks behind the tables of results/published. Run them from the root of a checkout."""

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from benchmarks.agent import faults, feedback, knobs, scheduling, spending
from benchmarks.checks import oracles
from benchmarks.compiler import (
    draw,
    emulated,
    first,
    fitting,
    fusion,
    plot,
    predicted,
    profiles,
    regression,
    static_products,
    static_suite,
    suite,
    summary,
    upstream,
)
from benchmarks.evaluator import (
    aa,
    cluster,
    disturbance,
    efforts,
    guards,
    layers,
    mutations,
    rejections,
    throughput,
    turnaround,
    verification,
)
from benchmarks.export import architectures, kernels, models, wrapper
from kernelwright.kernelbench.sources.checkout import VARIABLE

# In the order in which `all` runs them: `verification` and `summary` read what `suite` measures.
WITHOUT_CHECKOUT = (
    *(aa, efforts, guards, turnaround, layers, disturbance, throughput, scheduling, rejections, mutations),
    *(
        suite,
        verification,
        summary,
        plot,
        first,
        fusion,
        feedback,
        profiles,
        wrapper,
        kernels,
        models,
        architectures,
        emulated,
        static_suite,
        static_products,
        predicted,
        faults,
        oracles,
    ),
)
# Need a checkout of KernelBench, runs that are named, a commit, or Ray.
OTHERS = (draw, upstream, fitting, knobs, regression, spending, cluster)

app = typer.Typer(help=__doc__, rich_markup_mode="markdown", pretty_exceptions_enable=False)


def name_of(benchmark: ModuleType) -> str:
    return benchmark.__name__.rpartition(".")[2].replace("_", "-")


for benchmark in (*WITHOUT_CHECKOUT, *OTHERS):
    app.command(name_of(benchmark), help=benchmark.__doc__)(benchmark.run)


@app.command("all")
def everything(
    kernelbench_dir: Annotated[
        Path | None, typer.Option(envvar=VARIABLE, help="A KernelBench checkout, for `upstream`.")
    ] = None,
) -> None:
    """Run all of them with their defaults, in hours; `upstream` only with a checkout of KernelBench."""
    for benchmark in WITHOUT_CHECKOUT:
        if benchmark is summary and kernelbench_dir is not None:
            upstream.run(kernelbench_dir)
        benchmark.run()


if __name__ == "__main__":
    app()
