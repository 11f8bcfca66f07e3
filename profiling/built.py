"""Worker-side reader of the libraries a candidate has built, inside its builder's sandbox."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.channel import Channel

_MOST_LIBRARIES = 8


def serve_libraries(channel: Channel, read: Callable[[Sequence[Path]], dict[str, Any]]) -> None:
    """Answer every message with the result of `read` on the libraries in the worker's build cache."""
    while True:
        channel.receive_json()
        folder = Path(os.environ["KERNELWRIGHT_CACHE"])
        try:
            answer = read(sorted(folder.rglob("*.so"))[:_MOST_LIBRARIES])
        except Unavailable as error:
            answer = {"problem": str(error)}
        channel.send_json(answer)
