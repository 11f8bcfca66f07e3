"""torch's products of square matrices, by the precision of their operands (`records.ProductPrecision`)."""

from collections.abc import Callable

import torch

_DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}

Product = Callable[[int], Callable[[], object]]


def product_of(precision: str, device: torch.device) -> Product:
    """Return a function that prepares a product of square matrices of a given size.

    fp8 is `torch._scaled_mm` with a result in bf16, int8 `torch._int_mm` with one in int32. What it returns
    raises RuntimeError or AttributeError where torch has no such product on this device.
    """
    dtype = _DTYPES[precision]
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

    def make(size: int) -> Callable[[], object]:
        if dtype is torch.int8:
            whole_a, whole_b = torch.randint(-127, 128, (2, size, size), dtype=dtype, device=device)
            # On a GPU the rows of both lie along the sum: cuBLAS has its fastest 8-bit kernels for that.
            whole_b = whole_b.t() if device.type == "cuda" else whole_b
            return lambda: torch._int_mm(whole_a, whole_b)
        a, b = torch.rand(2, size, size, device=device).to(dtype)
        if dtype is torch.float8_e4m3fn:
            one = torch.ones((), device=device)
            return lambda: torch._scaled_mm(
                a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        product = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=product)

    return make
