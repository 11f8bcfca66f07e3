"""Operators of meta-pytorch's TritonBench: a baseline with its inputs, and kernels beside it."""

from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.candidates import candidate_from_file
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.sources import resolve
from kernelwright.kernelbench.sources.overrides import apply
from tests.helpers.foreign_tasks import called, loaded, written

PACKAGE = "kernelwright.kernelbench.sources.formats.triton_bench_operators"
FILES = {
    "tritonbench/utils/triton_op.py": """import torch
from tritonbench.utils.env import is_ours

class BenchmarkOperator:
    def __init__(self, tb_args, extra_args=None):
        raise RuntimeError("needs a GPU")
""",
    "tritonbench/utils/env.py": "import triton\n\n\ndef is_ours():\n    return False\n",
    "tritonbench/operators/scale/sizes.py": "WIDTHS = [2**i for i in range(3, 7)]\nOTHERS = [1]\n",
    "tritonbench/operators/scale/operator.py": """import argparse
from typing import Callable

import torch
from tritonbench.utils.triton_op import BenchmarkOperator, is_ours, register_benchmark, register_metric

from .sizes import WIDTHS

try:
    from liger_kernel import Scale
except ImportError:
    Scale = None


def parse(args):
    parser = argparse.ArgumentParser(description="triton")
    parser.add_argument("--rows", type=int, default=3)
    return parser.parse_args(args)


class Operator(BenchmarkOperator):
    DEFAULT_PRECISION = "fp16"

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.rows = parse(self.extra_args).rows
        self.layer = torch.nn.Linear(1, 1, bias=False)
        self.other = Scale(2)

    @register_benchmark()
    def liger(self, x, factor) -> Callable:
        return lambda: self.other(x, factor)

    @register_benchmark(baseline=True)
    def in_torch(self, x, factor) -> Callable:
        return lambda: self._scaled(x, factor) * self.layer.weight.sign()

    @register_benchmark(enabled=True)
    def by_hand(self, x, factor):
        result = torch.empty_like(x)

        def inner():
            return torch.mul(x, factor, out=result)

        return inner

    def _scaled(self, x, factor):
        return x * factor

    def get_input_iter(self):
        for width in WIDTHS:
            if is_ours() and self.tb_args.production:
                continue
            yield torch.randn(self.rows, width, device=self.device, dtype=self.dtype), 2.0

    @register_metric()
    def gbps(self, fn, example_inputs, metrics):
        return 1.0
""",
}
OPERATOR = "tritonbench/operators/scale/operator.py"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts whose inputs are counted here, and not in a worker."""
    texts: list[str] = []

    def count(source: str, name: str) -> int:
        texts.append(source)
        return len(list(loaded(source).all_inputs()))

    monkeypatch.setattr(f"{PACKAGE}.counted_inputs", count)
    return texts


def test_the_baseline_is_the_reference_and_each_input_a_size(tmp_path: Path, counted: list[str]) -> None:
    root = written(tmp_path, FILES)
    for place in (root, root / OPERATOR, (root / OPERATOR).parent):
        [task] = resolve([str(place)])
        assert task.id == "file:scale"
        assert [size.constants["place"] for size in task.workload] == ["0", "1", "2", "3"]
    assert len(counted) == 3
    for unneeded in ("liger", "by_hand", "gbps", "OTHERS", "self.other", "import triton"):
        assert unneeded not in task.source.partition('"""\n\n')[2], unneeded
    (x, factor), result = called(apply(task.source, {"place": "2"}))
    assert (x.shape, x.dtype, factor) == ((3, 32), torch.float16, 2.0)
    module = loaded(task.source)
    assert list(module.Model().state_dict()) == ["layer.weight"]
    assert torch.equal(result.abs(), (x * 2.0).abs())


def test_another_benchmark_of_the_operator_is_a_candidate(tmp_path: Path) -> None:
    path = written(tmp_path, FILES) / OPERATOR
    source = candidate_from_file(Path(f"{path}:by_hand")).source
    assert "in_torch" not in source
    assert torch.equal(loaded(source).ModelNew()(torch.ones(2, 2), 3.0), torch.full((2, 2), 3.0))
    with pytest.raises(UsageError, match="has no benchmark by_foot — it has liger, in_torch, by_hand"):
        candidate_from_file(Path(f"{path}:by_foot"))


def test_what_cannot_be_a_task_is_said_in_a_line(tmp_path: Path, counted: list[str]) -> None:
    text = FILES[OPERATOR]
    in_triton = text.replace("x * factor\n", "triton.scale(x)\n").replace("import torch\n", "import torch\nimport triton\n", 1)  # fmt: skip
    for changed, said in (
        (text.replace("baseline=True", ""), "no benchmark that is the baseline"),
        (text.replace("get_input_iter", "inputs"), "has no get_input_iter"),
        (text.replace("class Operator(", "class Other("), "defines no class Operator"),
        (in_triton, "its baseline in_torch needs Triton"),
        (text.replace("from .sizes", "from tritonbench.absent"), "which is not carried over"),
    ):
        root = written(tmp_path, FILES | {OPERATOR: changed})
        with pytest.raises(UsageError, match=said):
            resolve([str(root / OPERATOR)])


@pytest.mark.slow
def test_inputs_are_counted_in_a_worker_without_memory(tmp_path: Path) -> None:
    large = FILES | {OPERATOR: FILES[OPERATOR].replace("self.rows, width", "10**12, width")}
    [task] = resolve([str(written(tmp_path, large) / OPERATOR)])
    assert len(task.workload) == 4
