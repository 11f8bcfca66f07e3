"""What compute-sanitizer says of the corpus on a GPU, beside what emulation finds.

    python -c 'from tests.helpers.emulate.agreement import *; print(table(observed()))'    (in the repository's root)

Each kernel runs in a process of its own, for a fault of one would spoil the others.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.emulate.specimen import Specimen, corpus

ROOT = Path(__file__).parents[3]
SPECIMEN = ("-m", "tests.helpers.emulate.specimen")
TIMEOUT_S = 120.0
# Which tool looks for what. initcheck knows global memory only; racecheck shared memory only.
TOOL_OF = {
    "out_of_bounds": "memcheck",
    "misaligned": "memcheck",
    "failed": "memcheck",
    "uninitialized": "initcheck",
    "read_after_write": "racecheck",
    "write_after_read": "racecheck",
    "write_after_write": "racecheck",
    "divergent_barrier": "synccheck",
    "stuck": "synccheck",
    "not_in_mask": "synccheck",
}
NOT_RUN = frozenset({"refused", "unsupported"})
_SAID = re.compile(r"^=+ (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY|$)(.*\S)", re.M)
_COUNT = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
_RIGHT = 0  # exit status of specimen.py


@dataclass(frozen=True)
class Observation:
    """`tool`: of compute-sanitizer, "" for a run without. `says`: its first line, or why there is no result."""

    specimen: str
    expected: tuple[str, ...]  # kinds that emulation finds
    tool: str
    found: bool | None  # whether it found anything, or values differ; None where it could not tell
    says: str

    @property
    def agrees(self) -> bool | None:
        if self.found is None:
            return None
        mine = [kind for kind in self.expected if {**TOOL_OF, "wrong_output": ""}.get(kind) == self.tool]
        return self.found == bool(mine)


def sanitizer() -> str | None:
    return shutil.which("compute-sanitizer")


def values(specimen: Specimen) -> Observation:
    """Whether its values are right on this machine, in a process of its own."""
    status, text = _ran([sys.executable, *SPECIMEN, str(specimen.path), specimen.variant])
    lines = text.strip().splitlines() or [""]
    found = {_RIGHT: False, 1: True}.get(status if status is not None else -1)
    return Observation(specimen.name, _kinds(specimen), "", found, lines[-1])


def looked_at(specimen: Specimen, tool: str) -> Observation:
    """What a tool of compute-sanitizer finds. Asserts that there is one."""
    program = sanitizer()
    assert program is not None
    options = ["--padding", "4096"] if tool == "memcheck" else []
    words = [
        program,
        "--tool",
        tool,
        *options,
        sys.executable,
        *SPECIMEN,
        str(specimen.path),
        specimen.variant,
    ]
    _, text = _ran(words)
    counts = [int(one or other) for one, other in _COUNT.findall(text)]
    says = next(iter(_SAID.findall(text)), "nothing") if counts else text.strip()[-200:]
    return Observation(specimen.name, _kinds(specimen), tool, any(counts) if counts else None, says)


def observed(specimens: Iterable[Specimen] | None = None) -> list[Observation]:
    """Of right kernels the values and what all tools say; of others what the tools say that look for it."""
    found = []
    for specimen in corpus() if specimens is None else specimens:
        kinds = _kinds(specimen)
        if NOT_RUN.intersection(kinds):
            continue
        if not kinds or "wrong_output" in kinds:
            found.append(values(specimen))
        tools = {TOOL_OF[kind] for kind in kinds if kind in TOOL_OF} if kinds else set(TOOL_OF.values())
        if sanitizer() is not None:
            found += [looked_at(specimen, tool) for tool in sorted(tools)]
    return found


def table(observations: Sequence[Observation]) -> str:
    """Markdown: a line for each, and how many agree."""
    counts = [sum(each.agrees is verdict for each in observations) for verdict in (True, False, None)]
    lines = [
        f"{counts[0]} of {len(observations)} agree, {counts[1]} do not, {counts[2]} could not be told.",
        "",
        "| kernel | found in emulation | on the GPU by | it says | agrees |",
        "|---|---|---|---|---|",
    ]
    for each in observations:
        verdict = {True: "yes", False: "**no**", None: "?"}[each.agrees]
        says = each.says.replace("|", "\\|")[:120]
        expected = ", ".join(each.expected) or "nothing"
        lines.append(f"| {each.specimen} | {expected} | {each.tool or 'its values'} | {says} | {verdict} |")
    return "\n".join(lines) + "\n"


def _kinds(specimen: Specimen) -> tuple[str, ...]:
    return tuple(sorted({kind for kind, _ in specimen.expected}))


def _ran(words: Sequence[str]) -> tuple[int | None, str]:
    """Its exit status, None where it took too long, and what it wrote."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        run = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"longer than {TIMEOUT_S:.0f} s"
    return run.returncode, run.stdout + run.stderr
