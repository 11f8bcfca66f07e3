"""Kernels of the corpus: a .cu file says how it is launched, what comes out, and what is to be found in it.

    //: x = randn(100)              a statement of Python, with torch's names
    //: twice<<<1, 128>>>(x, y)     a launch: grid, block and, perhaps, bytes of dynamic shared memory
    //: y == 2 * x                  what y must be
    //:SHORT: y = empty(50)         in the variant SHORT in place of the line above

    y[i] = 2 * x[i];                //! SHORT out_of_bounds; TWICE read_after_write, write_after_read

A variant is built with its name defined. After //! stands what is found at this line: in a variant, or, where
there is no name, in the kernel as it is. Besides the kinds of findings there are `unsupported`, `refused` (of
the build or the launch, at any line) and `wrong_output` (nothing is found, but the values differ).

    python -m tests.helpers.emulate.specimen FILE.cu [VARIANT]     runs it, on a GPU where there is one; exit status 1 for wrong values
"""

import ctypes
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelwright.kernelbench.emulate.findings import KernelFault, Unsupported
from kernelwright.kernelbench.emulate.launching import collected
from kernelwright.kernelbench.emulate.memory import fresh_memory
from kernelwright.kernelbench.jit.cuda import CudaModule, compile_cuda
from kernelwright.kernelbench.jit.errors import ArgumentError, BuildError

CORPUS = Path(__file__).parents[2] / "kernelbench" / "emulate" / "corpus"
_STEP = re.compile(r"^//:(?:(?P<variant>[A-Z_]+):)? (?P<step>.*)$")
_MARK = re.compile(r"//! (?P<marks>.*)$")
_LAUNCH = re.compile(r"(?P<kernel>\w+)<<<(?P<sizes>.*)>>>\((?P<arguments>.*)\)")
_EQUAL = re.compile(r"(?P<name>\w+) == (?P<expected>.*)")
_FACTORIES = ("arange", "empty", "full", "rand", "randint", "randn", "randperm", "tensor", "zeros")
_APART = 4096  # elements
_ANYWHERE = frozenset({"refused", "wrong_output"})
_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
Found = tuple[str, int]  # its kind, and the line of the source; 0 where it has none


@dataclass(frozen=True)
class Specimen:
    path: Path
    variant: str  # "" for the kernel as it is
    steps: tuple[str, ...]  # of Python
    expected: frozenset[Found]

    @property
    def name(self) -> str:
        return f"{self.path.stem}-{self.variant}" if self.variant else self.path.stem

    def compile(self) -> CudaModule:
        return compile_cuda(self.path.read_text(), (f"-D{self.variant}",) if self.variant else ())

    def run(self) -> frozenset[Found]:
        """What is found in emulation."""
        with collected() as findings:
            try:
                wrong = self.values()
            except Unsupported as error:
                return frozenset({("unsupported", error.line)})
            except (ArgumentError, BuildError):
                return frozenset({("refused", 0)})
        found = {(finding.kind, finding.line) for finding in findings}
        return frozenset(found or ({("wrong_output", 0)} if wrong else ()))

    def values(self) -> list[str]:
        """How values differ from what they must be. Raises what compiling and launching raise."""
        torch.manual_seed(0)
        module = self.compile()
        wrong: list[str] = []

        def launch(kernel: str, sizes: tuple[Any, ...], arguments: tuple[Any, ...]) -> None:
            grid, block, *shared = ((size,) if isinstance(size, int) else size for size in sizes)
            module.get_function(kernel)(grid, block, arguments, shared_mem=shared[0][0] if shared else 0)

        def equal(name: str, value: torch.Tensor, expected: torch.Tensor) -> None:
            tolerance = _TOLERANCES.get(value.dtype, 0.0)
            try:
                torch.testing.assert_close(value.double(), expected.double(), rtol=tolerance, atol=tolerance)
            except AssertionError as error:
                wrong.append(f"{name}: {error}")

        made = {name: _apart(getattr(torch, name)) for name in _FACTORIES}
        names = {**vars(torch), **made, "F": torch.nn.functional, "launch": launch, "equal": equal}
        with fresh_memory():
            exec("\n".join(self.steps), names)
        return wrong


def read(path: Path) -> list[Specimen]:
    """The kernel as it is, and its variants."""
    lines = path.read_text().splitlines()
    marks: dict[str, set[Found]] = {"": set()}
    for number, line in enumerate(lines, 1):
        if (mark := _MARK.search(line)) is not None:
            for piece in mark["marks"].split(";"):
                variant, kinds = re.fullmatch(r" *(?:([A-Z_]+) )?([a-z_, ]+)", piece).groups("")  # type: ignore[union-attr]
                for kind in kinds.replace(",", " ").split():
                    marks.setdefault(variant, set()).add((kind, 0 if kind in _ANYWHERE else number))
    steps = [step for line in lines if (step := _STEP.match(line)) is not None]
    return [
        Specimen(path, variant, tuple(_python(steps, variant)), frozenset(expected))
        for variant, expected in marks.items()
    ]


def corpus() -> list[Specimen]:
    return [specimen for path in sorted(CORPUS.glob("*.cu")) for specimen in read(path)]


def _python(steps: list[re.Match[str]], variant: str) -> list[str]:
    chosen: list[str] = []
    for step in steps:
        if step["variant"] is None:
            chosen.append(step["step"])
        elif step["variant"] == variant:
            chosen[-1] = step["step"]
    text = [_LAUNCH.sub(r'launch("\g<kernel>", (\g<sizes>), (\g<arguments>,))', step) for step in chosen]
    return [_EQUAL.sub(r'equal("\g<name>", \g<name>, \g<expected>)', step) for step in text]


def _apart(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Its tensors lie far from all others, so that what goes beyond one is in no other."""
    if torch.cuda.is_available():  # compute-sanitizer's --padding does the same
        return factory

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = factory(*args, **kwargs)
        size = tensor.numel()
        place = torch.empty(size + 2 * _APART, dtype=tensor.dtype)[_APART : _APART + size].view(tensor.shape)
        if factory is not torch.empty:
            return place.copy_(tensor)
        # Nothing that was there before may pass for a result; torch itself would make it initialized.
        ctypes.memset(place.data_ptr(), 0xA5, place.nbytes)
        return place

    return call


def main(path: str, variant: str = "") -> int:
    if torch.cuda.is_available():
        torch.set_default_device("cuda")
    specimen = next(each for each in read(Path(path)) if each.variant == variant)
    try:
        wrong = specimen.values()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except (KernelFault, Unsupported, ArgumentError, BuildError) as error:
        print(f"{type(error).__name__}: {error}")
        return 2
    print("\n".join(wrong) or "right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
