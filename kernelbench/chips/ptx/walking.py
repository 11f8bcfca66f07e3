"""The way of single threads through a kernel, and the addresses of their accesses, without its data.

    mov.u32         %r1, %tid.x;              7
    mul.wide.u32    %rd2, %r1, 16;            112
    add.s64         %rd3, %rd1, %rd2;         0x7f0000000070, for the launch's argument is known
    ld.global.v4.f32 {%f1, ...}, [%rd3];      the access is recorded; what it loads is unknown
    setp.gt.f32     %p1, %f1, 0f00000000;     unknown
    ld.global.u32   %r2, [%rd4];              an index, perhaps: a number that goes with the address
    @%p1 bra        $L2;                      taken: a branch by data skips forward, and ends a loop

Integers and predicates are computed, as far as they depend on the launch alone. Each block of the kernel
becomes a Python function, in which floating-point arithmetic does not occur.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelwright.kernelbench.chips.ptx.parsing import PtxInstruction, PtxKernel
from kernelwright.kernelbench.errors import Unavailable

_MOST_BLOCKS = 3_000_000  # of a thread's way; seconds
_MOST_ACCESSES = 200_000  # that are recorded of a thread
_ADDRESS = re.compile(r"\[\s*(?P<base>[%\w$.]+)\s*(?:\+\s*(?P<offset>-?\w+))?\s*\]")
_TYPE = re.compile(r"[bus](8|16|32|64)$")
_COMPARISONS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
_ENDS = ("bra", "ret", "exit", "trap", "brx")
_WITHOUT_RESULT = ("st", "red", "bar", "barrier", "membar", "fence", "cp", "prefetch", "griddepcontrol")
MASKED = -1
Register = int | None


@dataclass(frozen=True)
class Geometry:
    """Place of a thread in its launch."""

    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    threads: tuple[int, int, int]  # of a block
    blocks: tuple[int, int, int]  # of the grid


@dataclass
class ThreadPath:
    """Blocks in the order in which a thread ran them, and its accesses of global memory.

    An access is the number of its instruction, and the address; None if that depends on data, MASKED if the
    instruction's guard keeps the thread from it.
    """

    blocks: list[int] = field(default_factory=list)
    accesses: list[tuple[int, Register]] = field(default_factory=list)


class Walker:
    """Walks through one kernel. `parameters`: values by name, as integers; others are unknown."""

    def __init__(self, kernel: PtxKernel, parameters: Mapping[str, int]) -> None:
        self.kernel = kernel
        writer = _Writer(kernel, parameters)
        names: dict[str, Any] = {
            "quotient": _quotient,
            "permuted": _permuted,
            "lut": _lut,
            "extended": _extended,
            "index": _index,
        }
        exec(writer.text, names)  # made here of numbers and operators alone
        self._run: list[Callable[[list[Register], Any], int]] = [
            names[f"block{number}"] for number in range(len(kernel.blocks))
        ]
        self._registers = writer.registers
        self.memory = writer.memory

    def walk(self, where: Geometry, most: int = _MOST_BLOCKS, stop: bool = False) -> ThreadPath:
        """Return the way of a thread. `stop`: end it after so many blocks, instead of raising Unavailable."""
        registers: list[Register] = [None] * len(self._registers)
        for name, value in _special(where).items():
            if name in self._registers:
                registers[self._registers[name]] = value
        way = ThreadPath()
        accesses = way.accesses

        def note(number: int, address: Register) -> None:
            if len(accesses) < _MOST_ACCESSES:
                accesses.append((number, address))

        at, run, blocks = 0, self._run, way.blocks
        while at >= 0:
            blocks.append(at)
            if len(blocks) >= most:
                if stop:
                    break
                raise Unavailable(f"a thread of {self.kernel.name} takes more than {most} steps")
            at = run[at](registers, note)
        return way


def _special(where: Geometry) -> dict[str, int]:
    found = {}
    for name, sizes in (
        ("tid", where.thread), ("ctaid", where.block), ("ntid", where.threads), ("nctaid", where.blocks)
    ):  # fmt: skip
        found.update({f"%{name}.{axis}": size for axis, size in zip("xyz", sizes, strict=True)})
    x, y, z = where.thread
    linear = (z * where.threads[1] + y) * where.threads[0] + x
    return {**found, "%laneid": linear % 32, "%warpid": linear // 32, "WARP_SZ": 32}


class _Writer:
    """Python functions of a kernel's blocks, over one list of registers."""

    def __init__(self, kernel: PtxKernel, parameters: Mapping[str, int]) -> None:
        self.registers: dict[str, int] = {}
        self.memory: dict[int, PtxInstruction] = {}  # instructions that access global memory, by number
        self._parameters = parameters
        self._lines: list[str] = []
        number = 0
        for at, block in enumerate(kernel.blocks):
            self._lines.append(f"def block{at}(R, note):")
            for instruction in block.instructions:
                self._instruction(number, instruction, at, block.after)
                number += 1
            last = block.instructions[-1] if block.instructions else None
            if last is None or last.name not in _ENDS or (last.name != "bra" and last.guard):
                self._lines.append(f"    return {block.after[0] if block.after else -1}")
        self.text = "\n".join(self._lines)

    def _instruction(self, number: int, this: PtxInstruction, at: int, after: Sequence[int]) -> None:
        indent = "    "
        if this.name == "bra":
            self._branch(this, at, after)
            return
        if this.guard:
            guard = self._register(this.guard)
            test = f"not {guard}" if this.negated else f"{guard} != 0"
            self._lines.append(f"{indent}if {test}:")
            indent += "    "
        if this.name in _ENDS:
            # A guard that depends on data does not end a thread.
            unless = f"if {self._register(this.guard)} is not None: " if this.guard else ""
            self._lines.append(f"{indent}{unless}return -1")
            return
        lines = self._accesses(number, this) + self._assigned(this)
        self._lines += [f"{indent}{line}" for line in lines or ["pass"]]
        if this.guard and number in self.memory:
            self._lines += ["    else:", f"        note({number}, {MASKED})"]

    def _branch(self, this: PtxInstruction, at: int, after: Sequence[int]) -> None:
        if not after:  # to a label that is not there
            self._lines.append("    return -1")
        elif not this.guard:
            self._lines.append(f"    return {after[0]}")
        else:
            target, following = after[0], after[1] if len(after) > 1 else -1
            by_data = target if target > at else following
            taken, other = (following, target) if this.negated else (target, following)
            guard = self._register(this.guard)
            self._lines.append(f"    p = {guard}")
            self._lines.append(f"    return {by_data} if p is None else {taken} if p else {other}")

    def _accesses(self, number: int, this: PtxInstruction) -> list[str]:
        if not is_global(this):
            return []
        self.memory[number] = this
        brackets = [operand for operand in this.operands if operand.startswith("[")]
        place = brackets[-1] if this.name == "cp" else brackets[0] if brackets else ""
        match = _ADDRESS.match(place)
        if match is None:
            return [f"note({number}, None)"]
        base, offset = self._value(match["base"], 64), int(match["offset"] or "0", 0)
        if offset:
            return [f"a = {base}", f"note({number}, None if a is None else a + {offset})"]
        return [f"note({number}, {base})"]

    def _assigned(self, this: PtxInstruction) -> list[str]:
        if this.name in _WITHOUT_RESULT:
            return []
        targets = _registers_of(this.operands[0]) if this.operands else []
        value = self._expression(this) if len(targets) == 1 else None
        if value is not None:
            return [*value[:-1], f"{self._register(targets[0])} = {value[-1]}"]
        if this.opcode == "mov.b64" and len(targets) == 2:
            source = self._value(this.operands[1], 64)
            low, high = map(self._register, targets)
            return [
                f"a = {source}",
                f"{low} = None if a is None else a & 0xffffffff",
                f"{high} = None if a is None else a >> 32",
            ]
        return [f"{self._register(name)} = None" for name in targets]

    def _expression(self, this: PtxInstruction) -> list[str] | None:
        """Return lines of Python, the last one of them the value; None if it depends on data."""
        words, given = this.words, this.operands[1:]
        name, type_ = words[0], words[-1]
        if name == "ld" and "param" in words:
            found = re.match(r"\[\s*([\w$]+)\s*(?:\+\s*0\s*)?\]", given[0])
            value, match = self._parameters.get(found[1]) if found else None, _TYPE.match(type_)
            return [str(value & (1 << int(match[1])) - 1)] if value is not None and match else None
        if name == "ld" and is_global(this) and _TYPE.match(type_):
            return self._loaded_index(given[0])
        if name == "setp" or (name in ("and", "or", "xor", "not", "mov", "selp") and type_ == "pred"):
            return self._predicate(this)
        if name == "cvta":
            return [self._value(given[0], 64)]
        if name == "cvt":
            return self._converted(words, given[0])
        match = _TYPE.match(type_)
        if match is None:
            return None
        bits, signed = int(match[1]), type_.startswith("s")
        if name == "mov":
            if given[0].startswith("{"):
                parts = _registers_of(given[0])
                if len(parts) != 2 or bits != 64:
                    return None
                low, high = map(self._register, parts)
                return [f"a = {low}; b = {high}", "None if a is None or b is None else a | b << 32"]
            return [self._value(given[0], bits)]
        if name == "selp":
            a, b, p = self._value(given[0], bits), self._value(given[1], bits), self._register(given[2])
            return [f"a = {a}; b = {b}; p = {p}", "(a if a == b else None) if p is None else a if p else b"]
        formula = _formula(name, words, bits, signed)
        if formula is None or len(given) < formula.count("@"):
            return None
        text, count = formula.replace("@", ""), formula.count("@")
        names = "abcde"[:count]
        wide = "wide" in words
        sources = [
            self._value(operand, 2 * bits if wide and place == 2 else bits)
            for place, operand in enumerate(given[:count])
        ]
        lines = [f"{name} = {source}" for name, source in zip(names, sources, strict=True)]
        if signed and not (name in ("add", "sub", "mul", "mad") and not wide and "hi" not in words):
            sign = 1 << bits - 1
            lines += [
                f"{name} = None if {name} is None else ({name} ^ {sign}) - {sign}"
                for name in names[: 2 if name in ("mul", "mad") else count]
            ]
        unknown = " or ".join(f"{name} is None" for name in names)
        mask = (1 << (2 * bits if wide else bits)) - 1
        return [*lines, f"None if {unknown} else ({text}) & {mask}"]

    def _loaded_index(self, place: str) -> list[str] | None:
        """Return a stand-in for a loaded integer: small, and the same wherever it is loaded from."""
        match = _ADDRESS.match(place)
        if match is None:
            return None
        base, offset = self._value(match["base"], 64), int(match["offset"] or "0", 0)
        return [f"a = {base}", f"None if a is None else index(a + {offset})"]

    def _converted(self, words: Sequence[str], operand: str) -> list[str] | None:
        types = [_TYPE.match(word) for word in words[1:] if _TYPE.match(word)]
        if len(types) != 2 or any(re.match(r"(e|bf|f|tf)\d", word) for word in words):
            return None
        target, source = types
        assert target is not None and source is not None
        bits, mask = int(source[1]), (1 << int(target[1])) - 1
        lines = [f"a = {self._value(operand, bits)}", f"a = None if a is None else a & {(1 << bits) - 1}"]
        if source[0].startswith("s"):
            sign = 1 << bits - 1
            lines.append(f"a = None if a is None else (a ^ {sign}) - {sign}")
        return [*lines, f"None if a is None else a & {mask}"]

    def _predicate(self, this: PtxInstruction) -> list[str] | None:
        words, given = this.words, this.operands[1:]
        name = words[0]
        if name == "mov":
            return [self._value(given[0], 1)]
        if name == "not":
            return [f"a = {self._value(given[0], 1)}", "None if a is None else 1 - a"]
        if name in ("and", "or", "xor"):
            a, b = (self._value(operand, 1) for operand in given[:2])
            neutral = {
                "and": "0 if a == 0 or b == 0 else None if a is None or b is None else 1",
                "or": "1 if a or b else None if a is None or b is None else 0",
                "xor": "None if a is None or b is None else a ^ b",
            }
            return [f"a = {a}; b = {b}", neutral[name]]
        match = _TYPE.match(words[-1])
        if name != "setp" or match is None or words[1] not in _COMPARISONS:
            return None
        bits = int(match[1])
        lines = [f"a = {self._value(given[0], bits)}", f"b = {self._value(given[1], bits)}"]
        if words[-1].startswith("s"):
            sign = 1 << bits - 1
            lines += [f"{n} = None if {n} is None else ({n} ^ {sign}) - {sign}" for n in "ab"]
        compared = f"None if a is None or b is None else int(a {_COMPARISONS[words[1]]} b)"
        if len(words) == 4 and len(given) > 2:
            operator = {"and": "0 if a == 0 or c == 0 else", "or": "1 if a or c else"}.get(words[2])
            if operator is None:
                return None
            last = f"{operator} None if a is None or c is None else int(bool(a {words[2]} c))"
            return [*lines, f"a = {compared}", f"c = {self._value(given[2].lstrip('!'), 1)}", last]
        return [*lines, compared]

    def _value(self, operand: str, bits: int) -> str:
        """Return a Python expression of an operand, an unsigned integer of so many bits, or None."""
        if operand.startswith("%") or operand == "WARP_SZ":
            return self._register(operand)
        if re.match(r"0[fFdD][0-9a-fA-F]+$", operand):
            return str(int(operand[2:], 16))
        try:
            return str(int(operand.rstrip("U"), 0) & (1 << bits) - 1)
        except ValueError:
            return "0"  # an array in shared memory: its address there is none of global memory

    def _register(self, name: str) -> str:
        return f"R[{self.registers.setdefault(name, len(self.registers))}]"


