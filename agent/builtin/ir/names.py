"""How candidates write numbers, and the parameters, buffers and submodules of their reference."""

import math


def number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def attribute(dotted: str) -> str:
    """How `forward` reads a parameter, buffer, constant or submodule: "net.0.weight" is self.net[0].weight.

    What lies in a dictionary has its key in quotes: "heads.'0'.weight" is self.heads['0'].weight.
    """
    text = "self"
    for part in dotted.split("."):
        text += f".{part}" if part.isidentifier() else f"[{part}]"
    return text
