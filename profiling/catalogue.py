"""What metrics mean: unit, which way is better, and which profilers can tell."""

from dataclasses import dataclass
from typing import Literal

from profiling.records import Metric, Provenance


@dataclass(frozen=True)
class Definition:
    unit: str  # "1" of shares
    meaning: str
    better: Literal["more", "less", "neither"]
    provenance: Provenance


CATALOGUE = {
    "minimal_bytes": Definition("bytes", "inputs, weights and outputs, once each", "less", "roofline"),
    "flops": Definition("FLOP", "of the reference's products and convolutions", "less", "roofline"),
    "memory_floor": Definition("us", "what moving the minimal bytes takes", "less", "roofline"),
    "compute_floor": Definition("us", "what the FLOPs take at the measured peak", "less", "roofline"),
    "achieved_bandwidth": Definition("bytes/s", "minimal bytes over the time", "more", "roofline"),
    "bandwidth_share": Definition("1", "memory floor over the time", "more", "roofline"),
    "compute_share": Definition("1", "compute floor over the time", "more", "roofline"),
    "loops": Definition("loops", "innermost or unrolled, but for those over a rest", "neither", "static"),
    "vector_bits": Definition("bit", "of the widest vector register in these loops", "more", "static"),
    "packed_share": Definition("1", "vector instructions that work on several numbers", "more", "static"),
    "zmm_share": Definition("1", "of these, those on 512 bits", "neither", "static"),
    "fma_share": Definition("1", "floating-point arithmetic that is fused", "more", "static"),
    "divisions": Definition("instructions", "divisions and square roots in these loops", "less", "static"),
    "gathers": Definition("instructions", "vectors whose elements lie apart", "less", "static"),
    "spills": Definition("instructions", "vector registers to and from the stack", "less", "static"),
    "streaming_stores": Definition("instructions", "stores past the caches", "neither", "static"),
    "prefetches": Definition("instructions", "of memory that is wanted soon", "neither", "static"),
    "calls_in_loops": Definition("instructions", "calls, mostly of scalar functions", "less", "static"),
}  # fmt: skip


def metric(name: str, value: float, kernel: str = "") -> Metric:
    """A metric of the catalogue. Raises KeyError where there is none of this name."""
    known = CATALOGUE[name]
    return Metric(name=name, value=value, unit=known.unit, provenance=known.provenance, kernel=kernel)
