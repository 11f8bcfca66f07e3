"""The numbers of results/published: `python -m agent.bench all`, or one of its parts by name.

To be run from the root of a checkout. Each writes its table as Markdown, with the environment and the
command that makes it again.
"""

from pathlib import Path
from typing import Annotated

import typer

from agent.bench.cost import layers, turnaround, verification
from agent.bench.drawing import draw
from agent.bench.emulated import emulated
from agent.bench.feedback import feedback
from agent.bench.fusion import fusion
from agent.bench.goals import first, goals
from agent.bench.guards import guards
from agent.bench.kernels import kernels
from agent.bench.knobs import knobs
from agent.bench.pools import disturbance, throughput
from agent.bench.profiles import profiles
from agent.bench.scheduling import scheduling
from agent.bench.scripted import serve
from agent.bench.suites import suite, upstream
from agent.bench.trust import aa, efforts, naive, rejections, shortcuts
from agent.bench.wrapper import wrapper

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
