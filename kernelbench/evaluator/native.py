"""The evaluator's own compiled loops: random draws and error budgets, where torch would take many passes."""

from functools import cache
from pathlib import Path

from kernelbench import jit
from kernelbench.errors import MissingPrerequisite

_FLAGS: dict[str, tuple[str, ...]] = {
    "draws": ("-ffast-math", "-mprefer-vector-width=512"),
    "rows": ("-mprefer-vector-width=512",),
}


@cache
def library(name: str) -> jit.CppLibrary | None:
    """`name`.cpp of this folder, built; None where there is no C++ compiler, and torch serves instead."""
    source = (Path(__file__).parent / f"{name}.cpp").read_text()
    try:
        return jit.compile_cpp(source, flags=_FLAGS[name])
    except (jit.BuildError, MissingPrerequisite):
        return None
