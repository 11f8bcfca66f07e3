"""Kernels of a cubin: their resources, and their machine code (SASS).

Read with cuobjdump and nvdisasm, which need no GPU: those of the CUDA toolkit, or those that Triton brings.
"""

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelwright.kernelbench.chips.loops import loops
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.evaluator.processes.answers import Count

_TIMEOUT_S = 120.0
_RESOURCES = re.compile(r"^ Function (?P<name>\S+):\s+(?P<values>REG:.*)$", re.MULTILINE)
_RESOURCE = re.compile(r"(?P<name>[A-Z]+)(?:\[\d+\])?:(?P<value>\d+)")
_CHIP = re.compile(r"(?:EF_CUDA_SM|sm_|SM\()(\d+)")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.(?P<name>[^,]+),", re.MULTILINE)
_INSTRUCTION = re.compile(
    r"^\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:(?P<guard>@!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)(?P<rest>[^;]*);"
)
_ENCODING = re.compile(r"/\* 0x(?P<high>[0-9a-f]{16}) \*/\s*$")
_LABEL = re.compile(r"^(?P<label>\.L_\S+):$")
_GOES_TO = re.compile(r"`\((?P<label>\.L_\S+)\)")
_SYSTEM_BYTES = (
    1024  # of shared memory, that from sm_90 on are counted with what a kernel declares, if it does
)
_STALL = 41  # the first of four bits of the second word: cycles until the next instruction may be issued
_UNIFORM = re.compile(r"^ *!?UP\d,")  # of a branch: the predicate that it goes by
_BRANCHES = {"BRA", "JMP"}
_WAITS = {"BRA", "SYNCS", "NANOSLEEP", "YIELD", "WARPSYNC", "NOP", "PLOP3"}
_ENDS = {"BRA", "BRX", "EXIT", "JMP", "RET"}
_TENSOR = re.compile(r"^(UTC)?[A-Z]*MMA$")
_WIDTH = re.compile(r"\.(U?8|S8|U?16|S16|64|128|256)\b")


@dataclass(frozen=True)
class SassInstruction:
    address: int
    opcode: str  # with its modifiers: LDG.E.128
    stall: int | None = None  # cycles that the compiler has the warp wait after it
    goes_to: str = ""  # the label of a branch
    guarded: bool = False  # whether it does nothing where a predicate says so

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def works(self) -> bool:
        """True if it does more than wait or branch."""
        return self.name not in _WAITS

    @property
    def is_tensor(self) -> bool:
        """True for products of the tensor cores: HMMA, IMMA, DMMA, HGMMA, QGMMA, UTCHMMA and others."""
        return _TENSOR.match(self.name) is not None

    @property
    def bits(self) -> int:
        """Bits that a thread loads or stores at once."""
        found = _WIDTH.search(self.opcode)
        return int(found[1].lstrip("US")) if found else 32


@dataclass(frozen=True)
class SassKernel:
    """A kernel of a cubin. Shared memory is as declared; a launch may add to it."""

    name: str
    chip: str  # "sm_90"
    registers: int  # of a thread
    stack_bytes: int
    shared_bytes: int
    instructions: tuple[SassInstruction, ...]
    labels: tuple[tuple[str, int], ...]  # with the place of the instruction that they are before

    def innermost_loops(self) -> list[list[SassInstruction]]:
        places = dict(self.labels)
        last = len(self.instructions) - 1
        successors = []
        for place, instruction in enumerate(self.instructions):
            goes_on = [places[instruction.goes_to]] if instruction.goes_to in places else []
            if (instruction.guarded or instruction.name not in _ENDS) and place < last:
                goes_on.append(place + 1)
            successors.append([at for at in goes_on if at <= last])
        found = loops(successors, lambda body: any(self.instructions[place].works for place in body))
        return [[self.instructions[place] for place in loop.own] for loop in found if loop.innermost]


@dataclass(frozen=True)
class SassMix:
    """Mix of instructions of a kernel, in its innermost loops if it has any."""

    instructions: Count
    tensor: Count  # products of tensor cores: those of the next three lines
    warp_products: Count  # HMMA, IMMA, DMMA: by a warp
    group_products: Count  # HGMMA, QGMMA: by four warps together, of what lies in shared memory
    block_products: Count  # UTCHMMA: for the whole block, into the tensor cores' own memory
    fp32: Count  # FFMA, FADD, FMUL
    special: Count  # MUFU: exp2, log2, sine, reciprocal
    loads: Count  # of global memory
    stores: Count
    access_bits: float | None  # of global loads and stores, on average
    asynchronous: Count  # copies that pass no register
    spills: Count  # LDL and STL: local memory, which lies in the caches and beyond
    shared: Count  # LDS, STS, LDSM, STSM
    barriers: Count
    atomics: Count
    stall_cycles: Count  # that the compiler has a warp wait for fixed latencies


