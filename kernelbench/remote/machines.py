"""Comparison of machines: results of different ones never stand side by side."""

from typing import Protocol

from kernelwright.kernelbench.records import Fingerprint

BEGIN_ANOTHER = "begin another run: results of two machines cannot be compared"
_GIB = 1 << 30


class Machine(Protocol):
    """Machine of a result."""

    @property
    def device(self) -> str: ...

    @property
    def fingerprint(self) -> Fingerprint: ...


def difference(one: Machine, other: Machine) -> str:
    """Return in what `one` differs from `other` that a measured time depends on; empty if in nothing.

    Of memory only whole GiB count, for machines of one kind differ by what firmware takes.
    """
    if one.device.partition(":")[0] != other.device.partition(":")[0]:
        return f"its device is {one.device}, not {other.device}"
    for name in Fingerprint.model_fields:
        mine, theirs = getattr(one.fingerprint, name), getattr(other.fingerprint, name)
        if name == "memory_bytes":
            mine, theirs = round(mine / _GIB), round(theirs / _GIB)
        if mine != theirs:
            return f"its {_WORDS.get(name, name)} is {mine}, not {theirs}"
    return ""


_WORDS = {
    "threads": "number of threads",
    "memory_bytes": "memory in GiB",
    "last_level_cache_bytes": "last-level cache in bytes",
    "torch": "version of torch",
}
