"""A survey by hand, of a machine with two caches."""

from kernelwright.kernelbench.records import Ceilings, Fingerprint, Target
from kernelwright.profiling.survey.records import KINDS, Bandwidth, Cache, Overhead, Peak, Survey

FINGERPRINT = Fingerprint(
    chip="Abacus 9000",
    threads=2,
    memory_bytes=8 << 30,
    last_level_cache_bytes=1 << 20,
    system="",
    python="",
    torch="2.9",
    compiler="",
)
TARGET = Target(
    device="cpu",
    languages=("cpp",),
    ceilings=Ceilings(copy_bytes_s=1e10, cached_copy_bytes_s=1e11, fp32_flops_s=1e11),
    fingerprint=FINGERPRINT,
)
CACHES = (Cache(name="L1", bytes=64 << 10), Cache(name="L2", bytes=1 << 20))
GIGABYTES_S = {
    16: 400,
    32: 390,
    64: 300,
    128: 200,
    256: 190,
    512: 180,
    1024: 90,
    2048: 21,
    4096: 20,
}  # by KiB
SURVEY = Survey(
    device="cpu",
    fingerprint=FINGERPRINT,
    load=0.25,
    caches=CACHES,
    bandwidths=tuple(
        Bandwidth(
            kind=kind, working_set_bytes=kib << 10, bytes_s=1e9 * rate * (1.5 if kind == "read" else 1.0)
        )
        for kib, rate in reversed(GIGABYTES_S.items())
        for kind in KINDS
    ),
    peaks=(
        Peak(precision="fp32", means="matmul", flops_s=180e9, path="MKL"),
        Peak(precision="fp32", means="vector units", flops_s=200e9, path="fused multiply-add, 512 bits"),
        Peak(precision="int8", means="matmul", flops_s=800e9, path="oneDNN"),
    ),
    overheads=(Overhead(name="barrier", seconds=2.5e-7),),
)
