"""The numbers of results/published: `python -m kernelwright.agent.bench all`, or one of its parts by name.

To be run from the root of a checkout. Each writes its table as Markdown, with the environment and the
command that makes it again.
"""

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.agent.bench.cost import layers, turnaround, verification
from kernelwright.agent.bench.drawing import draw
from kernelwright.agent.bench.emulated import emulated
from kernelwright.agent.bench.feedback import feedback
from kernelwright.agent.bench.fusion import fusion
from kernelwright.agent.bench.goals import first, goals
from kernelwright.agent.bench.guards import guards
from kernelwright.agent.bench.kernels import kernels
from kernelwright.agent.bench.knobs import knobs
from kernelwright.agent.bench.pools import disturbance, throughput
from kernelwright.agent.bench.profiles import profiles
from kernelwright.agent.bench.scheduling import scheduling
from kernelwright.agent.bench.scripted import serve
from kernelwright.agent.bench.suites import suite, upstream
from kernelwright.agent.bench.trust import aa, efforts, naive, rejections, shortcuts
from kernelwright.agent.bench.wrapper import wrapper

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)
for part in (
    aa,
    efforts,
    guards,
    turnaround,
    layers,
    disturbance,
    throughput,
    scheduling,
    rejections,
    shortcuts,
    suite,
    verification,
    draw,
    upstream,
    goals,
    first,
    fusion,
    feedback,
    knobs,
    kernels,
    profiles,
    emulated,
    wrapper,
):
    app.command()(part)
app.command(hidden=True)(naive)
app.command("model")(serve)


@app.command("all")
def everything(
    kernelbench_dir: Annotated[Path | None, typer.Option(envvar="KERNELBENCH_DIR")] = None,
) -> None:
    """All of it; the upstream problems only where there is a checkout."""
    aa()
    efforts()
    guards()
    turnaround()
    layers()
    disturbance()
    throughput()
    scheduling()
    rejections()
    shortcuts()
    suite()
    verification()
    if kernelbench_dir is not None:
        upstream(kernelbench_dir)
    goals()
    first()
    fusion()
    feedback()
    profiles()
    wrapper()
    kernels()
    emulated()


if __name__ == "__main__":
    app()
