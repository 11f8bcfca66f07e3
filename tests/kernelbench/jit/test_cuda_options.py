"""Options of compile_cuda: what one compiler takes the other does too."""

import pytest

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit import BuildError, cuda_options

SOURCE = 'extern "C" __global__ void fill(float* x) { x[threadIdx.x] = N; }'
ALL = ["-DN=2", "-D M", "-O3", "-lineinfo", "--use_fast_math", "-fmad=false", "--fmad=true", "-std=c++14",
       "--std=c++17", "-std=c++20"]  # fmt: skip


@pytest.mark.builds
@pytest.mark.parametrize("option", ALL)
def test_nvrtc_takes_each(option: str) -> None:
    try:
        nvrtc.version()
    except Unavailable as error:
        pytest.skip(str(error))
    assert nvrtc.cubin(SOURCE, "sm_90", ("-DN=1", *cuda_options.check([option]).nvrtc))


def test_words_for_both_compilers() -> None:
    found = cuda_options.check(["-O3", "-D N=2 * 3", "-DM", "--use_fast_math", "-fmad=false"])
    assert found.defines == {"N": "2 * 3", "M": "1"}
    assert found.nvrtc == ("--use_fast_math", "--fmad=false", "-DN=2 * 3", "-DM=1")
    assert found.emulation == ("-D__USE_FAST_MATH__", "-ffp-contract=off", "-DN=2 * 3", "-DM=1")


@pytest.mark.parametrize(
    "option", ["-O2", "-ftz=true", "--maxrregcount=16", "-I/etc", "--include-path=/", "-Xptxas", "-std=c++11"]
)
def test_others_are_refused_in_one_line(option: str) -> None:
    with pytest.raises(BuildError) as caught:
        cuda_options.check([option])
    assert str(caught.value).startswith(f"unsupported option {option!r}; use -DNAME=VALUE -O3")
    assert "\n" not in str(caught.value)


def test_a_string_is_no_list() -> None:
    with pytest.raises(BuildError, match="must be a list of strings, got the string '-O3'"):
        cuda_options.check("-O3")
