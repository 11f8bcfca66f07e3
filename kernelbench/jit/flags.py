"""The compiler flags a candidate may choose: those that change code, none that load, link or write files.

`-ffast-math` is allowed but never a default. The list is a convention, not a wall: inline assembly or an
`#include` can still read what the builder process can read; the sandbox around it decides that.
"""

import re
import shlex
from collections.abc import Sequence

from kernelwright.kernelbench.jit.errors import BuildError

# `-fno-math-errno` and `-fno-trapping-math` let loops over sqrt, exp and comparisons vectorize and
# change no value; `-ffp-contract=fast` (fused multiply-add) is the compiler's own default.
DEFAULT = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")

_TUNING = (
    "fast-math|unsafe-math-optimizations|associative-math|reciprocal-math|finite-math-only|signed-zeros|"
    "math-errno|trapping-math|rounding-math|strict-aliasing|strict-overflow|wrapv|exceptions|rtti|openmp|"
    "openmp-simd|unroll-loops|unroll-all-loops|peel-loops|tree-vectorize|tree-loop-vectorize|"
    "tree-slp-vectorize|tree-loop-distribution|loop-interchange|split-loops|unswitch-loops|"
    "prefetch-loop-arrays|inline-functions|inline|omit-frame-pointer|ipa-cp-clone|gcse|"
    "schedule-insns|schedule-insns2|rename-registers|stack-protector|plt|semantic-interposition|"
    "permissive"
)

_ALLOWED = re.compile(
    "|".join(
        (
            r"-O[0123sg]?|-Ofast",
            r"-f(no-)?(" + _TUNING + ")",
            r"-fvect-cost-model=(unlimited|dynamic|cheap|very-cheap)",
            r"-ffp-contract=(on|off|fast)|-fexcess-precision=(fast|standard)|-fvisibility=(default|hidden)",
            r"-finline-limit=\d+|--param=[a-z0-9-]+=\d+",
            r"-m(arch|tune)=[\w.+-]+|-mprefer-vector-width=(none|128|256|512)",
            r"-m(no-)?(sse|avx|fma|f16c|bmi|amx|popcnt|lzcnt|movbe|adx|gfni|vaes|vzeroupper)[\w.-]*",
            r"-D[A-Za-z_]\w*(=[\w.+*/()<>: -]*)?|-U[A-Za-z_]\w*",
            r"-std=(c|gnu)\+\+(17|2a|20|2b|23)",
            r"-W(no-)?[a-z][a-z0-9+=-]*|-w|-pedantic",
            r"-fPIC|-fpic|-pthread|-pipe|-g0?",
        )
    )
)

ALLOWED_IN_WORDS = (
    "-O0 … -O3 -Ofast, -march= -mtune= -mprefer-vector-width= -mavx… -mfma, "
    f"-D… -U… -std= -W… --param=, and -f[no-] with one of: {_TUNING.replace('|', ' ')}"
)

_LIBRARIES = re.compile(
    r"-fopenmp|-pthread|-shared|-fPIC|-O[0-3]|"
    r"-l(gomp|m|pthread|dl|rt|stdc\+\+|c10|torch|torch_cpu|torch_python)"
)
LIBRARIES_IN_WORDS = "-fopenmp -pthread -lgomp -lm -lpthread -ldl -lrt -lstdc++ -lc10 -ltorch -ltorch_cpu"


def check(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags one by one ("-O2 -DN=4" counts as two). Raises BuildError on a disallowed one."""
    split = _split(flags)
    for flag in split:
        if not _ALLOWED.fullmatch(flag):
            raise BuildError(f"compiler flag {flag!r} is not allowed; allowed are {ALLOWED_IN_WORDS}")
    return split


def check_link(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the linker flags of `load_inline`. Raises BuildError on a disallowed one.

    None needs passing on: torch, libstdc++, libm and the OpenMP runtime are always linked.
    """
    split = _split(flags)
    for flag in split:
        if not _LIBRARIES.fullmatch(flag):
            raise BuildError(f"linker flag {flag!r} is not allowed; allowed are {LIBRARIES_IN_WORDS}")
    return split


def defines(flags: Sequence[str]) -> dict[str, str]:
    """Return macro name -> value of the -D flags."""
    pairs = (flag[2:].partition("=") for flag in flags if flag.startswith("-D"))
    return {name: value if equals else "1" for name, equals, value in pairs}


def _split(flags: Sequence[str]) -> tuple[str, ...]:
    words = [flags] if isinstance(flags, str) else flags
    try:
        return tuple(part for word in words for part in shlex.split(word))
    except (TypeError, ValueError, AttributeError) as error:
        raise BuildError(f"flags must be a list of strings, got {flags!r} ({error})") from error
