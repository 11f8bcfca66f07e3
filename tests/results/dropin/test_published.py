"""The published kernels, forward and backward, compute what their references do."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelwright.kernelbench.records import Task
from kernelwright.results.dropin.gradient_tasks import gradient_tasks

pytestmark = pytest.mark.builds

PUBLISHED = Path(__file__).parents[3] / "results" / "published" / "kernels"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("tasks/*.py")), ids=lambda path: path.stem)
def test_a_kernel_is_right_and_so_is_its_gradient(path: Path) -> None:
    forward = Task(id=f"file:{path.stem}", level=1, source=path.read_text())
    way = "activations" if (PUBLISHED / "cpu" / f"{path.stem}_training.py").exists() else "saved"
    gradient, training = gradient_tasks(forward, way)
    for source, kernel in (
        (forward.source, path.stem),
        (gradient, f"{path.stem}_gradient"),
        (training, f"{path.stem}_training"),
    ):
        if not source:
            continue
        found: dict[str, Any] = {}
        exec(source, found)
        exec((PUBLISHED / "cpu" / f"{kernel}.py").read_text(), found)
        torch.manual_seed(0)
        inputs = found["get_inputs"]()
        reference, ours = (found[name](*found["get_init_inputs"]()) for name in ("Model", "ModelNew"))
        ours.load_state_dict(reference.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(ours(*inputs), reference(*inputs), rtol=1e-4, atol=1e-4)
