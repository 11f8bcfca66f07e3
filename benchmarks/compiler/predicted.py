"""The cost model held against times that were measured on GPUs elsewhere, and published.

    python -m benchmarks predicted

Streaming kernels like those of RRZE's gpu-stream are built here, and their predicted bandwidth stands beside
the one that RRZE measured; so do two kernels of this repository that ran on an H200
(results/published/gpu/acceptance-h200.log). Machine: CPU with the `cuda` extra. Time: a minute (estimate).
Writes static/cost_model.md.
"""

import math
import re
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compiler.static_call import build
from benchmarks.publishing import STATIC, log, made_by, table
from kernelwright.kernelbench.chips import nvrtc, sass
from kernelwright.kernelbench.chips.cards import BY_NAME, Card
from kernelwright.kernelbench.chips.cost_model import LaunchPrediction, predicted
from kernelwright.kernelbench.chips.notes import Launched
from kernelwright.kernelbench.chips.occupancy import limits_of
from kernelwright.kernelbench.chips.ptx import parsing
from kernelwright.kernelbench.chips.ptx.tracing import LaunchArguments, trace
from kernelwright.kernelbench.machine import fingerprint, physical_threads
from kernelwright.results.store.folder import write_atomically

_PUBLISHED = Path(__file__).with_name("published_times.toml")
_H200 = Path("results") / "published" / "gpu" / "acceptance-h200.log"
_KERNELS = Path("tests") / "gpu" / "acceptance" / "kernels"
_FITTED = "NVIDIA A100-SXM4-80GB"
_ELEMENTS = 256 * 1024 * 1024 + 2
_STREAMS = {"init": 1, "read": 1, "scale": 2, "triad": 4, "stencil": 2}  # arrays that count as moved
_SOURCE = """
#define KERNEL(name, when, body) \\
    extern "C" __global__ void name(double* a, const double* __restrict__ b, const double* __restrict__ c, \\
                                    const double* __restrict__ d, unsigned long long n) { \\
        const int i = threadIdx.x + blockIdx.x * blockDim.x; \\
        if (when) { body; } \\
    }
KERNEL(init, i < n, a[i] = 0.23)
KERNEL(read, i < n, const double x = b[i]; if (x == 123.0) a[i] = x)
KERNEL(scale, i < n, a[i] = b[i] * 1.2)
KERNEL(triad, i < n, a[i] = b[i] * d[i] + c[i])
KERNEL(stencil, i > 0 && i < n - 1, a[i] = 0.5 * b[i - 1] - b[i] + 0.5 * b[i + 1])
"""
_TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x * 2) + 1


def get_inputs():
    return [torch.randn(4096, 4096)]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Compared:
    """A kernel on a card. Bandwidths in GB/s, or times in µs: `factor` is predicted time / measured time."""

    card: str
    what: str
    measured: str
    predicted: str
    factor: float
    bound: str


def run() -> None:
    rows = [*_streams(), *_on_h200()]
    machine = fingerprint(physical_threads())
    lines = [
        "# Predicted times held against published ones",
        "",
        f"{made_by('predicted', machine)} Nothing was run here.",
        "",
        "Measured: double-precision streams of [RRZE's gpu-benches](https://github.com/RRZE-HPC/gpu-benches) "
        "(gpu-stream/*.txt at 1038c5d), with one or two blocks at a time on each multiprocessor, so that "
        "occupancy goes from 2% to 100%; and two kernels of `tests/gpu/acceptance` on an H200 "
        "([log](../gpu/acceptance-h200.log)). The model's free parameters were fitted to the A100 "
        "alone; that loads and stores together bend more was added with the other cards' numbers in sight.",
        "",
        "A factor is predicted time / measured time, or its inverse, whichever is above 1.",
        "",
        *table(("card", "kernels", "median factor", "90th percentile", "worst"), list(_summary(rows))),
        "",
        *table(
            ("card", "kernel", "measured", "predicted", "predicted / measured time", "bound by"),
            [[r.card, r.what, r.measured, r.predicted, f"{r.factor:.2f}", r.bound] for r in rows],
        ),
        "",
        "What this does not say: streams use no shared memory, no tensor cores and hardly any arithmetic. "
        "Rates of units are published ones; that products reach 80% of the peak is assumed. The host's time "
        "is not counted.",
        "",
    ]
    write_atomically(STATIC / "cost_model.md", "\n".join(lines))
    log("\n".join(lines[:20]))


