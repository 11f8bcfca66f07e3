"""Tasks of a module from example calls of several sizes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator.reference.loading import import_source
from kernelwright.kernelbench.modules.examples import task_of_examples
from kernelwright.kernelbench.modules.tracing import trace_call
from kernelwright.kernelbench.records import Task
from kernelwright.kernelbench.sources import task_of_text


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(32))

    def forward(self, x: Tensor, y: Tensor | None = None, scale: float = 0.5) -> Tensor:
        gated = torch.sigmoid(x.flatten(0, -2)) * self.weight * scale
        return gated if y is None else gated.unflatten(0, x.shape[:-1]) + y.unsqueeze(1)


def rotated(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    return x * table[positions]


def task(function: Any, *examples: tuple[Any, ...]) -> Task:
    calls = [trace_call(function, example) for example in examples]
    return task_of_text("module:it", task_of_examples(calls))


def sizes(of: Task) -> list[dict[str, int]]:
    return [{name: int(value) for name, value in size.constants.items()} for size in of.workload]


def test_axes_that_differ_are_of_any_length(tmp_path: Path) -> None:
    module = Gated()
    found = task(module, *((torch.randn(*shape, 32),) for shape in ((4, 64), (2, 200), (8, 64))))
    assert sizes(found) == [
        {"batch": 4, "length": 64}, {"batch": 2, "length": 200}, {"batch": 8, "length": 64},
    ]  # fmt: skip
    for number, size in enumerate(found.workload):
        reference = import_source(found.at(size).source, f"gated_{number}", tmp_path)
        (x,), model = reference.get_inputs(), reference.Model()
        model.load_state_dict(module.state_dict())
        assert [*x.shape] == [*map(int, size.constants.values()), 32]
        torch.testing.assert_close(model(x), module(x))


def test_an_axis_of_several_inputs_is_one() -> None:
    found = task(Gated(), *((torch.randn(b, 16, 32), torch.randn(b, 32)) for b in (4, 3)))
    assert sizes(found) == [{"batch": 4}, {"batch": 3}]
    assert "torch.randn(batch, 16, 32), torch.randn(batch, 32)" in found.source


def test_further_axes_are_numbered() -> None:
    found = task(torch.erf, *((torch.randn(n, 3, n + 1, 2 * n),) for n in (8, 9)))
    assert sizes(found)[0] == {"batch": 8, "length": 9, "size_3": 16}


def test_positions_are_below_the_length(tmp_path: Path) -> None:
    table = torch.randn(512, 16)
    found = task(rotated, *((torch.randn(4, n, 16), torch.arange(n), table) for n in (64, 100)))
    assert sizes(found) == [{"length": 64}, {"length": 100}]
    inputs = import_source(found.source, "rotated", tmp_path).get_inputs()
    assert inputs[1].max() < 64


def test_one_example_makes_a_task_of_one_size() -> None:
    assert task(Gated(), (torch.randn(4, 32),)).workload == ()


def test_a_name_of_the_module_s_is_not_that_of_an_axis() -> None:
    def function(batch: Tensor) -> Tensor:
        return batch.erf()

    found = task(function, (torch.randn(4, 32),), (torch.randn(5, 32),))
    assert sizes(found) == [{"batch_size": 4}, {"batch_size": 5}]


X = torch.randn(4, 32)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ((X, torch.randn(4, 32)), "example 2 of Gated has arguments of another form"),
        ((X, None, 0.25), "example 2 of Gated has arguments of another form"),
        ((torch.randn(2, 4, 32),), "has a tensor of another dtype, device or number of axes"),
        ((X.double(),), "has a tensor of another dtype, device or number of axes"),
    ],
)
def test_examples_that_differ_in_more_are_said(other: tuple[Any, ...], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        task(Gated().double() if other[0].dtype is torch.float64 else Gated(), (X,), other)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_equal_sizes_are_said() -> None:
    with pytest.raises(UsageError, match="two examples of Gated have the same sizes"):
        task(Gated(), (X,), (torch.randn(5, 32),), (torch.randn(4, 32),))


def test_what_depends_on_a_size_is_said() -> None:
    def function(x: Tensor) -> Tensor:
        return x.erf() if len(x) > 20 else x.tanh()

    with pytest.raises(UsageError, match="is not one task for any batch"):
        task(function, (torch.randn(64, 8),), (torch.randn(32, 8),))


def test_what_depends_on_a_size_of_an_example_is_said() -> None:
    """The first example and the small sizes lie on one side of its threshold."""

    def function(x: Tensor) -> Tensor:
        return x.erf() if len(x) > 50 else x.tanh()

    with pytest.raises(UsageError, match="gives other numbers"):
        task(function, (torch.randn(32, 8),), (torch.randn(64, 8),))


def test_a_number_that_is_returned_depends_on_no_size() -> None:
    def function(x: Tensor) -> tuple[Tensor, int]:
        return x.erf(), len(x)

    with pytest.raises(UsageError, match="returns another form, or other numbers"):
        task(function, (torch.randn(32, 8),), (torch.randn(64, 8),))


def test_the_random_numbers_of_the_user_are_left() -> None:
    torch.manual_seed(7)
    examples = (torch.randn(32, 8),), (torch.randn(64, 8),)
    state = torch.get_rng_state()
    task(torch.erf, *examples)
    assert torch.equal(torch.get_rng_state(), state)