def _registers_of(operand: str) -> list[str]:
    return re.findall(r"%[\w$.]+", operand)


def is_global(this: PtxInstruction) -> bool:
    """Return True for loads, stores, atomics and copies of global memory, by whatever path."""
    words = this.words
    if words[0] == "cp":
        return "global" in words and "bulk" not in words
    if words[0] in ("ld", "st"):
        return not {"param", "shared", "shared::cta", "shared::cluster", "local", "const"} & set(words)
    return words[0] in ("atom", "red") and "shared" not in words and "shared::cta" not in words


def _formula(name: str, words: Sequence[str], bits: int, signed: bool) -> str | None:
    """Return the value of an integer instruction in Python; each operand is marked once by @."""
    cut = f"min(b, {bits})"
    if name == "mul":
        return f"@a * @b >> {bits}" if "hi" in words else "@a * @b"
    if name == "mad":
        return f"(@a * @b >> {bits}) + @c" if "hi" in words else "@a * @b + @c"
    formulas = {
        "add": "@a + @b", "sub": "@a - @b", "and": "@a & @b", "or": "@a | @b", "xor": "@a ^ @b",
        "not": "~@a", "neg": "-@a", "abs": "abs(@a)", "min": "min(@a, @b)", "max": "max(@a, @b)",
        "shl": f"@a << {cut.replace('b', '@b')}", "shr": f"@a >> {cut.replace('b', '@b')}",
        "div": "quotient(@a, @b)", "rem": "@a - @b * quotient(a, b)",
        "popc": "@a.bit_count()", "clz": f"{bits} - @a.bit_length()",
        "bfe": "@a >> (@b & 255) & (1 << (@c & 255)) - 1",
        "bfi": "@b & ~((1 << (@d & 255)) - 1 << (@c & 255)) | (@a & (1 << (d & 255)) - 1) << (c & 255)",
        "prmt": "permuted(@a, @b, @c)", "lop3": "lut(@a, @b, @c, @d)",
    }  # fmt: skip
    if {"cc", "sat"} & set(words):
        return None
    if name == "bfe" and signed:
        return "extended(@a, @b & 255, @c & 255)"
    found = formulas.get(name)
    if name == "shf":
        shift = "(@c & 31)" if "wrap" in words else "min(@c, 32)"
        both = "(@b << 32 | @a)"
        return f"{both} << {shift} >> 32" if words[1] == "l" else f"{both} >> {shift}"
    return found


def _quotient(a: int, b: int) -> int:
    """Divide as the hardware does, towards zero."""
    if not b:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _index(address: int) -> int:
    """Return a number from 0 to 60, in no order of addresses."""
    return (address * 2654435761 >> 13) % 61


def _extended(a: int, begin: int, size: int) -> int:
    """Return a field of bits as a signed number."""
    field = a >> begin & (1 << size) - 1
    return field - (1 << size) if size and field >> size - 1 else field


def _permuted(a: int, b: int, selector: int) -> int:
    both, found = b << 32 | a, 0
    for place in range(4):
        pick = selector >> 4 * place & 15
        byte = both >> 8 * (pick & 7) & 255
        found |= (0xFF if byte & 128 and pick & 8 else 0 if pick & 8 else byte) << 8 * place
    return found


def _lut(a: int, b: int, c: int, table: int) -> int:
    found = 0
    for row in range(8):
        if table >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return found
