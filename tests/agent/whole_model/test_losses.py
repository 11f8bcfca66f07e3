"""Losses of linear layers are found with the casts and views between them, and are tasks of any rows."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from kernelwright.agent.whole_model.losses import losses_of
from kernelwright.agent.whole_model.other_sizes import OtherSizes
from kernelwright.agent.whole_model.step import ModelStep
from kernelwright.kernelbench.records import Size


class Words(nn.Module):
    def __init__(self, how: str = "flat", words: int = 5000) -> None:
        super().__init__()
        self.body, self.head, self.how = nn.Linear(4, 8), nn.Linear(8, words, bias=False), how

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.body(x))
        if self.how == "of plain tensors":
            assert type(logits) is Tensor
        if self.how == "shifted":
            return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        if self.how == "scaled":
            return F.cross_entropy((logits / 2).flatten(0, 1), labels.flatten())
        if self.how == "classes first":
            return F.cross_entropy(logits.transpose(1, 2), labels)
        kwargs = {"reduction": "sum", "ignore_index": 7} if self.how == "options" else {}
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1), **kwargs)


def step(model: nn.Module, sizes: Mapping[str, int]) -> ModelStep:
    shape = sizes["batch"], sizes["length"]
    dtype = next(model.parameters()).dtype
    return ModelStep(model, (torch.randn(*shape, 4, dtype=dtype), torch.randint(5000, shape)), {}, True)


SIZES = {"batch": 3, "length": 6}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_is_found_behind_casts_and_views(dtype: torch.dtype) -> None:
    (loss,) = losses_of(step(Words().to(dtype), SIZES))
    assert (loss.path, loss.within, loss.constants) == ("head", "", {})
    assert loss.x.shape == (18, 8) and loss.target.shape == (18,) and loss.x.requires_grad
    assert loss.casts == (dtype is torch.bfloat16)
    (other,) = losses_of(step(Words("options").to(dtype), SIZES))
    assert other.constants == {"reduction": "sum", "ignore_index": 7}


@pytest.mark.parametrize("how", ["shifted", "scaled", "classes first"])
def test_what_is_another_loss_is_none(how: str) -> None:
    assert losses_of(step(Words(how), SIZES)) == []


def test_a_model_that_takes_plain_tensors_alone_has_none() -> None:
    one = step(Words("of plain tensors"), SIZES)
    one.run()
    assert losses_of(one) == []
    one.run()  # nothing is left in the model


def test_a_narrow_layer_is_none() -> None:
    model = nn.Sequential(nn.Linear(4, 10))
    given = torch.randn(6, 4), torch.randint(10, (6,))
    found = losses_of(ModelStep(model, given[:1], {}, True, lambda y: F.cross_entropy(y, given[1])))
    assert found == []


def test_its_task_is_for_any_rows() -> None:
    model = Words()
    sizes = [Size(constants={"batch": str(b), "length": str(n)}) for b, n in ((3, 6), (2, 5))]
    (loss,) = losses_of(step(model, SIZES))
    source = OtherSizes(lambda at: step(model, at), sizes).source_of_loss(loss, loss.traced())
    assert 'workload = [\n    {"rows": 18},\n    {"rows": 10},\n]' in source
    scope: dict[str, object] = {}
    exec(source, scope)
    task = scope["Model"]()  # type: ignore[operator]
    task.load_state_dict({"weight": model.head.weight})
    x, target = torch.randn(7, 8), torch.randint(5000, (7,))
    torch.testing.assert_close(task(x, target), F.cross_entropy(model.head(x), target))
