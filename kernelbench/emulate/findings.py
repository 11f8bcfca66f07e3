"""Findings of a kernel's run, in the words of NVIDIA's compute-sanitizer.

https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html
"""

from dataclasses import dataclass
from typing import Literal

FindingKind = Literal[
    "out_of_bounds",
    "uninitialized",
    "misaligned",
    "read_after_write",
    "write_after_read",
    "write_after_write",
    "divergent_barrier",
    "stuck",
    "not_in_mask",
    "failed",
]
Dim = tuple[int, int, int]
RETURNED = "has returned"  # of a thread that others wait for at a barrier
_MOST_SAID = 4  # in words


@dataclass(frozen=True)
class KernelFinding:
    """A fault of a kernel. `line`: of the source, from 1; 0 if unknown."""

    kind: FindingKind
    says: str  # one sentence or two
    line: int
    thread: Dim
    block: Dim
    count: int  # times


@dataclass(frozen=True)
class MemoryTraffic:
    """Memory requests of warps at one place of a kernel.

    `pieces`: sectors of 32 bytes of global memory, or passes over the 32 banks of shared memory; `least`: the
    number of those that the requested bytes need. If there are more, accesses are not coalesced, or banks
    conflict.
    """

    kernel: str
    line: int  # of the source, from 1; 0 where it is not known
    space: Literal["global", "shared"]
    access: str  # "read", "write", "atomic"
    requests: int
    pieces: int
    least: int
    code: str  # that stands in the line


class Unsupported(Exception):  # noqa: N818 - a property of the source, not a fault
    """A feature that kernels use and the emulation lacks; `line` of the source, from 1."""

    def __init__(self, construct: str, line: int = 0) -> None:
        where = f"line {line}: " if line else ""
        super().__init__(f"{where}{construct} cannot be emulated")
        self.construct, self.line = construct, line


class KernelFault(Exception):  # noqa: N818 - a property of the kernel
    """An illegal operation of a kernel."""

    def __init__(self, kernel: str, findings: tuple[KernelFinding, ...]) -> None:
        said = [finding.says for finding in findings[:_MOST_SAID]]
        if len(findings) > _MOST_SAID:
            said.append(f"{len(findings) - _MOST_SAID} more findings.")
        super().__init__(f"{kernel}: " + "\n".join(said))
        self.kernel, self.findings = kernel, findings
