"""Operators' time and memory are those of the modules and functions that called them."""

import time

import pytest
import torch
from torch import Tensor, nn

from kernelwright.agent.whole_model.parts import parts_of
from kernelwright.agent.whole_model.places import CallSite, StepCost
from kernelwright.agent.whole_model.step import ModelStep
from kernelwright.agent.whole_model.survey import StepSurvey, survey
from tests.agent.whole_model.models import Norm, Wide, build, loss, refuses


def surveyed(step: ModelStep) -> StepSurvey:
    return survey(step, time.perf_counter)


@pytest.fixture(scope="module")
def trained() -> StepSurvey:
    return surveyed(ModelStep.of(build(), (), {}, True, "models:build"))


def place(found: StepSurvey, path: str) -> CallSite:
    return next(each for each in found.places if each.path == path)


def test_modules_and_functions_are_places(trained: StepSurvey) -> None:
    paths = {each.path for each in trained.places}
    assert {"", "norms.0", "mlps.3", "mlps.3.up", "mlps.0:gated"} <= paths
    assert place(trained, "mlps.0:gated").parent is place(trained, "mlps.0")
    assert [call.form for call in place(trained, "mlps.0:gated").calls] == ["torch.float32[64, 64, 128] 0.5"]


def test_forward_and_backward_belong_to_a_place(trained: StepSurvey) -> None:
    for path in ("norms.0", "mlps.1", "mlps.2:gated", "mlps.2.down"):
        cost = place(trained, path).cost
        assert cost.forward_s > 0 and cost.backward_s > 0, path
    assert place(trained, "mlps.0:gated").cost.products_s == 0
    down = place(trained, "mlps.0.down").cost
    assert down.products_s > 0.5 * down.seconds


def test_all_of_a_step_is_somewhere(trained: StepSurvey) -> None:
    """Operators outside of all places, those of a loss, count for the model."""
    own = sum(each.own.seconds for each in trained.places)
    assert own == pytest.approx(trained.profiled_s)
    within = sum(place(trained, f"{kind}.{n}").cost.seconds for kind in ("norms", "mlps") for n in range(4))
    assert 0.5 * trained.profiled_s < within < trained.profiled_s


def test_operators_are_counted_once(trained: StepSurvey) -> None:
    assert place(trained, "norms.0").operators == 6  # pow, mean, add, rsqrt and two products of elements


def test_what_is_kept_for_the_backward_pass_is_counted() -> None:
    """A norm keeps its input and the scaled input, 4 bytes an element, and the rsqrt, 4 bytes a row."""
    x = torch.randn(32, 64, requires_grad=True)
    found = surveyed(ModelStep.of((Norm(64), x, loss), (), {}, True, "norm"))
    output = 32 * 64 * 4  # which the loss keeps
    assert found.places[0].cost.kept_bytes == 32 * 64 * 4 * 2 + 32 * 4 + output


def test_a_checkpointed_forward_counts_twice_for_its_place() -> None:
    plain, again = (
        surveyed(
            ModelStep.of((Wide(64, 2, checkpointed), torch.randn(8, 64, 64), loss), (), {}, True, "wide")
        )
        for checkpointed in (False, True)
    )
    assert place(again, "norms.0").operators == 2 * place(plain, "norms.0").operators
    assert place(again, "norms.0").cost.kept_bytes <= place(plain, "norms.0").cost.kept_bytes


def test_inference_has_no_backward_pass() -> None:
    found = surveyed(ModelStep.of(build(), (), {}, False, "models:build"))
    assert found.places[0].cost.backward_s == 0 < found.places[0].cost.forward_s


def test_parts_are_calls_of_one_kind_in_tasks_of_their_own(trained: StepSurvey) -> None:
    parts = {part.name: part for part in parts_of(trained, 10)}
    assert set(parts) - {"loss"} == {
        "Norm",
        "gated",
    }  # of an MLP most of what could be saved is in its function
    assert parts["Norm"].calls == 4 and parts["gated"].calls == 4
    for part in parts.values():
        scope: dict[str, object] = {}
        exec(part.source, scope)
    assert "0.5" in parts["gated"].source and "(64, 64, 128)" in parts["gated"].source.replace("randn", "")


def test_parts_of_more_calls_are_looked_into(trained: StepSurvey) -> None:
    assert "gated" not in [part.name for part in parts_of(trained, 9)]


def test_a_part_that_cannot_be_traced_is_listed_with_the_reason() -> None:
    (part,) = parts_of(surveyed(ModelStep.of(refuses(), (), {}, False, "models:refuses")), 24)
    assert not part.source and "cannot be traced" in part.reason


class First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :4]


def test_a_part_that_takes_a_slice_alone_is_none() -> None:
    assert parts_of(surveyed(ModelStep.of((First(), torch.randn(8, 8)), (), {}, False, "first")), 24) == []


@pytest.mark.parametrize(("products_s", "has_a_task"), [(0.8, True), (0.95, False)])
def test_a_part_that_is_nearly_all_products_has_no_task(products_s: float, has_a_task: bool) -> None:
    found = surveyed(ModelStep.of((Norm(64), torch.randn(32, 64), loss), (), {}, True, "norm"))
    for each in found.places:  # the loss among them, whose time depends on the machine
        each.own = StepCost()
        vars(each).pop("cost", None)  # which is kept
    found.places[0].own = StepCost(forward_s=1.0, products_s=products_s)
    (part,) = parts_of(found, 24)
    assert bool(part.source) == has_a_task
    assert part.reason == (
        "" if has_a_task else "nearly all of it is products: fusing makes it 1.05 times as fast at most"
    )