def _summary(rows: Sequence[Compared]) -> Iterator[list[str]]:
    cards = list(dict.fromkeys(row.card for row in rows))
    for card in [*cards, ""]:
        of = [row for row in rows if row.card == card or (not card and row.card != _FITTED)]
        factors = sorted(max(row.factor, 1 / row.factor) for row in of)
        fitted = " (fitted)" if card == _FITTED else ""
        yield [
            f"{card}{fitted}" or "**all that were not fitted**",
            str(len(factors)),
            f"{statistics.median(factors):.2f}",
            f"{factors[math.ceil(0.9 * len(factors)) - 1]:.2f}",
            f"{factors[-1]:.2f}",
        ]


def _streams() -> Iterator[Compared]:
    for each in tomllib.loads(_PUBLISHED.read_text())["cards"]:
        card = BY_NAME[each["card"]]
        code = nvrtc.code(_SOURCE, nvrtc.accelerated(card.chip))
        of_ptx = parsing.kernels(code.ptx)
        of_sass = {kernel.name: kernel for kernel in sass.kernels(code.cubin)}
        for threads, together, *bandwidths in each["rows"]:
            for name, measured in zip(_STREAMS, bandwidths, strict=True):
                if not measured:
                    continue
                found = _stream(of_ptx[name], of_sass[name], card, threads, together)
                bandwidth = _STREAMS[name] * _ELEMENTS * 8 / found.time_us / 1e3
                what = f"{name}, {together} block{'s' * (together > 1)} of {threads}"
                yield Compared(
                    card.name,
                    what,
                    f"{measured} GB/s",
                    f"{bandwidth:.0f} GB/s",
                    measured / bandwidth,
                    found.bound,
                )


def _stream(
    kernel: parsing.PtxKernel, code: sass.SassKernel, card: Card, threads: int, together: int
) -> LaunchPrediction:
    """Predict a stream whose shared memory lets `together` blocks onto a multiprocessor."""
    limits = limits_of(card.chip)
    assert card.latencies is not None
    size, grid = _ELEMENTS * 8, (_ELEMENTS // threads + 1, 1, 1)
    arrays = tuple((at << 36, size) for at in (1, 2, 3, 4))
    given = LaunchArguments((threads, 1, 1), (*(begin for begin, _ in arrays), _ELEMENTS), arrays)
    launch = Launched(
        builder="NVRTC",
        name=kernel.name,
        launches=1,
        grid=grid,
        threads=threads,
        configurations=0,
        registers=code.registers,
        stack_bytes=0,
        shared_bytes=limits.shared_bytes // together - limits.system_bytes - 128,
        loops=0,
        mix=sass.mix(code),
        whole=sass.whole(code),
        trace=trace(kernel, grid, given, card.latencies),
    )
    return predicted(launch, card)


def _on_h200() -> Iterator[Compared]:
    """Compare the kernels of the acceptance script, which ran on an H200 on 64 MiB."""
    card = BY_NAME["NVIDIA H200"]
    for name, measured_us in _device_times(_H200.read_text()).items():
        [launch] = build((_KERNELS / f"{name}.py").read_text(), _TASK, card.chip).kernels
        found = predicted(launch, card)
        yield Compared(
            card.name,
            f"relu(2 x) + 1, {name}",
            f"{measured_us:.1f} µs",
            f"{found.time_us:.1f} µs",
            found.time_us / measured_us,
            found.bound,
        )


def _device_times(text: str) -> Mapping[str, float]:
    """Return the µs of the device's clock, by language."""
    line = r"PASS (compile_cuda|triton) correct .* by the device ([\d.]+)"
    return {match[1]: float(match[2]) for match in re.finditer(line, text)}
