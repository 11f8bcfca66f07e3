"""Solutions of FlashInfer-Bench and SOL-ExecBench as candidates."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources import resolve
from tests.helpers.foreign_tasks import SCALED_NORM, called, definition_folder, loaded, row, solution

RETURNS = (
    "import torch\n\ndef run(x, weight, eps):\n    return x[:, :32].float() / (1 + eps) ** 0.5 * weight\n"
)
PASSED = """from __future__ import annotations

from .tools import halved as first


def scaled(x, weight, eps, y):
    y.copy_(first(x).float() / (1 + eps) ** 0.5 * weight)
"""
TOOLS = "COUNT = 32\n\n\ndef halved(x):\n    return x[:, :COUNT]\n\n\ndef unused(x):\n    return x\n"
CUDA = """#include <torch/extension.h>
#include "scale.h"

torch::Tensor run(torch::Tensor x, const torch::Tensor& weight, double eps) {
    scale_launcher(x);
    return x;
}
"""
BINDING = '\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return definition_folder(tmp_path / "norm", SCALED_NORM, [row(8)])


def saved(folder: Path, held: dict[str, Any]) -> Path:
    path = folder / "solution.json"
    path.write_text(json.dumps(held))
    return path


def test_a_function_that_returns_is_called(folder: Path) -> None:
    held = solution({"kernel.py": RETURNS}, "kernel.py::run", destination_passing_style=False)
    candidate = candidate_from_file(saved(folder, held))
    assert candidate.source.startswith('"""halves-v1: a solution of scaled_norm_d64 by nobody."""\n')
    (task,) = resolve([str(folder)])
    inputs, expected = called(task)
    assert torch.allclose(loaded(candidate.source).ModelNew()(*inputs), expected)


def test_outputs_are_allocated_where_they_are_passed(folder: Path) -> None:
    held = solution({"pkg/tools.py": TOOLS, "pkg/main.py": PASSED}, "pkg/main.py::scaled")
    source = candidate_from_file(saved(folder, held)).source
    assert "halved" in source and "unused" not in source and "from ." not in source
    assert source.index("from __future__") < source.index("COUNT = 32")
    (task,) = resolve([str(folder)])
    inputs, expected = called(task)
    assert torch.allclose(loaded(source).ModelNew()(*inputs), expected)


def test_a_solution_of_a_data_set_finds_its_definition(tmp_path: Path) -> None:
    definitions = tmp_path / "definitions" / "norm"
    definitions.mkdir(parents=True)
    (definitions / "scaled_norm_d64.json").write_text(json.dumps(SCALED_NORM))
    solutions = tmp_path / "solutions" / "nobody" / "norm"
    solutions.mkdir(parents=True)
    held = solution({"kernel.py": "def run(x, weight, eps, y):\n    y.zero_()\n"}, "kernel.py::run")
    module = loaded(candidate_from_file(saved(solutions, held)).source)
    y = module.ModelNew()(torch.ones(5, 64), torch.ones(32), 0.1)
    assert (tuple(y.shape), y.dtype, float(y.abs().sum())) == ((5, 32), torch.float32, 0.0)


def test_cuda_sources_are_built_by_load_inline_with_their_headers(folder: Path) -> None:
    sources = {
        "src/run.cpp": CUDA + BINDING,
        "src/scale.h": "#pragma once\nvoid scale_launcher(torch::Tensor);\n",
    }
    sources["src/scale.cu"] = (
        '#include "scale.h"\n__global__ void scale(float* x) {}\nvoid scale_launcher(torch::Tensor x) {}\n'
    )
    held = solution(sources, "src/run.cpp::run", destination_passing_style=False, languages=["cuda_cpp"])
    held["spec"]["compile_options"] = {"cuda_cflags": ["-O3"], "ld_flags": ["-lcuda", "-lcublas"]}
    candidate = candidate_from_file(saved(folder, held))
    assert candidate.language == "cuda"
    assert '#include "scale.h"' not in candidate.source
    assert candidate.source.count("void scale_launcher(torch::Tensor);") == 2  # in either file
    assert (
        "extra_cuda_cflags=['-O3']" in candidate.source and "extra_ldflags=['-lcublas']" in candidate.source
    )
    assert "functions=" not in candidate.source
    assert "return extension.run(x, weight, eps)" in candidate.source
    compile(candidate.source, "candidate.py", "exec")


def test_a_function_without_a_binding_is_declared(folder: Path) -> None:
    held = solution({"k.cu": CUDA, "scale.h": ""}, "k.cu::run", destination_passing_style=True)
    source = candidate_from_file(saved(folder, held)).source
    declared = "torch::Tensor run(torch::Tensor x, const torch::Tensor& weight, double eps);"
    assert declared in source and 'functions=["run"]' in source
    assert "extension.run(x, weight, eps, y)\n        return y" in source


BAD: list[tuple[dict[str, str], str, dict[str, Any], str]] = [
    ({"../kernel.py": RETURNS}, "../kernel.py::run", {}, r"a source outside its folder, \.\./kernel\.py — give paths"),
    ({"/etc/kernel.py": RETURNS}, "/etc/kernel.py::run", {}, r"a source outside its folder, /etc/kernel\.py"),
    ({"kernel.py": RETURNS}, "run", {}, r"invalid entry point 'run' — use FILE::FUNCTION with one of its files: kernel"),
    ({"kernel.py": RETURNS}, "main.py::run", {}, r"invalid entry point 'main\.py::run'"),
    ({"kernel.py": RETURNS}, "kernel.py::go", {}, r"kernel\.py of .* defines no function go — name one of its functions"),
    ({"kernel.py": "def run(:"}, "kernel.py::run", {}, r"kernel\.py of .* is not Python: line 1"),
    ({"kernel.py": "import tools\n\ndef run(x, weight, eps):\n    return tools.f(x)", "tools.py": ""},
     "kernel.py::run", {}, r"kernel imports tools as a whole — import names: from tools import …"),
    ({"kernel.py": RETURNS, "k.cu": ""}, "kernel.py::run", {}, r"an entry point in Python and the file k\.cu"),
    ({"k.cu": "#include <tvm/ffi/function.h>"}, "k.cu::run", {}, r"is bound by TVM FFI, which is not supported"),
    ({"k.cu": CUDA}, "k.cu::run", {"binding": "tvm-ffi"}, r"has the binding tvm-ffi — bind it with PYBIND11_MODULE"),
    ({"k.cu": "int x;"}, "k.cu::run", {}, r"defines no function run"),
    ({"k.hip": CUDA}, "k.hip::run", {}, r"the entry point is in k\.hip — use a \.py file, or \.cu, \.cpp"),
]  # fmt: skip


@pytest.mark.parametrize(("sources", "entry", "spec", "message"), BAD)
def test_a_solution_that_cannot_be_called_is_refused_in_a_line(
    sources: dict[str, str], entry: str, spec: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        candidate_from_file(saved(folder, solution(sources, entry, **spec)))
    assert "\n" not in str(error.value)


def test_without_its_definition_it_cannot_pass_outputs(tmp_path: Path) -> None:
    held = solution({"k.py": RETURNS}, "k.py::run", destination_passing_style=True)
    with pytest.raises(
        UsageError, match=r"'scaled_norm_d64', which is not found — put definition\.json beside it"
    ):
        candidate_from_file(saved(tmp_path, held))
    held["spec"]["destination_passing_style"] = False
    module = loaded(candidate_from_file(saved(tmp_path, held)).source)
    assert module.ModelNew()(torch.ones(2, 64), torch.ones(32), 0.0).tolist() == [[1.0] * 32] * 2


def test_a_damaged_solution_is_named(tmp_path: Path) -> None:
    (tmp_path / "solution.json").write_text('{"spec": ')
    with pytest.raises(UsageError, match=r"solution\.json is not JSON: Expecting value — correct it"):
        candidate_from_file(tmp_path / "solution.json")
    (tmp_path / "solution.json").write_text("{}")
    with pytest.raises(UsageError, match=r"solution\.json: spec is missing — a solution has"):
        candidate_from_file(tmp_path / "solution.json")
