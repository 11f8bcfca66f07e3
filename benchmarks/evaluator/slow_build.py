"""Candidates whose kernel takes g++ about a second to compile."""

from benchmarks.references import itself
from kernelwright.kernelbench.records import Candidate, Task

# `unused` is never called: g++ evaluates step(NUMBER), 200,000 multiplications, while it compiles.
_KERNEL = """
from kernelwright import jit
library = jit.compile_cpp(r'''
#include <cmath>
constexpr unsigned step(unsigned seed) {
    unsigned x = seed;
    for (int i = 0; i < 200; ++i)
        for (int j = 0; j < 1000; ++j) x = x * 1664525u + 1013904223u;
    return x;
}
extern "C" void unused(int* sum) { constexpr unsigned table = step(NUMBER); *sum = table; ENDED }
''')
"""


def kernel(number: int, ended: str = "") -> str:
    """Source of a kernel that is new to the build cache for each `number`; `ended` may break it."""
    return _KERNEL.replace("NUMBER", str(number)).replace("ENDED", ended)


def correct(task: Task, number: int) -> Candidate:
    """Return the reference of a task with such a kernel, which it does not call."""
    return cpp_candidate(kernel(number) + itself(task).source)


def cpp_candidate(source: str) -> Candidate:
    return Candidate(source=source, language="cpp", author="bench")
