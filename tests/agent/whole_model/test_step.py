"""Steps of models, of what their builders returned, and how the loss is found."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelwright.agent.whole_model.step import ModelStep
from kernelwright.kernelbench.errors import UsageError

X = torch.randn(4, 3)


def summed(x: Tensor) -> Tensor:
    return x.sum()


@pytest.mark.parametrize(
    "made",
    [(nn.Linear(3, 2), X, summed), (nn.Linear(3, 2), (X,), summed), (nn.Linear(3, 2), {"input": X}, summed)],
)
def test_a_builder_s_batch_is_a_tensor_arguments_or_keywords(made: Any) -> None:
    step = ModelStep.of(made, (), {}, True, "m:build")
    losses: list[Tensor] = []
    step.forward_and(losses.append)
    assert torch.equal(losses[0], made[0](X).sum())


@pytest.mark.parametrize("give", [summed, lambda x: SimpleNamespace(loss=x.sum()), lambda x: (x.sum(), x)])
def test_a_loss_is_the_output_or_in_it(give: Any) -> None:
    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return give(super().forward(x))

    ModelStep.of(Model(3, 2), (X,), {}, True, "m:Model").run()


def test_gradients_are_let_go_of() -> None:
    model = nn.Linear(3, 2)
    ModelStep.of((model, X, summed), (), {}, True, "m:build").run()
    assert model.weight.grad is None


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no such\nthing")


class Grows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.new_empty(1 << 50)


@pytest.mark.parametrize(
    ("made", "args", "said"),
    [
        ("text", (X,), "gives a str"),
        (nn.Linear(3, 2), (), "has no batch"),
        ((nn.Linear(3, 2), X), (X,), "leave out --input"),
        (Fails(), (X,), "Fails fails in a step: ValueError: no such — run that step"),
        (nn.Linear(3, 2).to("meta"), (X,), "put the model and its batch on one device"),
        (Grows(), (X,), "give a smaller batch, or fewer layers"),
        (nn.Linear(3, 2), (X,), "gives no loss of one element"),
        ((nn.Identity(), X, summed), (), "needs no gradient"),
    ],
)
def test_what_is_no_step_is_said_in_a_line(made: Any, args: Any, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        ModelStep.of(made, args, {}, True, "m:build").run()
    assert said in str(raised.value) and "\n" not in str(raised.value)
