"""The instructions of the loops of CPU kernels (x86-64), from objdump's disassembly of a library.

Of nested loops only the innermost count, and unrolled code in the others: their mix is close to that of what
runs. Remainder loops, for the last few elements that do not fill a vector, are left out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.kernelbench.chips.loops import loops
from kernelwright.kernelbench.evaluator.processes.answers import Count
from kernelwright.profiling.static.objdump import output_of

_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>[^>]+)>:$")
_INSTRUCTION = re.compile(r"^ *(?P<address>[0-9a-f]+):\t(?P<text>.*)$")
_TARGET = re.compile(r"^(?P<address>[0-9a-f]+) <(?P<name>[^>+@]+)")
_PREFIX = re.compile(r"^((lock|repn?z?|bnd|notrack|data16|cs|addr32|\{evex\}|\{vex\}) +)+")
_PART = re.compile(r"\.(_omp_fn|constprop|part|cold|isra|lto_priv)(\.\d+)*")  # that GCC makes of a function
_ARITHMETIC = re.compile(
    r"^v?(add|sub|mul|div|sqrt|max|min|scalef|rcp\d*|rsqrt\d*|fn?m(add|sub|addsub|subadd)\d*|dpbf16)[ps][sdh]$"
)
_FMA = re.compile(r"^v?(fn?m(add|sub|addsub|subadd)\d*[ps][sdh]|dpbf16ps)$")
_DIVISION = re.compile(r"^v?(div|sqrt)[ps][sdh]$")
_ONE_NUMBER = re.compile(r"^v?([a-z]+\d*s[sdh]|cvt[a-z\d]*2s[sdh]|cvtt?s[sdh]2.*|mov[dq])$")
_SAME = (("add", "sub"), ("mul",), ("div", "sqrt"))
_UNROLLED, _MOSTLY = 32, 0.75  # packed instructions of a body, and their share of those with vector registers
_ON_STACK = re.compile(r"\(%r[sb]p")
_NOT_SCALAR = ("_ZGV", "mem", "GOMP_", "omp_")  # functions of vectors, of memory, of OpenMP


@dataclass(frozen=True)
class X86Instruction:
    address: int
    mnemonic: str
    operands: str
    target: int | None = None  # the address that it jumps to, or calls
    callee: str = ""

    @property
    def bits(self) -> int:
        """Bits of the widest vector register it uses; 0 if it uses none."""
        return next((b for r, b in (("%zmm", 512), ("%ymm", 256), ("%xmm", 128)) if r in self.operands), 0)

    @property
    def is_scalar(self) -> bool:
        """True for instructions on one floating number in a vector register."""
        return self.bits > 0 and _ONE_NUMBER.match(self.mnemonic) is not None

    @property
    def is_packed(self) -> bool:
        return self.bits > 0 and not self.is_scalar

    @property
    def is_arithmetic(self) -> bool:
        """True for floating-point arithmetic, on one number or several, and for products of AMX tiles."""
        return _ARITHMETIC.match(self.mnemonic) is not None or self.mnemonic.startswith("tdp")

    @property
    def is_fma(self) -> bool:
        return _FMA.match(self.mnemonic) is not None or self.mnemonic.startswith("tdp")

    @property
    def is_division(self) -> bool:
        """True for divisions and square roots, an order of magnitude slower than a product."""
        return _DIVISION.match(self.mnemonic) is not None

    @property
    def is_gather(self) -> bool:
        """True for loads and stores of a vector whose elements are not contiguous."""
        return "gather" in self.mnemonic or "scatter" in self.mnemonic

    @property
    def is_streaming(self) -> bool:
        """True for stores past the caches."""
        return self.mnemonic.removeprefix("v").startswith("movnt")

    @property
    def is_prefetch(self) -> bool:
        return self.mnemonic.startswith("prefetch")

    @property
    def is_spill(self) -> bool:
        """True for moves of a vector register to or from the stack."""
        return self.bits > 0 and "mov" in self.mnemonic and _ON_STACK.search(self.operands) is not None

    @property
    def is_jump(self) -> bool:
        return self.mnemonic.startswith("j")

    @property
    def ends(self) -> bool:
        """True if execution does not continue with the next instruction."""
        return self.mnemonic in ("jmp", "ret", "ud2", "hlt")


def kernel_of(function: str) -> str:
    """Return the source function from which the compiler made this one."""
    return _PART.sub("", function)


@dataclass(frozen=True)
class MachineFunction:
    """A function of a library; `kernel` is the source function from which the compiler made it."""

    name: str
    instructions: tuple[X86Instruction, ...]

    @property
    def kernel(self) -> str:
        return kernel_of(self.name)

    def busy_loops(self) -> list[list[X86Instruction]]:
        """Return the innermost loops, and code unrolled within others."""
        places = {instruction.address: place for place, instruction in enumerate(self.instructions)}
        successors = []
        for place, instruction in enumerate(self.instructions):
            goes_on = (
                [places[instruction.target]] if instruction.is_jump and instruction.target in places else []
            )
            if not instruction.ends and place + 1 < len(self.instructions):
                goes_on.append(place + 1)
            successors.append(goes_on)
        found = [(loop.innermost, [self.instructions[p] for p in loop.own]) for loop in loops(successors)]
        return [body for innermost, body in found if innermost or _is_unrolled(body)]


def _is_unrolled(body: Sequence[X86Instruction]) -> bool:
    """Return True if there are so many vector instructions that they must have been a loop."""
    vector = [instruction for instruction in body if instruction.bits]
    return sum(i.is_packed for i in vector) > max(_UNROLLED, _MOSTLY * len(vector))


def functions(library: Path) -> list[MachineFunction]:
    """Return the functions of a shared library.

    Raises Unavailable if objdump is missing or cannot read it.
    """
    return list(parsed(output_of(library, "--disassemble", "--no-show-raw-insn", "--section=.text")))


def parsed(text: str) -> Iterator[MachineFunction]:
    """Yield the functions in objdump's output, in AT&T syntax."""
    name, found = "", list[X86Instruction]()
    for line in [*text.splitlines(), "0 <>:"]:
        head = _FUNCTION.match(line)
        if head is not None or line == "0 <>:":
            if name and found:
                yield MachineFunction(name, tuple(found))
            name, found = head["name"] if head is not None else "", []
        elif (match := _INSTRUCTION.match(line)) is not None and match["text"]:
            found.append(_instruction(int(match["address"], 16), match["text"]))


