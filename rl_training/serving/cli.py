"""`kernelwright serve policy`."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.rl_training.serving.server import Backend, PolicyServer


def policy(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.", show_default=False)],
    options: Annotated[
        list[str] | None, typer.Argument(help="Options of the backend itself, after --.", show_default=False)
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
    backend: Annotated[Backend, typer.Option(help="Library whose server is used.")] = "transformers",
) -> int:
    """Serve a policy as a coder, for `run --coder llm`, until Ctrl-C or SIGTERM.

    The server is transformers' own, or vLLM's where that is installed. A folder of adapters is served with
    the model that it names: merged with it for transformers, apart from it by vLLM.
    """
    from kernelwright.rl_training.serving.policy import policy_in

    found = policy_in(model)
    server = PolicyServer(found, backend, host, port, options or ())
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with server.running():
            print(
                f"export OPENAI_BASE_URL={server.address}/v1\n"
                "export OPENAI_API_KEY=none\n"
                f"kernelwright run TASK --coder llm --model {server.policy.name}",
                flush=True,
            )
            if not server.policy.samples:
                print(
                    "note: generation_config.json does not set do_sample, so equal prompts get equal replies",
                    file=sys.stderr,
                )
            server.wait()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0
