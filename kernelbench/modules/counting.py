"""Number of inputs that a task file can draw, counted in a sandboxed worker without memory for them."""

from itertools import islice
from typing import Any

from kernelwright.kernelbench.errors import KernelwrightError, UsageError
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.modules.worker import ask_worker, refused

_TIMEOUT_S = 120.0
_MOST = 200


def counted_inputs(source: str, name: str) -> int:
    """Return how many inputs the `all_inputs()` of a task file yields, at most 200. Raises UsageError."""
    answer = ask_worker(f"{__name__}:serve", {"source": source, "name": name}, name, "shorten it", _TIMEOUT_S)
    return int(answer["count"])


def serve(channel: Channel) -> None:
    """Worker entry: run one file."""
    import torch

    message, _ = channel.receive_json()
    answer: dict[str, Any]
    module: dict[str, Any] = {"__name__": "task"}
    try:
        torch.set_default_device("meta")
        exec(compile(message["source"], "task.py", "exec"), module)
        answer = {"count": sum(1 for _ in islice(module["all_inputs"](), _MOST))}
    except KernelwrightError as error:
        answer = refused(error)
    except Exception as error:  # noqa: BLE001 - the file may raise anything
        answer = refused(
            UsageError(f"{message['name']}: {type(error).__name__}: {error}", "try it in Python")
        )
    channel.send_json(answer)
