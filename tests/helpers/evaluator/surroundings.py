"""Worker entry that says what of the referee's environment its process has."""

import os
from pathlib import Path

from kernelwright.kernelbench.evaluator.processes.channel import Channel


def serve(channel: Channel) -> None:
    """Answers "look" with the values of the variables of "names", and which of the "files" it may read."""
    message, _ = channel.receive_json()
    values = {name: os.environ[name] for name in message["names"] if name in os.environ}
    channel.send_json({"values": values, "readable": [name for name in message["files"] if _readable(name)]})


def _readable(name: str) -> bool:
    try:
        Path(name).read_bytes()
    except OSError:
        return False
    return True
