"""Notation in candidates: numbers, and the parameters, buffers and submodules of their reference."""

import math


def number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def attribute(dotted: str) -> str:
    """Expression for a parameter, buffer, constant or submodule: "net.0.weight" is self.net[0].weight.

    Keys of a dictionary are in quotes: "heads.'0'.weight" is self.heads['0'].weight.
    """
    text = "self"
    for part in dotted.split("."):
        text += f".{part}" if part.isidentifier() else f"[{part}]"
    return text
