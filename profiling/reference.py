"""Reference of all metrics: `python -m kernelwright.profiling.reference > docs/metrics.md`."""

from kernelwright.profiling.catalogue import CATALOGUE, Definition
from kernelwright.profiling.records import Provenance

_INTRODUCTION = """# Metrics

Made by `python -m kernelwright.profiling.reference > docs/metrics.md` from the catalogue
(`profiling/catalogue.py`). Shares (unit 1) are from 0 to 1. Of several kernels, times, bytes and counts are
added up; others are averaged by time.
"""
_FROM: dict[Provenance, str] = {
    "roofline": "Roofline: the task's work, and the time",
    "cupti": "Trace of a GPU (CUPTI)",
    "ncu": "Nsight Compute",
    "static": "Machine code",
    "predicted": "Cost model, not measured",
    "emulated": "Emulation, not measured",
    "perf": "perf",
    "simulated": "Simulation, not measured",
}


def reference() -> str:
    """Return the text of docs/metrics.md."""
    parts = [_INTRODUCTION]
    for provenance, title in _FROM.items():
        known = {name: each for name, each in CATALOGUE.items() if each.provenance == provenance}
        rows = [_row(name, each) for name, each in known.items()]
        head = ["| metric | unit | better | meaning |", "|:--|:--|:--|:--|"]
        parts.append("\n".join([f"## {title}", "", *head, *rows]) + "\n")
    return "\n".join(parts)


def _row(name: str, known: Definition) -> str:
    meaning = "; ".join(filter(None, (known.meaning, known.limit, known.reading)))
    if known.names:
        meaning += f"<br>`{known.names[0]}`"
    return f"| `{name}` | {known.unit} | {known.direction.removesuffix(' is better')} | {meaning} |"


if __name__ == "__main__":
    print(reference(), end="")
