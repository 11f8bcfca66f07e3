"""What a reference is made of, as far as its source says."""

import pytest

from kernelwright.kernelbench import sources
from kernelwright.kernelbench.operator_families import operator_families


@pytest.mark.parametrize(
    ("task", "families"),
    {
        "builtin:level1/softmax": {"softmax"},
        "builtin:level1/gelu_tanh": {"pointwise"},
        "builtin:level1/rms_norm": {"normalization"},
        "builtin:level1/sum_columns": {"reduction"},
        "builtin:level1/matmul_square": {"product"},
        "builtin:level2/linear_gelu_layer_norm": {"product", "normalization"},
        "builtin:level2/conv2d_hardswish_avg_pool": {"convolution", "pooling"},
    }.items(),
)
def test_families(task: str, families: set[str]) -> None:
    assert operator_families(sources.resolve([task])[0]) == families


def test_every_task_of_the_suite_has_one() -> None:
    tasks = sources.resolve([], suite="builtin")
    assert all(operator_families(task) for task in tasks) and len(tasks) == 159
    pointwise = sum(operator_families(task) == {"pointwise"} for task in tasks)
    assert pointwise < len(tasks) / 4
