"""Records of an archive: kernels for tasks of KernelBench, and what is claimed of each."""

import random
from typing import Literal

from kernelwright.kernelbench.records import Record


class PublishedClaim(Record):
    """Results that were published with a kernel; None, or empty, where nothing is said."""

    correct: bool | None = None
    eager: float | None = None  # speedups over eager and over torch.compile
    compile: float | None = None
    device: Literal["cpu", "cuda"] = "cuda"  # that it was measured on
    hardware: str = ""  # "NVIDIA A100-SXM4-40GB"


class PublishedKernel(Record):
    """One file of a kernel, for problem `problem` of level `level` of KernelBench."""

    level: int
    problem: int
    sample: int = 0  # of several for one problem
    source: str
    reference: str = ""  # text of the task, where the archive brings its own
    claim: PublishedClaim = PublishedClaim()
    where: str  # the file, or the file and its line

    @property
    def name(self) -> str:
        """Short name: `1/23`, and of a later sample `1/23#2`."""
        return f"{self.level}/{self.problem}" + (f"#{self.sample}" if self.sample else "")


class Archive(Record):
    """Kernels that were published together, in the order of their tasks."""

    path: str
    suite: Literal["kernelbench", "cuda-l1"]  # as ids of their tasks begin
    kernels: tuple[PublishedKernel, ...]
    left_out: tuple[str, ...] = ()  # a line for whatever could not be read

    @property
    def hardware(self) -> tuple[str, ...]:
        """Devices that the claims are of, as far as they are named."""
        return tuple(sorted({kernel.claim.hardware for kernel in self.kernels} - {""}))

    def drawn(self, number: int) -> "Archive":
        """Return the archive with `number` of its kernels, drawn at random with a fixed seed."""
        if number >= len(self.kernels):
            return self
        places = sorted(random.Random(0).sample(range(len(self.kernels)), number))
        return self.model_copy(update={"kernels": tuple(self.kernels[place] for place in places)})
