"""From a program and a schedule to the text of a candidate file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent.builtin import reference
from agent.builtin.emit import Emitter, Kernel, Knobs
from agent.builtin.fusion import Region, fuse, operands
from agent.builtin.headers import TEMPLATES, helpers
from agent.builtin.host import FRESH, Host, needed_in_python
from agent.builtin.plan import Plan, plan
from agent.builtin.program import Compute, Library, Program, Reduce
from agent.builtin.schedule import GRAPH_KNOBS, Schedule

SMALL = 1 << 15  # elements below which a parallel region costs more than it saves
PREFETCH_LIMIT = 1 << 16  # elements of a row, over all inputs, that are fetched ahead
ITEMSIZE = {
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "bool": 1,
    "uint8": 1,
    "bfloat16": 2,
    "float16": 2,
}


@dataclass(frozen=True)
class Rendered:
    source: str
    schedule: Schedule  # with every knob that matters, at the value used
    kernels: tuple[str, ...]  # names


class NothingToFuse(Exception):  # noqa: N818 - a property of the graph, not a fault
    """All of the graph is library calls."""


def render(program: Program, source: str, schedule: Schedule, language: str = "cpp") -> Rendered:
    """The candidate for `program`, which was traced from `source`. Raises NothingToFuse."""
    units = fuse(program, apart=schedule.get("fuse", "all") == "apart")
    if not any(isinstance(unit, Region) for unit in units):
        raise NothingToFuse
    return _Rendering(program, source, schedule, units, language).run()


class _Rendering:
    def __init__(
        self,
        program: Program,
        source: str,
        schedule: Schedule,
        units: Sequence[Region | Library],
        language: str,
    ) -> None:
        self.program = program
        self.source = source
        self.schedule = schedule
        self.units = units
        self.language = language
        self.python = needed_in_python(program)
        self.used: dict[str, str] = {}
        self.reference = reference.read(source, program.graph.constructor)
        self.host = Host(program, set(self.reference.names))
        self.kernel_names: set[str] = set()
        for knob, values in GRAPH_KNOBS.items():
            self.used[knob] = schedule.get(knob, values[0])

    def run(self) -> Rendered:
        bases = {
            v.base
            for u in self.units
            if isinstance(u, Region)
            for s in u.statements
            for v in operands(s, self.program)
        }
        self.host.start(bases | self.python)
        kernels: list[tuple[Kernel, Plan, Region]] = []
        for index, unit in enumerate(self.units):
            if isinstance(unit, Library):
                self.host.library(unit.name, unit.node)
            else:
                kernels.append(self.region(unit, index, len(kernels)))
        self.host.finish()
        return self.fill(kernels)

    def readers(self, name: str) -> list[int]:
        """Units that read a value."""
        return [
            i
            for i, unit in enumerate(self.units)
            for s in (unit.statements if isinstance(unit, Region) else (unit,))
            if any(v.base == name for v in operands(s, self.program))
        ]

    def region(self, region: Region, index: int, number: int) -> tuple[Kernel, Plan, Region]:
        names = [s.name for s in region.statements]
        outputs = [n for n in names if n in self.python or any(r != index for r in self.readers(n))]
        prefix = f"k{number}"
        planned = plan(region, self.program, outputs)
        if planned.kept:
            keep = self.knob(f"{prefix}.keep", "on") == "on"
            planned = plan(region, self.program, outputs, keep)
        in_place = self.in_place(planned, index)
        if in_place and self.knob(f"{prefix}.in_place", "on") == "off":
            in_place = {}
        knobs = self.knobs(planned, prefix, frozenset(in_place))
        externals = list(dict.fromkeys(a.base for a in planned.accesses.values()))
        arguments = [*externals, *planned.outputs]
        values: list[str] = []
        pointers: dict[str, str] = {}
        taken: set[str] = set()
        for base in externals:
            values.append(self.host.value(base))
            pointers[base] = _unique(values[-1].removeprefix("self."), taken)
        for name in planned.outputs:
            if name in in_place:
                self.host.names[name] = self.host.names[in_place[name]]
                values.append(self.host.names[name])
            else:
                values.append(self.host.allocate(name))
            pointers[name] = _unique(f"{name}_out", taken)
        emitter = Emitter(planned, self.program, knobs, pointers)
        title = _unique(kernel_name(region), self.kernel_names)
        kernel = emitter.kernel(title, arguments)
        self.host.lines.append(f"lib.{title}({', '.join(values)})")
        return kernel, planned, region

    def knob(self, name: str, default: str) -> str:
        value = self.schedule.get(name, default)
        self.used[name] = value
        return value

    def knobs(self, planned: Plan, prefix: str, in_place: frozenset[str]) -> Knobs:
        length = planned.sizes[-1]
        default = {"flat": "1024", "rows": "4096", "columns": "128"}[planned.mode]
        wide = planned.row_length if planned.mode == "flat" else length
        block = int(self.knob(f"{prefix}.block", default)) if wide > 128 else wide
        streaming = False
        elements = [o for o in planned.outputs if planned.level(o) == "element"]
        itemsize = min((ITEMSIZE[self.program.dtypes[o]] for o in elements), default=0)
        whole_lines = length * itemsize % 64 == 0 or length * itemsize >= 4096
        if elements and planned.mode != "columns" and not in_place and whole_lines:
            streaming = self.knob(f"{prefix}.streaming", "off") == "on"
        parallel = False
        if planned.mode == "flat" or planned.rows > 1:
            small = planned.region.space.numel < SMALL
            parallel = self.knob(f"{prefix}.threads", "1" if small else "all") == "all"
        prefetch = False
        if planned.mode != "columns" and _prefetchable(planned):
            prefetch = self.knob(f"{prefix}.prefetch", "on") == "on"
        return Knobs(block, streaming, parallel, prefetch, in_place)

    def in_place(self, planned: Plan, index: int) -> dict[str, str]:
        """Outputs that may be written over the result of a library call, with that result."""
        found: dict[str, str] = {}
        last_read: dict[str, int] = {}
        whole: dict[str, bool] = {}
        if any(isinstance(s, Reduce) and s.op == "pick" for s in planned.region.statements):
            return {}
        for number, stage in enumerate(planned.stages):
            for s in (*stage.row, *stage.elements, *stage.reductions):
                for view in operands(s, self.program):
                    last_read[view.base] = number
                    linear = view.linear and view.numel == planned.region.space.numel
                    whole[view.base] = whole.get(view.base, True) and linear
        libraries = {
            u.name: u.node.op.split(".")[1] for u in self.units if isinstance(u, Library) and "." in u.node.op
        }
        for name in planned.outputs:
            if planned.level(name) != "element":
                continue
            written = next(i for i, stage in enumerate(planned.stages) if name in stage.stores)
            for base in whole:
                free = base in libraries and libraries[base] in FRESH and base not in self.python
                alone = all(r == index for r in self.readers(base)) and base not in found.values()
                same = self.program.dtypes[base] == self.program.dtypes[name] and (
                    self.program.shapes[base] == self.program.shapes[name]
                )
                if free and alone and same and whole[base] and last_read[base] <= written:
                    found[name] = base
                    break
        return found

    def fill(self, kernels: list[tuple[Kernel, Plan, Region]]) -> Rendered:
        environment = _environment(self.language)
        words = [w for kernel, _, _ in kernels for w in kernel.called]
        chosen = helpers(words, self.language)
        body = "\n".join([*chosen, *(line for kernel, _, _ in kernels for line in kernel.body)])
        flags = []
        flags.append(f"-mprefer-vector-width={self.used['vector']}")
        if self.used["unroll"] == "on":
            flags.append("-funroll-loops")
        libraries = [
            u.node.op.split(".")[1] for u in self.units if isinstance(u, Library) and "." in u.node.op
        ]
        left = (
            f"Left to torch: {', '.join(dict.fromkeys(libraries))}."
            if libraries
            else "No work is left to torch."
        )
        text = environment.get_template("candidate.py.j2").render(
            summary=f"{_english(kernels)} in C++ with OpenMP.",
            kernels=[
                {
                    "name": kernel.name,
                    "formula": _formula(region),
                    "comment": _comment(planned, self.used, number),
                    "parameters": kernel.parameters,
                    "body": kernel.body,
                }
                for number, (kernel, planned, region) in enumerate(kernels)
            ],
            left=left,
            schedule=", ".join(f"{k}={v}" for k, v in self.used.items()),
            imports=self.imports(),
            headers=_headers(body),
            helpers=chosen,
            flags=flags,
            definitions=self.reference.definitions,
            constants=self.host.constants,
            bases=self.reference.bases,
            members=self.reference.members,
            arguments=self.reference.arguments,
            forward=self.host.lines,
        )
        return Rendered(
            source=text,
            schedule=Schedule.from_dict(self.used),
            kernels=tuple(kernel.name for kernel, _, _ in kernels),
        )

    def imports(self) -> list[str]:
        lines = set(self.reference.imports) | {"import torch"}
        if any("F." in line for line in self.host.lines):
            lines.add("import torch.nn.functional as F")
        return sorted(lines, key=lambda line: (line.startswith("from"), line))


@cache
def _environment(language: str) -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES / language),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def kernel_name(region: Region) -> str:
    """A name such as softmax_rows or gelu_add."""
    ops: list[str] = []
    for s in region.statements:
        ops.append(s.op)
    named: list[str] = []
    names = " ".join(s.name for s in region.statements)
    if "_squares" in names:
        named.append("normalize" if "rsqrt" in ops else "variance")
    if "amax" in ops and "exp" in ops and "sum" in ops:
        named.append("logsumexp" if "log" in ops else "softmax")
    skipped = {"convert", "where", "position", "first", "view"}
    if named:
        skipped |= {"sub", "div", "sum", "amax", "exp", "log", "rsqrt", "mul", "add"}
    named += [op.removesuffix("_tensor").removeprefix("clamp_tensor_") for op in ops if op not in skipped]
    short = list(dict.fromkeys(named)) or list(dict.fromkeys(ops))
    return "_".join(short[:4]) + ("_rows" if region.space.reduced else "_kernel")


def _prefetchable(planned: Plan) -> bool:
    """Whether whole rows are read, short enough for the next one to fit in the cache beside this one."""
    full = planned.full_strides()
    whole = [a for a in planned.accesses.values() if a.strides == full]
    if planned.mode == "flat":
        return bool(whole)
    contiguous = list(planned.inner) == sorted(planned.inner)
    length = planned.row_length
    return bool(whole) and contiguous and 256 <= length and len(whole) * length <= PREFETCH_LIMIT


def _unique(name: str, taken: set[str]) -> str:
    from agent.builtin.emit import RESERVED

    text = re.sub(r"\W+", "_", name).strip("_")
    base, number = text, 2
    while text in taken or text in RESERVED:
        text = f"{base}_{number}"
        number += 1
    taken.add(text)
    return text


def _formula(region: Region) -> str:
    ops = list(dict.fromkeys(s.op for s in region.statements))
    return ", ".join(ops)


def _english(kernels: Sequence[Any]) -> str:
    return "One fused kernel" if len(kernels) == 1 else f"{len(kernels)} fused kernels"


def _comment(planned: Plan, used: dict[str, str], number: int) -> list[str]:
    prefix = f"k{number}."
    knobs = ", ".join(f"{k.removeprefix(prefix)}={v}" for k, v in used.items() if k.startswith(prefix))
    shape = {
        "flat": f"{planned.row_length} elements in blocks",
        "rows": f"{planned.rows} rows of {planned.row_length}",
        "columns": f"{planned.rows} columns of {planned.row_length}, side by side in the vector lanes",
    }[planned.mode]
    passes = sum(stage.has_pass for stage in planned.stages)
    text = f"{shape}, {passes} pass{'es' if passes > 1 else ''} over each."
    return [text, f"Schedule: {knobs}."] if knobs else [text]


def _headers(body: str) -> list[str]:
    found = ["cmath", "cstdint"]
    if "std::min" in body or "std::max" in body:
        found.insert(0, "algorithm")
    if "std::memcpy" in body:
        found.append("cstring")
    if "numeric_limits" in body:
        found.append("limits")
    if "_mm" in body:
        found.append("immintrin.h")
    return found


def in_region(statement: Compute | Reduce, region: Region) -> bool:
    return statement in region.statements
