"""Tables of measurements as Markdown, each with its environment and the command that makes it again."""

import sys
from collections.abc import Sequence
from pathlib import Path

from kernelwright.kernelbench.records import Fingerprint
from kernelwright.results.store.folder import write_atomically

CPU = Path("results") / "published" / "cpu"
AUDITS = Path("results") / "published" / "audits"
STATIC = Path("results") / "published" / "static"  # what is known without running a kernel


def publish(
    name: str,
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    machine: Fingerprint,
    command: str = "",
) -> None:
    """Write results/published/cpu/NAME.md; `command`: by default the part of `name` before a hyphen."""
    made = made_by(command or name.split("-")[0], machine)
    lines = [f"# {title}", "", made, "", *table(header, rows)]
    CPU.mkdir(parents=True, exist_ok=True)
    write_atomically(CPU / f"{name}.md", "\n".join(lines) + "\n")
    log("\n".join(lines))


def made_by(command: str, machine: Fingerprint) -> str:
    """Return the sentence that says how and where a table was made."""
    return (
        f"Made by `python -m benchmarks {command}` on {machine.chip}, {machine.threads} threads, "
        f"{machine.last_level_cache_bytes >> 20} MiB last-level cache, torch {machine.torch}, "
        f"Python {machine.python}, {machine.compiler}."
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows)]


def percent(value: float) -> str:
    """Format a share as a percentage with two digits after the point."""
    return f"{100 * value:.2f}%"


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
