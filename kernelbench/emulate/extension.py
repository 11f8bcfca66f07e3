"""`load_inline` with CUDA sources, without a GPU: host code that launches kernels on torch's tensors.

All of it is one C++ source for g++, after torch's headers, which are compiled beforehand. Kernels may access
the memory of tensors: those passed to the function and those that operators created in the call.
"""

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kernelwright.kernelbench.emulate.building import (
    KERNEL_OPTIONS,
    LIBRARY,
    LINK,
    OURS,
    Built,
    bare_name,
    kept,
    make_object,
    take_notes,
    write_headers,
    write_source,
)
from kernelwright.kernelbench.emulate.findings import Dim
from kernelwright.kernelbench.emulate.launching import Emulated, EmulatedMemory
from kernelwright.kernelbench.emulate.memory import fresh_memory, made, sizes, unwritten
from kernelwright.kernelbench.emulate.translation import translate
from kernelwright.kernelbench.jit import compiler, precompiled
from kernelwright.kernelbench.jit.cache import BuildCache, content_key
from kernelwright.kernelbench.jit.errors import BuildError

WISH = ("emulated",)  # of a header, to who may make one
_TIMEOUT_S = 300.0
_OPTIONS = tuple(option for option in KERNEL_OPTIONS if option != "-std=gnu++17")
# A kernel, as the launch names it, its grid, its block, bytes of dynamic shared memory, the eight bytes that
# begin at each argument, and the memory that it may access: bytes by address.
Launched = Callable[[str, Dim, Dim, int, Sequence[int], Mapping[int, int]], None]
_LAUNCHER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_ubyte),
    ctypes.c_uint,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_size_t,
)


def header_words(base: Sequence[str], cache: BuildCache) -> tuple[str, ...]:
    """Return compiler words that put torch's headers before a source. Raises BuildError."""
    words = compiler.command()
    return precompiled.words(words, (*base, *_OPTIONS), (), torch.__version__, cache, WISH)


def build(
    name: str,
    sources: Sequence[str],
    bindings: str,
    base: Sequence[str],
    link: Sequence[str],
    cache: BuildCache,
    defines: Sequence[str] = (),
) -> Built:
    """Build an extension. `defines`: -D options. Raises Unsupported, BuildError, MissingPrerequisite."""
    if not (isinstance(name, str) and name.isidentifier()):
        raise BuildError(f"load_inline: name must be a Python identifier, got {name!r}")
    *declared, last = sources
    translate(last, (), host=True)  # what it cannot be is said by its own lines
    translated = translate("\n".join([*declared, "#line 1", last]), (), host=True)
    text = f"{translated.source}\n{bindings}"
    words = compiler.command()
    key = content_key(
        "emulated load_inline",
        OURS,
        name,
        text,
        torch.__version__,
        "\n".join((*base, *defines)),
        compiler.identity(words),
    )

    def make(workspace: Path) -> None:
        write_headers(workspace / "include")
        write_source(workspace, text)
        options = (*base, *_OPTIONS, *header, *defines, "-I", "include", f"-DTORCH_EXTENSION_NAME={name}")
        make_object((*words, *options, "-x", "c++"), workspace, _TIMEOUT_S)
        compiler.run((*words, *LINK, "kernel.o", *link, "-o", LIBRARY), workspace, _TIMEOUT_S)
        (workspace / "kernel.o").unlink()
        take_notes(workspace, translated, _TIMEOUT_S)

    entry = cache.entry(key)
    if not entry.is_dir():
        header = header_words(base, cache)
        entry = cache.get_or_build(key, make, wait_s=_TIMEOUT_S + 10)
    return kept(entry, translated)


class Extension:
    """An extension whose `module` has the functions; kernels are emulated, or given to `launched`."""

    def __init__(
        self, built: Built, load: Callable[[], ModuleType], launched: Launched | None = None
    ) -> None:
        self._launched = launched
        self._emulated = Emulated(built)
        self._given: dict[int, int] = {}
        self._failed: BaseException | None = None
        self._launcher = _LAUNCHER(self._launch)  # kept, for the library keeps its address
        address = ctypes.cast(self._launcher, ctypes.c_void_p)
        original = load()
        ctypes.c_void_p.in_dll(self._emulated.library, "kw_launcher").value = address.value
        self.module = ModuleType(original.__name__)
        self.module.__dict__["kernelwright"] = self  # which lives as long
        for word, value in vars(original).items():
            if not word.startswith("__"):
                setattr(self.module, word, self._watched(value) if callable(value) else value)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._given, self._failed = sizes(tree_leaves((args, kwargs))), None
            try:
                with fresh_memory(nested=True):
                    return function(*args, **kwargs)
            except RuntimeError:
                if self._failed is not None:
                    raise self._failed from None
                raise

        return call

    def _launch(
        self, name: bytes, call: int, given: Any, pointers: Any, count: int, sizes_: Any, shared: int
    ) -> int:
        """Handle a launch by the library; return 0 if it succeeded."""
        expression = name.decode(errors="replace")
        grid, block = tuple(sizes_[0:3]), tuple(sizes_[3:6])
        if self._launched is not None:
            values = [ctypes.cast(given[n], ctypes.POINTER(ctypes.c_uint64))[0] for n in range(1, count)]
            self._launched(expression, grid, block, shared, values, {**made(), **self._given})
            return 0
        kernel = self._emulated.name_of(given[0]) or bare_name(expression)
        ranges = {**made(), **self._given}
        names: dict[int, str] = {}
        for number in range(1, count):
            if pointers[number]:
                value = ctypes.cast(given[number], ctypes.POINTER(ctypes.c_uint64))[0]
                begin = next((at for at, size in ranges.items() if at <= value < at + size), None)
                if begin is not None:
                    names.setdefault(begin, f"argument {number}")
        memory = [
            EmulatedMemory(names.get(begin, "a tensor"), begin, size, unwritten(begin))
            for begin, size in ranges.items()
        ]
        try:
            arguments = ctypes.cast(given, ctypes.c_void_p)
            self._emulated.run(kernel, ctypes.c_void_p(call), arguments, grid, block, memory, shared)
        except BaseException as error:  # noqa: BLE001 - none can go through C++; _watched raises it
            self._failed = error
            return 1
        return 0
