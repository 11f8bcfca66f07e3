"""The evaluator's own compiled loops: random draws and error budgets, where torch would take many passes."""

from functools import cache
from pathlib import Path

from kernelwright.kernelbench import jit
from kernelwright.kernelbench.errors import MissingPrerequisite

_FLAGS: dict[str, tuple[str, ...]] = {
    "draws": ("-ffast-math", "-mprefer-vector-width=512"),
    "rows": ("-mprefer-vector-width=512",),
}


_problems: dict[str, str] = {}  # library -> why it could not be built


def not_built() -> dict[str, str]:
    """Return the libraries that the compiler fails on, with the reasons."""
    for name in _FLAGS:
        library(name)
    return dict(_problems)


@cache
def library(name: str) -> jit.CppLibrary | None:
    """`name`.cpp of this folder, built; None where there is no C++ compiler, and torch serves instead.

    It does, several times as slowly, where the compiler fails too: see `not_built`.
    """
    source = (Path(__file__).parent / f"{name}.cpp").read_text()
    try:
        return jit.compile_cpp(source, flags=_FLAGS[name])
    except MissingPrerequisite:
        return None
    except jit.BuildError as error:
        _problems[name] = str(error)
        return None
