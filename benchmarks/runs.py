"""Runs of `kernelwright run` that benchmarks make, resume and read, all in `runs/`."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.coverage import covered, section
from benchmarks.publishing import CPU
from kernelwright.kernelbench.evaluator import COMPILE_S
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import write_atomically

SAMPLE = CPU / "upstream.txt"  # the upstream problems that `draw` chose, with their reduced sizes


def suite_run(level: int) -> Path:
    """Return the folder of the run that `suite` makes of a level."""
    return Path("runs") / f"bench-suite-level{level}"


def upstream_run() -> Path:
    """Return the folder of the run that `upstream` makes of the sample."""
    digest = hashlib.sha256(SAMPLE.read_bytes()).hexdigest()[:8] if SAMPLE.exists() else "none"
    return Path("runs") / f"bench-upstream-{digest}"


def kernelwright(*words: str) -> None:
    """Run a command of kernelwright. Raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "kernelwright", *words], check=True)


def make_run(words: Sequence[str], out: Path) -> None:
    """Make a run in a folder, or resume the one that is there, which keeps its own options."""
    if (out / "run.db").exists():
        kernelwright("run", "--resume", str(out))
    else:
        kernelwright("run", *words, "--out", str(out))


def run_and_publish(words: Sequence[str], name: str, out: Path) -> None:
    """Make a run, and write its report and the coverage of its kernels to results/published/cpu."""
    make_run(words, out)
    CPU.mkdir(parents=True, exist_ok=True)
    report = CPU / f"{name}.md"
    for file in (report, CPU / f"{name}.csv"):
        kernelwright("report", str(out), "--format", file.suffix[1:], "--output", str(file))
    with RunDatabase.open(out, read_only=True) as database:
        shares = section(covered(database))
    write_atomically(report, report.read_text() + shares)


def baseline_options(baselines: Sequence[str] | None, compile_limit: float) -> list[str]:
    """Options of `kernelwright run` for its baselines, as far as they differ from the defaults."""
    options = [word for name in baselines or () for word in ("--baseline", name)]
    return options + (["--compile-limit", f"{compile_limit:g}"] if compile_limit != COMPILE_S else [])