def kernels(cubin: bytes) -> list[SassKernel]:
    """Return the kernels of a cubin. Raises Unavailable if a tool is missing or cannot read it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        resources = _run(tool("cuobjdump"), "--dump-resource-usage", str(file))
        text = _run(tool("nvdisasm"), "--print-code", "--print-instruction-encoding", str(file))
    return parsed(resources, text)


@cache
def tool(name: str) -> str:
    """Return the path of "cuobjdump" or "nvdisasm". Raises Unavailable if it is missing."""
    found = shutil.which(name)
    if found is None and (triton := importlib.util.find_spec("triton")) and triton.origin:
        with_triton = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / name
        found = str(with_triton) if with_triton.exists() else None
    if found is None:
        raise Unavailable(f"{name} is not installed; pip install 'kernelwright[cuda]', or the CUDA toolkit")
    return found


def _run(*words: str) -> str:
    name = Path(words[0]).name
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{name} took longer than {_TIMEOUT_S:g} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Unavailable(f"{name}: {last[-1]}")
    return done.stdout


def parsed(resources: str, text: str) -> list[SassKernel]:
    """Parse cuobjdump's list of resources and nvdisasm's code with encodings."""
    bodies = re.split(_SECTION, text)
    chip = _CHIP.search(bodies[0])
    number = int(chip[1]) if chip else 0
    code = {name: _code(body) for name, body in zip(bodies[1::2], bodies[2::2], strict=True)}
    found = []
    for match in _RESOURCES.finditer(resources):
        values = {m["name"]: int(m["value"]) for m in _RESOURCE.finditer(match["values"])}
        instructions, labels = code.get(match["name"], ((), ()))
        shared = values.get("SHARED", 0)
        found.append(
            SassKernel(
                name=match["name"],
                chip=f"sm_{number}",
                registers=values.get("REG", 0),
                stack_bytes=values.get("STACK", 0),
                shared_bytes=shared - _SYSTEM_BYTES if shared and number >= 90 else shared,
                instructions=instructions,
                labels=labels,
            )
        )
    return found


def _code(body: str) -> tuple[tuple[SassInstruction, ...], tuple[tuple[str, int], ...]]:
    found: list[SassInstruction] = []
    labels: list[tuple[str, int]] = []
    waiting: re.Match[str] | None = None
    for line in body.splitlines():
        if (label := _LABEL.match(line)) is not None:
            labels.append((label["label"], len(found)))
        elif (match := _INSTRUCTION.match(line)) is not None:
            waiting = match  # its second word, with the stall, stands in the next line
        elif waiting is not None and (encoding := _ENCODING.search(line)) is not None:
            found.append(_instruction(waiting, int(encoding["high"], 16) >> _STALL & 15))
            waiting = None
    return tuple(found), tuple(labels)


def _instruction(match: re.Match[str], stall: int) -> SassInstruction:
    goes_to = _GOES_TO.search(match["rest"])
    branches = match["opcode"].partition(".")[0] in _BRANCHES
    label = goes_to["label"] if goes_to and branches else ""
    guarded = match["guard"] is not None or _UNIFORM.match(match["rest"]) is not None
    return SassInstruction(int(match["address"], 16), match["opcode"], stall, label, guarded)


def mix(kernel: SassKernel) -> SassMix:
    inner = kernel.innermost_loops()
    return _mix([i for loop in inner for i in loop] if inner else kernel.instructions)


def whole(kernel: SassKernel) -> SassMix:
    """Return the mix of all its code, including what runs once."""
    return _mix(kernel.instructions)


def _mix(every: Sequence[SassInstruction]) -> SassMix:
    def of(*names: str) -> int:
        return sum(i.name in names for i in every)

    accesses = [i.bits for i in every if i.name in ("LDG", "STG", "LDGSTS")]
    tensor = [i.name for i in every if i.is_tensor]
    by_block = sum(name.startswith("UTC") for name in tensor)
    by_group = sum(name.endswith("GMMA") for name in tensor)
    return SassMix(
        instructions=len(every),
        tensor=len(tensor),
        warp_products=len(tensor) - by_group - by_block,
        group_products=by_group,
        block_products=by_block,
        fp32=of("FFMA", "FADD", "FMUL", "FFMA2", "FADD2", "FMUL2"),
        special=of("MUFU"),
        loads=of("LDG"),
        stores=of("STG"),
        access_bits=sum(accesses) / len(accesses) if accesses else None,
        asynchronous=of("LDGSTS", "UBLKCP", "UTMALDG", "UTMASTG"),
        spills=of("LDL", "STL"),
        shared=of("LDS", "STS", "LDSM", "STSM"),
        barriers=of("BAR", "SYNCS", "DEPBAR"),
        atomics=of("ATOM", "ATOMG", "ATOMS", "RED", "REDG"),
        stall_cycles=sum(i.stall or 0 for i in every),
    )
