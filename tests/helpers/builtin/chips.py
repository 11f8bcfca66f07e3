"""Triton kernels built for chips that are not there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

_SHARED_BYTES = 163 << 10  # of a program, on sm_80
TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
}


def build_launches(run: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build what `run` launches. Raises where a kernel cannot be built, or asks for more than there is."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    launched: list[tuple[Any, tuple[Any, ...], dict[str, int]]] = []

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **options: int) -> None:
        launched.append((self, args, options))

    monkeypatch.setattr(JITFunction, "run", note)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    run()
    assert launched
    for number, (function, args, options) in enumerate(launched):
        tensors = [n for n, a in enumerate(args) if isinstance(a, torch.Tensor)]
        ones = [n for n, a in enumerate(args) if type(a) is int and a == 1]  # of which Triton makes constants
        types = {p.name: "i32" for p in function.params}  # where values begin, and sizes
        types |= {function.params[n].name: TYPES[args[n].dtype] for n in tensors}
        types |= {function.params[n].name: "constexpr" for n in ones}
        aligned = {(n,): [["tt.divisibility", 16]] for n in tensors}
        built = compile(
            ASTSource(function, types, {(n,): 1 for n in ones}, aligned),
            target=GPUTarget("cuda", (80, 90)[number % 2], 32),
            options=options,
        )
        assert built.asm["cubin"]
        assert built.metadata.shared <= _SHARED_BYTES
