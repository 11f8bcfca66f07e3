"""`kernelwright doctor`: what this machine can do, or what a language model's endpoint accepts."""

import json
from typing import Annotated

import typer
from rich.console import Console

from kernelwright.agent.llm.model import Endpoint
from kernelwright.kernelbench.cli import Json, TargetName
from kernelwright.profiling import cli as machine


def doctor(
    target: TargetName = "cpu",
    measure: machine.Measure = False,
    roofline: machine.RooflineFile = None,
    model: Annotated[
        str | None, typer.Option(help="Try this language model, at OPENAI_BASE_URL, instead of the machine.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what this machine can build, run, time and profile, and how to get the rest."""
    if model is None:
        machine.doctor(target, measure, roofline, as_json)
        return
    from kernelwright.agent.llm.endpoint.preflight import capabilities  # takes two seconds to import

    items = capabilities(model, Endpoint())
    if as_json:
        print(json.dumps({"schema": 1, "model": model, "items": [item.model_dump() for item in items]}))
        return
    Console().print(machine.table(items))
