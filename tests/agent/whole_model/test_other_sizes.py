"""Tasks for any size of a model's parts: what their axes are, and what cannot be one."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.other_sizes import OtherSizes
from kernelwright.agent.whole_model.parts import ModelPart, parts_of
from kernelwright.agent.whole_model.step import ModelStep
from kernelwright.agent.whole_model.survey import survey
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.evaluator.reference.loading import import_source
from kernelwright.kernelbench.sources import task_of_text
from kernelwright.kernelbench.sources.sizes import from_size_words
from tests.agent.whole_model.models import Norm


def flattened(x: Tensor) -> Tensor:
    return torch.erf(x) * torch.tanh(x) + x


def with_both(x: Tensor, y: Tensor) -> Tensor:
    return torch.erf(x) + torch.tanh(y).flatten(0, 1)


def positions(table: Tensor, index: Tensor) -> Tensor:
    return torch.erf(table[index])


def by_length(x: Tensor) -> Tensor:
    return x.erf() if x.shape[1] > 40 else x.tanh().erf()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm(64)
        self.table = nn.Parameter(torch.randn(512, 64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        flat = flattened(y.flatten(0, 1))
        flat = with_both(flat, y)
        y = flat.reshape(y.shape) + positions(self.table, torch.arange(x.shape[1]))
        return by_length(y)


def batch(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, 64)


def parts(
    sizes: list[str], model: Callable[[], nn.Module] = Model, most_calls: int = 24
) -> dict[str, ModelPart]:
    made = model()

    def step(lengths: Mapping[str, int]) -> ModelStep:
        return ModelStep.of((made, batch), (), {}, False, "m:build", lengths)

    workload = from_size_words(sizes)
    ticks = iter(range(1000))
    surveyed = survey(
        step({name: int(value) for name, value in workload[0].constants.items()}), lambda: next(ticks)
    )
    found = parts_of(surveyed, most_calls, OtherSizes(step, workload))
    return {part.name: part for part in found}


@pytest.fixture(scope="module")
def found() -> dict[str, ModelPart]:
    return parts(["batch=8,length=256", "batch=2,length=300,weight=3", "batch=4,length=512,hidden"])


def workload(part: ModelPart) -> list[tuple[dict[str, str], float, bool]]:
    assert part.source, (part.reason, part.one_size)
    task = task_of_text("file:part", part.source)
    return [(each.constants, each.weight, each.hidden) for each in task.workload]


def test_axes_of_inputs_are_those_of_the_model(found: dict[str, ModelPart]) -> None:
    sizes = [
        ({"batch": "8", "length": "256"}, 1.0, False),
        ({"batch": "2", "length": "300"}, 3.0, False),
        ({"batch": "4", "length": "512"}, 1.0, True),
    ]
    assert workload(found["Norm"]) == workload(found["with_both"]) == sizes
    assert "torch.randn((batch * length), 64)" in found["with_both"].source


def test_a_product_of_axes_is_one_of_its_own(found: dict[str, ModelPart]) -> None:
    """8 * 256 rows, and 4 * 512 in a hidden size, are one size, which is not hidden."""
    assert workload(found["flattened"]) == [({"rows": "2048"}, 2.0, False), ({"rows": "600"}, 3.0, False)]


def test_positions_are_below_the_length_of_their_axis(found: dict[str, ModelPart]) -> None:
    assert [size for size, _, _ in workload(found["positions"])] == [
        {"length": "256"}, {"length": "300"}, {"length": "512"},
    ]  # fmt: skip
    assert "torch.randint(0, length, (length,))" in found["positions"].source


def test_a_part_that_does_something_else_elsewhere_has_the_first_size(found: dict[str, ModelPart]) -> None:
    part = found["by_length"]
    assert "not one task for any" in part.one_size and "depends on the free sizes" in part.one_size
    assert part.source and task_of_text("file:part", part.source).workload == ()


def test_tasks_compute_at_all_sizes_what_the_part_does(found: dict[str, ModelPart], tmp_path: Any) -> None:
    for name, own in (("flattened", flattened), ("with_both", with_both), ("positions", positions)):
        task = task_of_text("file:part", found[name].source)
        for number, size in enumerate(task.workload):
            module = import_source(task.at(size).source, f"{name}_{number}", tmp_path)
            inputs = module.get_inputs()
            torch.testing.assert_close(module.Model()(*inputs), own(*inputs))


def test_a_part_that_does_something_else_at_a_given_size_has_the_first() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.erf() if x.shape[1] < 500 else x.tanh()
            return torch.exp(-y * y) + x

    part = parts(["batch=8,length=256", "batch=2,length=512"], Branches)["Branches"]
    assert part.source and "gives other numbers" in part.one_size


def test_a_part_with_more_tensors_elsewhere_has_the_first_size() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
            y = torch.erf(x) * torch.tanh(x) + x
            return y if mask is None else y * mask

    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.masked = Masked()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.masked(x, x > 0 if x.shape[1] > 100 else None)
            return y

    found = parts(["batch=8,length=256", "batch=2,length=512"], Masks, most_calls=5)
    assert "another number of tensors" in "".join(part.one_size for part in found.values())


def test_a_model_that_fails_at_other_sizes_has_tasks_of_the_first() -> None:
    class Square(Norm):
        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[1] % 64 == 0, "64 rows a tile"
            return torch.erf(x) * torch.tanh(x) * self.weight

    found = parts(["batch=8,length=256", "batch=2,length=512"], lambda: nn.Sequential(Square(64)))
    part = found["Square"]
    assert part.source and "fails in a step: AssertionError: 64 rows a tile" in part.one_size


INPUT = "x=batch,length:int64<100"


@pytest.mark.parametrize(
    ("inputs", "sizes", "said"),
    [
        ([INPUT], [], "no size is given for batch in --input — give those that count"),
        ([INPUT], ["batch=8"], "length has no length in --size batch=8"),
        ([INPUT], ["batch=8,length=8,heads=2"], "heads is no axis of an --input"),
        ([INPUT], ["batch=8,length=0"], "length is 0, which is no length"),
        ([INPUT], ["batch=8,length=8,hidden"], "all sizes are hidden"),
        ([INPUT], ["batch=8,length=8", "batch=8,length=8"], "--size batch=8, length=8 is given twice"),
        (["8,8"], ["batch=8"], "no --input has the axis batch — name it there"),
        ([], ["batch=8", "rows=8"], "batch has no length in --size rows=8"),
    ],
)  # fmt: skip
def test_sizes_that_are_none_are_said_before_anything_is_started(
    inputs: list[str], sizes: list[str], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        ModelName.of("torch.nn:ReLU", inputs, sizes=sizes)
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("made", "sizes", "said"),
    [
        ((nn.Identity(), torch.ones(3)), {"rows": 3}, "returns a batch of one size, and --size is given"),
        ((nn.Identity(), batch), {"rows": 3}, "cannot be made: TypeError"),
        ((nn.Identity(), batch), {}, "give --size batch=8,length=8"),
    ],
)
def test_a_batch_that_is_not_made_of_the_sizes_is_said_in_a_line(
    made: Any, sizes: dict[str, int], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        ModelStep.of(made, (), {}, False, "m:build", sizes)
    assert said in str(raised.value) and "\n" not in str(raised.value)
