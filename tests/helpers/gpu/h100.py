"""An H100 SXM at its published peaks, dense: NVIDIA H100 Tensor Core GPU data sheet. Cached copies: by hand."""

from kernelwright.kernelbench.records import Ceilings
from tests.helpers.anywhere import TARGET

CEILINGS: dict[str, float | None] = {
    "copy_bytes_s": 3.35e12,
    "cached_copy_bytes_s": 6e12,
    "fp32_flops_s": 67e12,
    "tf32_flops_s": 495e12,
    "fp16_flops_s": 989e12,
    "bf16_flops_s": 989e12,
    "fp8_flops_s": 1979e12,
    "int8_flops_s": 1979e12,
    "disturbed": None,
}
H100 = TARGET.model_copy(
    update={
        "device": "cuda:0",
        "ceilings": Ceilings.model_validate(CEILINGS),
        "languages": ("cuda", "triton"),
    }
)