def _instruction(address: int, text: str) -> X86Instruction:
    words = _PREFIX.sub("", text.strip()).split(None, 1)
    if not words:
        return X86Instruction(address, text.strip(), "")
    mnemonic, operands = words[0], words[1] if len(words) > 1 else ""
    target = _TARGET.match(operands) if mnemonic.startswith(("j", "call")) else None
    if target is None:
        return X86Instruction(address, mnemonic, operands)
    return X86Instruction(address, mnemonic, operands, int(target["address"], 16), target["name"])


@dataclass(frozen=True)
class LoopMix:
    """Mix of instructions in the loops of one kernel. Shares are None if there is nothing to count."""

    kernel: str
    loops: Count
    instructions: Count
    vector_bits: Count  # of the widest register
    packed_share: float | None  # of instructions with vector registers, those on more than one number
    zmm_share: float | None  # of packed instructions, those of 512 bits
    ymm_share: float | None
    fma_share: float | None  # of floating-point arithmetic
    divisions: Count
    gathers: Count
    spills: Count
    streaming_stores: Count
    prefetches: Count
    calls: tuple[str, ...]  # of functions, by name, but for _NOT_SCALAR


def mixes(found: Sequence[MachineFunction]) -> list[LoopMix]:
    """Return the mix of each kernel that has loops, in the order of the library."""
    kernels: dict[str, list[list[X86Instruction]]] = {}
    for function in found:
        kernels.setdefault(function.kernel, []).extend(_main(function.busy_loops()))
    return [_mix(kernel, loops) for kernel, loops in kernels.items() if loops]


def _main(loops: Sequence[list[X86Instruction]]) -> list[list[X86Instruction]]:
    """Return the loops without those that repeat the arithmetic of another one with wider vectors."""
    widest: dict[tuple[int, ...], int] = {}
    for loop in loops:
        work = _work(loop)
        widest[work] = max(widest.get(work, 0), _bits(loop))
    return [loop for loop in loops if not any(_work(loop)) or _bits(loop) == widest[_work(loop)]]


def _work(loop: Sequence[X86Instruction]) -> tuple[int, ...]:
    """Return the counts of fused, additive, multiplicative and dividing instructions in a loop."""
    kinds = [re.sub(r"[ps][sdh]$", "", i.mnemonic).lstrip("v") for i in loop if i.is_arithmetic]
    fused = sum(kind.startswith("f") for kind in kinds)
    return (fused, *(sum(kind in names for kind in kinds) for names in _SAME))


def _bits(loop: Sequence[X86Instruction]) -> int:
    return max((i.bits if i.is_packed else 1 for i in loop if i.is_arithmetic), default=0)


def _mix(kernel: str, loops: Sequence[Sequence[X86Instruction]]) -> LoopMix:
    every = [instruction for loop in loops for instruction in loop]
    vector = [i for i in every if i.bits]
    packed = [i for i in vector if i.is_packed]
    arithmetic = [i for i in every if i.is_arithmetic]
    return LoopMix(
        kernel=kernel,
        loops=len(loops),
        instructions=len(every),
        vector_bits=max((i.bits for i in packed), default=0),
        packed_share=_share(len(packed), len(vector)),
        zmm_share=_share(sum(i.bits == 512 for i in packed), len(packed)),
        ymm_share=_share(sum(i.bits == 256 for i in packed), len(packed)),
        fma_share=_share(sum(i.is_fma for i in arithmetic), len(arithmetic)),
        divisions=sum(i.is_division for i in every),
        gathers=sum(i.is_gather for i in every),
        spills=sum(i.is_spill for i in every),
        streaming_stores=sum(i.is_streaming for i in every),
        prefetches=sum(i.is_prefetch for i in every),
        calls=tuple(
            i.callee for i in every if i.mnemonic.startswith("call") and not i.callee.startswith(_NOT_SCALAR)
        ),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
