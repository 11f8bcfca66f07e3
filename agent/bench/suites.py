"""The builtin coder on whole suites."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from agent.bench.publishing import PUBLISHED

UPSTREAM = (
    ("kernelbench:1/19", "dim=98304 batch_size=128"),  # ReLU
    ("kernelbench:1/23", "dim=98304 batch_size=128"),  # Softmax
    ("kernelbench:1/26", "dim=98304 batch_size=128"),  # GELU
    ("kernelbench:1/36", "batch_size=2"),  # RMSNorm
    ("kernelbench:1/94", "batch_size=256"),  # MSELoss
    ("kernelbench:2/12", "batch_size=256 in_features=1024 out_features=1024"),  # Gemm_Multiply_LeakyReLU
    ("kernelbench:2/40", "batch_size=1024 in_features=1024 out_features=1024"),  # Matmul_Scaling_ResidualAdd
    ("kernelbench:2/59", "batch_size=512 in_features=1024 out_features=1024"),  # Matmul_Swish_Scaling
    ("kernelbench:2/62", "batch_size=512 input_size=1024 hidden_size=1024"),  # Matmul_GroupNorm_LeakyReLU_Sum
    ("kernelbench:2/99", "batch_size=512 in_features=1024 out_features=1024"),  # Matmul_GELU_Softmax
)


def suite(
    levels: Annotated[list[int] | None, typer.Argument(help="1, 2, 3: all by default.")] = None,
    rounds: int = 2,
) -> None:
    """The builtin coder on the built-in suite, a table a level."""
    for level in levels or (1, 2, 3):
        _run(["--suite", f"builtin:level{level}", "--rounds", str(rounds)], f"suite-level{level}")


def upstream(
    kernelbench_dir: Annotated[Path, typer.Option(envvar="KERNELBENCH_DIR")], rounds: int = 3
) -> None:
    """The builtin coder on ten upstream KernelBench problems, sizes reduced to fit two cores."""
    names = PUBLISHED / "upstream.txt"
    names.parent.mkdir(parents=True, exist_ok=True)
    names.write_text("".join(f"{task} set {values}\n" for task, values in UPSTREAM))
    _run(
        ["--suite", str(names), "--kernelbench-dir", str(kernelbench_dir), "--rounds", str(rounds)],
        "upstream",
    )


def _run(arguments: list[str], name: str) -> None:
    out = Path("runs") / f"bench-{name}"
    resume = (out / "run.db").exists()
    wanted = ["--resume", str(out)] if resume else [*arguments, "--out", str(out)]
    subprocess.run([sys.executable, "-m", "kernelwright", "run", *wanted], check=True)
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    for format in ("md", "csv"):
        target = PUBLISHED / f"{name}.{format}"
        command = [
            sys.executable,
            "-m",
            "kernelwright",
            "report",
            str(out),
            "--format",
            format,
            "--output",
            str(target),
        ]
        subprocess.run(command, check=True)
