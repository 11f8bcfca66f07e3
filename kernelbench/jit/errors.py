"""Errors of a candidate's use of kernels: a source that does not build, or a call that does not fit.

Exception
├── BuildError           the source, a flag or the cache folder; `str(e)` is the part worth reading
├── RuntimeError
│   └── LaunchError      one line: a GPU's driver does not load or launch a kernel, in its words
└── TypeError
    └── ArgumentError    one line: function, parameter, expected, got
"""

import re

EXCERPT_BYTES = 4096

_LOCATED = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)? (?P<kind>[a-z ]+): ")
_LINKER = re.compile(r"undefined reference to|multiple definition of|cannot find -l|ld returned")


class ArgumentError(TypeError):
    """A call of a compiled function whose arguments do not fit its C parameters."""


class LaunchError(RuntimeError):
    """A kernel that the GPU's driver did not load or launch."""


class BuildError(Exception):
    """A kernel that could not be built or loaded.

    `stderr` holds the compiler's whole output, `lines` the line numbers of the kernel source that its errors
    point to; `str(e)` is the message with the first errors and their source lines, at most 4 KB.
    """

    def __init__(self, message: str, stderr: str = "") -> None:
        super().__init__(message, stderr)
        self.message = message
        self.stderr = stderr

    @property
    def lines(self) -> tuple[int, ...]:
        found = (_LOCATED.match(line) for line in self.stderr.splitlines())
        errors = [int(m["line"]) for m in found if m and "error" in m["kind"] and "kernel" in m["file"]]
        return tuple(dict.fromkeys(errors))

    def __str__(self) -> str:
        said = excerpt(self.stderr)
        return f"{self.message}\n{said}" if said else self.message


def excerpt(stderr: str, limit_bytes: int = EXCERPT_BYTES - 256) -> str:
    """Return the errors of a compiler or linker with the source lines below them, without warnings."""
    kept: list[str] = []
    keeping = False
    for line in stderr.splitlines():
        located = _LOCATED.match(line)
        if located:
            keeping = "error" in located["kind"] or (keeping and located["kind"] == "note")
        elif _LINKER.search(line):
            kept.append(line)
            continue
        elif not line.startswith(" "):
            keeping = False
        if keeping:
            kept.append(line)
    text = "\n".join(kept) if kept else stderr.strip()
    encoded = text.encode()
    if len(encoded) <= limit_bytes:
        return text
    return encoded[:limit_bytes].decode(errors="ignore").rsplit("\n", 1)[0] + "\n… (cut)"
