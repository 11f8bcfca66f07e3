"""Upstream problems are made small enough for two cores."""

from benchmarks.compiler import draw
from kernelwright.kernelbench import sources

PROBLEM = """
import torch
from torch import nn

batch_size = {batch}
features = {features}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return self.linear(x).view(batch_size, {view}, -1)


def get_inputs():
    return [torch.rand(batch_size, features)]


def get_init_inputs():
    return [features]
"""


def problem(batch: int, features: int, view: int = 1) -> str:
    return PROBLEM.format(batch=batch, features=features, view=view)


def test_a_small_problem_stays_as_it_is() -> None:
    assert draw._reduced(problem(64, 256)) == {}


def test_batches_are_reduced_first_and_enough_is_left_of_them() -> None:
    source = problem(4096, 4096)
    values = draw._reduced(source)
    assert values is not None and values["batch_size"] < 4096
    cost = draw._cost(sources.apply(source, {name: str(value) for name, value in values.items()}))
    assert cost is not None and 0.1 < cost <= 1
    large = draw._reduced(problem(64, 65536))
    assert large is not None and large["batch_size"] == 8 and large["features"] < 65536


def test_what_no_constant_reduces_is_left_out() -> None:
    assert (
        draw._reduced(
            problem(1, 1).replace("torch.rand(batch_size, features)", "torch.rand(100_000, 1, 10_000)")
        )
        is None
    )
    assert draw._reduced(problem(2, 4).replace("-1)", "-1).no_such_thing()")) is None


def test_names_are_sorted_as_numbers() -> None:
    lines = ["kernelbench:2/3 set a=1", "kernelbench:1/100", "kernelbench:1/20 set b=2"]
    assert [line.split()[0] for line in sorted(lines, key=draw._by_number)] == [
        "kernelbench:1/20",
        "kernelbench:1/100",
        "kernelbench:2/3",
    ]
