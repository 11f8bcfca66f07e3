"""A target for tests that time nothing."""

from kernelwright.kernelbench.records import Ceilings, Fingerprint, Target

TARGET = Target(
    device="cpu",
    languages=("torch",),
    ceilings=Ceilings(copy_bytes_s=1e10, cached_copy_bytes_s=1e11, fp32_flops_s=1e11),
    fingerprint=Fingerprint(chip="", threads=1, memory_bytes=1, last_level_cache_bytes=1, system="", python="",
                            torch="", compiler=""),
)  # fmt: skip
