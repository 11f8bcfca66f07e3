"""The CUDA candidates that KernelBench shows to models, in emulation, against the modules that they replace.

They are read from a checkout that the environment's KERNELBENCH_DIR names.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from kernelwright.kernelbench.emulate.memory import fresh_memory
from kernelwright.kernelbench.jit import inline

CHECKOUT = os.environ.get("KERNELBENCH_DIR")  # read at import: the tests' own environment is cleared of it
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHECKOUT is None, reason="KERNELBENCH_DIR names no KernelBench checkout"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there"),
]
# Not CUDA of one file: a form to fill in, AMD's HIP, and ThunderKittens.
OTHERS = frozenset({"model_new_ex_2", "model_new_ex_add_hip", "model_new_ex_add_thunderkittens"})


def examples() -> list[Path]:
    found = sorted(Path(CHECKOUT or "/nowhere").glob("src/**/prompts/**/model_new_ex_*.py"))
    return [path for path in found if "cuda_sources" in path.read_text() and path.stem not in OTHERS]


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    original = cpp_extension.load_inline
    inline.install()
    yield
    cpp_extension.load_inline = original


def ran(path: Path) -> dict[str, Any]:
    """What the file defines; on the CPU, and with matrices of 70 by 70 in place of 1024."""
    names: dict[str, Any] = {"__name__": path.stem}
    source = path.read_text().replace(".cuda()", "").replace("1024, 1024", "70, 70")
    exec(compile(source, path, "exec"), names)
    return names


def test_there_are_some() -> None:
    assert len(examples()) >= 6


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.stem)
def test_an_example_does_what_its_module_does(path: Path) -> None:
    reference = ran(path.with_name(path.name.replace("model_new_", "model_")))
    candidate = ran(path)
    torch.manual_seed(0)
    if "batch_size" in reference:
        reference["batch_size"] = 2  # of 32
    model, model_new = reference["Model"](), candidate["ModelNew"]()
    model_new.load_state_dict(model.state_dict())
    inputs = reference["get_inputs"]()
    with torch.no_grad(), fresh_memory():
        torch.testing.assert_close(model_new(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)
