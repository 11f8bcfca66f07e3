"""Mutants of a right kernel: candidate files that compute something else, or less exactly.

One kind of mutation rewrites the C++ at one place:

    for (int64_t c = 0; c < columns; ++c) sum += …      for (int64_t c = 0; c < columns - 1; ++c) sum += …

The other puts a second ModelNew on top of the first, which changes what goes in or comes out. Both are
mistakes that kernels have, or shortcuts that kernels have been caught at.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

_SUM = r"\b(?:sum|squares|v)\b"
_FLOATS = r"(?:scale|slope|value|bias\[\w+\]|weight\[\w+\]|gain\[\w+\]|shift\[\w+\]|residual\[[^\]]+\])"


@dataclass(frozen=True)
class Rewrite:
    """A mistake in C++: what matches `pattern` becomes `instead`. `inexact`: it only rounds."""

    kind: str
    pattern: str
    instead: str
    inexact: bool = False


@dataclass(frozen=True)
class Wrapper:
    """A mistake around the kernel: the body of a `forward(self, *inputs)`, in which `right` is the kernel."""

    kind: str
    body: str
    inexact: bool = False


@dataclass(frozen=True)
class Mutant:
    """A candidate file that differs in one place from a right one, and where."""

    kind: str
    where: str
    source: str
    inexact: bool


REWRITES = (
    Rewrite("loop ends one early", r"; (\w+) < ([^;]+); \+\+", r"; \1 < \2 - 1; ++"),
    Rewrite("loop begins one late", r"\(int64_t (\w+) = 0;", r"(int64_t \1 = 1;"),
    Rewrite("remainder of a loop left out", r"; (\w+) < ([^;]+); \+\+", r"; \1 < (\2) / 4 * 4; ++"),
    Rewrite("last term instead of the sum", rf"({_SUM}) \+= ", r"\1 = "),
    Rewrite("term left out", rf" \+ (?:{_FLOATS}|most)(?=[;) ])| - (?:mean|most)\b", ""),
    Rewrite("factor left out", rf" \* {_FLOATS}(?=[;) ])| / (?:sum|tokens|columns)(?=[;) ])", ""),
    Rewrite("wrong sign", rf" \+ (?={_FLOATS}|most|std::)", " - "),
    Rewrite("epsilon left out", r" \+ 1e-\d+f", ""),
    Rewrite("constant off by 1%", r"(?<![\w.])(0\.\d*[1-9]\d*f)", r"\1 * 1.01f"),
    Rewrite("maximum begins at zero", r"= -INFINITY", "= 0.0f"),
    Rewrite("neighbouring element", r"(?<!y)\[([^\[\]]* \+ (\w))\]", r"[\1 - (\2 > 0)]"),
    Rewrite("transposed indices", r"(?<!y)\[(\w+) \* (\w+) \+ (\w+)\]", r"[\3 * \2 + \1]"),
    Rewrite("bounds check left out", r"\w < 0 \|\| | \|\| \w >= \w+", ""),
    Rewrite("wrong comparison", r"v > (0\.0f|most)", r"v < \1"),
    Rewrite("sum in fp16", r"float (sum|squares)\b", r"_Float16 \1", inexact=True),
    Rewrite("coarse exponential", r"std::exp\(", "coarse_exp(", inexact=True),
)
_COARSE_EXP = """
static float coarse_exp(float x) {
    float power = x < -1024.0f ? 0.0f : 1.0f + x / 1024.0f;
    for (int i = 0; i < 10; ++i) power *= power;
    return power;
}
"""

WRAPPERS = (
    Wrapper("first output again", "KEPT.setdefault('y', right(*inputs))\nreturn KEPT['y'].clone()"),
    Wrapper(
        "output kept by shape",
        "key = tuple(x.shape for x in inputs)\n"
        "if key not in KEPT:\n    KEPT[key] = right(*inputs)\n"
        "return KEPT[key].clone()",
    ),
    Wrapper(
        "output kept by address",
        "key = tuple((x.shape, x.data_ptr()) for x in inputs)\n"
        "if key not in KEPT:\n    KEPT[key] = right(*inputs)\n"
        "return KEPT[key].clone()",
    ),
    Wrapper("zeros", "return torch.zeros_like(right(*inputs))"),
    Wrapper("mean of the output", "y = right(*inputs)\nreturn torch.full_like(y, float(y.mean()))"),
    Wrapper("last row left out", "y = right(*inputs)\ny[-1:] = 0\nreturn y"),
    Wrapper("last element left out", "y = right(*inputs)\ny.view(-1)[-1] = 0\nreturn y"),
    Wrapper(
        "second half of the batch copied",
        "y = right(*inputs)\nhalf = len(y) // 2\ny[len(y) - half :] = y[:half].clone()\nreturn y",
    ),
    Wrapper(
        "inputs beyond 8 cut off",
        "return right(*(x.clamp(-8, 8) if x.is_floating_point() else x for x in inputs))",
    ),
    Wrapper(
        "small inputs skipped",
        "y = right(*inputs)\nreturn y * 0 if float(inputs[0].abs().max()) < 1e-3 else y",
    ),
    Wrapper("input overwritten", "y = right(*inputs)\ninputs[0].zero_()\nreturn y"),
    Wrapper(
        "wrong from the second call on",
        "KEPT['n'] = KEPT.get('n', 0) + 1\ny = right(*inputs)\nreturn y if KEPT['n'] < 2 else y * 0",
    ),
    Wrapper("one dimension more", "return right(*inputs).unsqueeze(0)"),
    Wrapper(
        "inputs rounded to fp16",
        "return right(*(x.half().float() if x.is_floating_point() else x for x in inputs))",
        inexact=True,
    ),
    Wrapper(
        "inputs rounded to bf16",
        "return right(*(x.bfloat16().float() if x.is_floating_point() else x for x in inputs))",
        inexact=True,
    ),
    Wrapper("output rounded to fp16", "return right(*inputs).half().float()", inexact=True),
)
_WRAPPED = """

KEPT: dict = {{}}
Right = ModelNew


class ModelNew(Right):
    def forward(self, *inputs):
        right = super().forward
{body}
"""


def mutants(source: str, most: int = 3) -> Iterator[Mutant]:
    """Yield mutants of a candidate file, of each kind of rewrite at most `most` places, drawn at random."""
    start = source.index('compile_cpp(r"""') + len('compile_cpp(r"""')
    end = source.index('"""', start)
    head, cpp, rest = source[:start], source[start:end], source[end:]
    for rewrite in REWRITES:
        places = list(re.finditer(rewrite.pattern, cpp))
        for place in sorted(random.Random(0).sample(places, min(most, len(places))), key=re.Match.start):
            changed = cpp[: place.start()] + place.expand(rewrite.instead) + cpp[place.end() :]
            if "coarse_exp" in changed:
                changed = changed.replace('\nextern "C"', f'{_COARSE_EXP}\nextern "C"', 1)
            line = cpp.count("\n", 0, place.start())
            where = f"line {line}: {cpp.splitlines()[line].strip()}"
            yield Mutant(rewrite.kind, where, head + changed + rest, rewrite.inexact)
    for wrapper in WRAPPERS:
        body = "\n".join(f"        {line}" for line in wrapper.body.splitlines())
        yield Mutant(wrapper.kind, "ModelNew", source + _WRAPPED.format(body=body), wrapper.inexact)
