"""`kernelwright serve scripted`."""

import sys
import threading
from typing import Annotated

import typer

from kernelwright.agent.llm.endpoint.fake_endpoint import FakeEndpoint
from kernelwright.kernelbench import sources
from kernelwright.kernelbench.cli import KernelbenchDir
from kernelwright.kernelbench.machine import cache_folder


def scripted(
    tasks: Annotated[list[str], typer.Argument(help="Tasks to write kernels for.", metavar="TASK")],
    port: Annotated[int, typer.Option(help="Port to listen at.", min=1, max=65535)] = 8001,
    latency_s: Annotated[
        float, typer.Option("--latency", metavar="SECONDS", help="Duration of a reply.", min=0)
    ] = 1.0,
    kernelbench_dir: KernelbenchDir = None,
) -> None:
    """Serve a scripted model, to try runs with a language model without one, until Ctrl-C or SIGTERM.

    It submits kernels of the builtin coder, and breaks some of them on purpose.
    """
    from kernelwright.agent.llm.endpoint.scripted_model import ScriptedModel  # imports torch

    chosen = sources.resolve(tasks, kernelbench_dir=kernelbench_dir)
    endpoint = FakeEndpoint(port)
    endpoint.script = ScriptedModel(chosen, cache_folder(), latency_s)
    try:
        with endpoint.serving():
            print(
                f"export OPENAI_BASE_URL={endpoint.base_url}\n"
                "export OPENAI_API_KEY=none\n"
                "kernelwright run TASK --coder llm --model scripted",
                flush=True,
            )
            threading.Event().wait()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
