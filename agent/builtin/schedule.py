"""The schedule of a candidate as data: one flat dictionary, a few legal values for each knob.

`k0.block` is the knob `block` of the first kernel; a knob without a kernel concerns all of them. A knob
appears in a schedule only where it can change the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GRAPH_KNOBS: dict[str, tuple[str, ...]] = {
    "kernels": ("own", "none"),  # none: the reference as it is
    "fuse": ("all", "apart"),  # apart: a reduction does not join the kernel that computes its operand
    "layout": ("contiguous", "channels_last"),  # of images, where there are convolutions
    "attention": ("own", "fused", "apart"),  # a kernel of our own, torch's call, or spelled out where it was
    "windows": ("own", "library"),  # pooling and depthwise convolutions: kernels of our own, or torch's
    # own: with few vectors; tiled: of small matrices, too; all: and of large ones, on tensor cores
    "products": ("own", "library", "tiled", "all"),
    "gemm": ("library", "bf16x6"),  # large products of float32: six of bfloat16, on a CPU's AMX tiles
    "blocks": ("16", "4", "64", "off"),  # MiB of a product that is reduced away, at a time; off: the whole
    "topk": ("own", "library"),  # of few elements
    "split": ("off", "8", "4", "2", "16"),  # blocks that long reductions have for each multiprocessor
    "vector": ("512", "256"),  # bits; the compiler's preference
    "unroll": ("off", "on"),  # -funroll-loops
}
KERNEL_KNOBS: dict[str, tuple[str, ...]] = {
    "block": ("64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384"),  # elements per inner loop
    "streaming": ("off", "on"),  # stores past the caches
    "prefetch": ("on", "off"),  # of the next row or block, while this one is computed
    "threads": ("all", "1"),
    "online": ("on", "off"),  # the first two passes over a row are one
    "parts": ("on", "off"),  # threads share the elements of a column, not only the columns
    "in_place": ("on", "off"),  # over the fresh result of a library call
    "keep": ("on", "off"),  # values a later pass needs: in a buffer or in registers, or computed again
    "rows": ("1", "2", "4", "8", "16", "32", "64", "128"),  # that a program works on at once
    "tile": ("16", "32", "64", "128", "256"),  # rows of a product that a program has, and columns in CUDA C++
    "across": ("16", "32", "64", "128", "256"),  # columns of it
    "stages": ("3", "2", "4", "5"),  # of a product's loop, whose loads are under way at a time
    "group": ("1", "2", "4", "8", "16"),  # rows of tiles that are worked on together, column by column
    "precision": ("ieee", "tf32x3"),  # of products in float32: one of IEEE, or three on tensor cores
    "warps": ("1", "2", "4", "8", "16"),  # of a program
}


def legal(knob: str) -> tuple[str, ...]:
    """Return the values of a knob such as "fuse" or "k1.block"; empty for an unknown one."""
    kernel, _, name = knob.rpartition(".")
    return KERNEL_KNOBS.get(name, ()) if kernel else GRAPH_KNOBS.get(name, ())


def name_of(knob: str) -> str:
    """Return the name of a knob without its kernel: "block" of "k1.block"."""
    return knob.rpartition(".")[2]


def up_to(knob: str, most: int) -> tuple[str, ...]:
    """Return the legal values of a knob of numbers, up to the first that is no less than `most`."""
    values = legal(knob)
    enough = next((place for place, value in enumerate(values) if int(value) >= most), len(values) - 1)
    return values[: enough + 1]


@dataclass(frozen=True)
class Schedule:
    """Knob values; the ones that are not set have their default."""

    values: Mapping[str, str]

    @classmethod
    def from_dict(cls, values: Mapping[str, str]) -> Schedule:
        """Raise ValueError on an unknown knob or an illegal value."""
        for knob, value in values.items():
            if value not in legal(knob):
                allowed = ", ".join(legal(knob)) or "no such knob"
                raise ValueError(f"{knob}={value}: {allowed}")
        return cls(dict(values))

    def to_dict(self) -> dict[str, str]:
        return dict(self.values)

    def value(self, knob: str) -> str:
        """Value of a knob that concerns all kernels."""
        return self.values.get(knob, GRAPH_KNOBS[knob][0])

    def get(self, knob: str, default: str) -> str:
        return self.values.get(knob, default)

    def changed(self, moves: Mapping[str, str]) -> Schedule:
        return Schedule.from_dict({**self.values, **moves})


DEFAULT = Schedule({})
