"""A built-in suite and a KernelBench checkout in small, and a writer of task files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.kernelbench.sources import builtin
from tests.helpers.task_text import task_text


@pytest.fixture(autouse=True)
def no_checkout_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELBENCH_DIR", raising=False)


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built-in suite of five tasks."""
    root = tmp_path / "tasks"
    tasks = {
        "level1/softmax": task_text("Softmax over rows.", extra="dim = 128\n"),
        "level1/layer_norm": task_text("Layer normalization.", extra="dim = 128\n"),
        "level1/rms_norm": task_text("RMS normalization.", extra="dim = 128\neps = 1e-5\n"),
        "level2/norm_gelu": task_text("Norm, then GELU."),
        "level10/block": task_text("A block."),
    }
    for name, text in tasks.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "__init__.py").touch()
    (root / "level1" / "__init__.py").touch()
    monkeypatch.setattr(builtin, "ROOT", root)
    return root


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A checkout laid out as upstream's."""
    root = tmp_path / "upstream"
    names = {
        1: ["1_Square_matrix_multiplication_", "2_ReLU", "9_Tall_skinny_", "10_3D_tensor_", "19_ReLU6"],
        2: ["40_Matmul_Scaling_ResidualAdd", "41_Matmul_Sigmoid"],
    }
    for level, stems in names.items():
        folder = root / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True)
        for stem in stems:
            (folder / f"{stem}.py").write_text(task_text(stem))
    (root / "KernelBench" / "changelog").mkdir()
    (root / "src").mkdir()
    return root


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write("a.py", text)`: the path of a new file; a sound task by default."""

    def write(name: str, text: str | None = None) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((task_text() if text is None else text).encode())
        return path

    return write
