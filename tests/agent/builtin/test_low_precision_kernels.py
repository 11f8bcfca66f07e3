"""Kernels in eight and four bits, in each language: what is row-wise is one kernel, and gives the reference's bytes."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.helpers.builtin.low_precision import hold, small
from tests.helpers.builtin.proving import propose, source
from tests.helpers.installed import require

pytestmark = pytest.mark.builds

WHOLE = (  # one kernel each, and nothing left to torch
    "quantize_int8_per_token", "quantize_int8_per_tensor", "quantize_uint8_zero_point", "quantize_fp8_per_tensor",
    "quantize_fp8_per_row", "quantize_fp8_groups", "dequantize_fp8_blocks", "rms_norm_quantize_int8",
    "add_rms_norm_quantize_fp8", "silu_mul_quantize_fp8", "silu_mul_quantize_int8", "mxfp4_dequantize",
    "nvfp4_dequantize",
)  # fmt: skip
IN_PARTS = ("nvfp4_quantize", "mxfp4_quantize", "kv_cache_append_fp8", "linear_fp8")
# All numbers of a format, as bytes; floats beside, at and between them, too large and too small ones.
BETWEEN = """
def between(dtype):
    every = torch.arange(0, 127).to(torch.uint8).view(dtype).float()
    every = every[every.isfinite()]
    middle = (every[1:] + every[:-1]) / 2
    edges = torch.cat([every, middle, middle * (1 + 2**-23), middle * (1 - 2**-23), torch.tensor(
        [1e-30, 460.0, 464.0, 465.0, 1e5, 6.2e4, 6.144e4, 3e38, float("inf"), float("nan")])])
    return torch.cat([edges, -edges])
"""
CASTS = {
    f"{way} {kind}": source(f"return {forward}", f"between(torch.{kind})", arguments="x").replace(
        "def get_inputs", f"{BETWEEN}\n\ndef get_inputs"
    )
    for kind in ("float8_e4m3fn", "float8_e5m2")
    for way, forward in {
        "to": f"x.to(torch.{kind})",
        "to and from": f"x.to(torch.{kind}).float() * 2",
        "all of": f"torch.stack([x.to(torch.{kind}), (-x).to(torch.{kind})]).to(torch.bfloat16).float()",
    }.items()
}
BYTES = {
    f"all bytes of {kind}": source(
        "return x.float(), x.float() + 1, x.to(torch.bfloat16)",
        f"torch.arange(256).to(torch.uint8).view(torch.{kind})",
    )
    for kind in ("float8_e4m3fn", "float8_e5m2")
}
SHIFTS = source(
    "return x >> 4, x << 3, (x & 15) | ((x >> 2) << 4), y >> 3, y << 2",
    "torch.arange(256).to(torch.uint8), torch.randint(-(2**31), 2**31, (256,), dtype=torch.int32)",
    arguments="x, y",
)
EXACT = {**CASTS, **BYTES, "shifts": SHIFTS}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_what_is_row_wise_is_one_kernel(name: str, language: str, tmp_path: Path) -> None:
    candidate = propose(small(name), language)
    assert candidate.language == language and "Nothing is left to torch" in candidate.source
    assert candidate.source.startswith('"""One fused kernel')
    hold(small(name), candidate, tmp_path)


@pytest.mark.parametrize("name", IN_PARTS)
def test_the_rest_has_kernels_beside_calls_of_torch(name: str, tmp_path: Path) -> None:
    candidate = propose(small(name))
    assert candidate.language == "cpp"
    hold(small(name), candidate, tmp_path)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_casts_and_shifts_are_torchs_to_the_bit(name: str, language: str, tmp_path: Path) -> None:
    candidate = propose(EXACT[name], language)
    assert candidate.language == language
    hold(EXACT[name], candidate, tmp_path)


# Not those that store bf16, of which the interpreter cuts bits off, or a NaN in e4m3, of which it makes 384.
INTERPRETED = [name for name in WHOLE if "dequantize" not in name]
INTERPRETED += [
    "nvfp4_quantize",
    "to float8_e5m2",
    "to and from float8_e4m3fn",
    "to and from float8_e5m2",
    "shifts",
]


@pytest.mark.parametrize("name", INTERPRETED)
def test_triton_kernels_in_the_interpreter(
    name: str, interpreter: ProcessPoolExecutor, tmp_path: Path
) -> None:
    require("triton")
    text = EXACT[name] if name in EXACT else small(name)
    candidate = propose(text, "triton")
    assert candidate.language == "triton" and "Nothing is left to torch" in candidate.source
    interpreter.submit(hold, text, candidate, tmp_path).result()
