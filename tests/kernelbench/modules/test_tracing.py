"""Modules and functions become task files that compute the same with the same weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from kernelwright.kernelbench import sources
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.tracing import trace_call
from kernelwright.kernelbench.modules.writing import task_source

SCALE = torch.linspace(0.5, 1.5, 64)


class Gate(nn.Module):
    """A module with whatever a module may hold."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.norms = nn.ModuleDict({"1": nn.BatchNorm1d(8), "last": nn.LayerNorm(8)})
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool).tril())
        self.register_buffer("places", torch.arange(8), persistent=False)
        self.frozen = nn.Parameter(torch.full((8,), 0.5), requires_grad=False)
        self.shift = torch.tensor([0.25])  # neither parameter nor buffer
        self.drop = nn.Dropout(0.5)
        self.eps = 1e-3

    def forward(self, x: Tensor, scale: float = 1.0, *, bias: Tensor | None = None) -> dict[str, Any]:
        for layer in self.layers:
            x = F.silu(layer(x)) * scale
        x = self.norms["last"](self.norms["1"](x) + self.eps) * self.frozen + self.shift
        if bias is not None:
            x = x + bias
        scores = (x @ x.T).masked_fill(~self.mask, 0.0) + self.places
        return {
            "x": self.drop(x),
            "scores": [scores, x.new_zeros(3)],
            "layers": len(self.layers),
            "none": None,
        }


def model_of(source: str) -> tuple[nn.Module, list[Any]]:
    scope: dict[str, Any] = {"__name__": "task"}
    exec(compile(source, "task.py", "exec"), scope)
    return scope["Model"](*scope["get_init_inputs"]()), scope["get_inputs"]()


class Named(nn.Module):
    """Weights named like keywords, and like words in their values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.mean = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))
        self.input = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(input=x * self.input, normalized_shape=(8,), weight=self.weight, bias=self.mean)
        return F.mse_loss(y, target=self.mean.expand_as(y), reduction="mean")


def test_a_weight_may_have_the_name_of_a_keyword_or_of_its_value() -> None:
    source = task_source(trace_call(Named(), (torch.randn(4, 8),)))
    assert "weight=self.weight" in source and "reduction='mean'" in source


def test_the_task_of_a_module_has_its_weights_and_computes_the_same() -> None:
    module = Gate().eval()
    x, bias = torch.randn(8, 8), torch.randn(8)
    source = task_source(trace_call(module, (x, 2.0), {"bias": bias}))
    sources.check(source)
    model, inputs = model_of(source)
    read = {**module.state_dict(), "places": module.places, "shift": module.shift}
    del read["norms.1.num_batches_tracked"]  # which evaluation mode does not read
    assert {n: (v.shape, v.dtype) for n, v in model.state_dict().items()} == {
        n: (v.shape, v.dtype) for n, v in read.items()
    }
    assert [(value.shape, value.dtype) for value in inputs] == [
        ((8, 8), torch.float32),
        ((8,), torch.float32),
    ]
    assert [name for name, value in model.named_parameters() if not value.requires_grad] == ["frozen"]
    model.load_state_dict(read)
    with torch.no_grad():
        wanted = module(x, 2.0, bias=bias)
        found = model(x, bias)
    for ours, theirs in zip(found, [wanted["x"], *wanted["scores"]], strict=True):
        assert torch.equal(ours, theirs)


def test_buffers_that_a_rule_describes_are_written_as_it() -> None:
    source = task_source(trace_call(Gate().eval(), (torch.randn(8, 8),)))
    assert 'self.register_buffer("mask", torch.ones((8, 8), dtype=torch.bool).tril())' in source
    assert 'self.register_buffer("places", torch.arange(0, 8, 1, dtype=torch.int64))' in source
    assert 'self.register_buffer("shift", torch.full((1,), 0.25, dtype=torch.float32))' in source


def test_tracing_leaves_the_module_as_it_was() -> None:
    module = Gate()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(3)
    drawn = torch.randn(1)
    torch.manual_seed(3)
    trace_call(module, (torch.randn(8, 8, generator=torch.Generator().manual_seed(0)),))
    assert torch.equal(torch.randn(1), drawn)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training and all(p.grad is None for p in module.parameters())


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.table = 0, {"by": 2.0}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.table = {**self.table}
        return x * self.table["by"]


def test_tracing_leaves_attributes_as_they_were() -> None:
    module = Counts()
    table = module.table
    trace_call(module, (torch.randn(4),))
    assert module.calls == 0 and module.table is table


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def of_a_global(x: Tensor) -> Tensor:
    return (x * SCALE).relu()


def of_a_closure() -> Callable[[Tensor], Tensor]:
    inner = torch.full((64,), 3.0)
    return lambda x: torch.where(x > 0, x, inner)


def of_containers(pair: tuple[Tensor, Tensor], options: dict[str, Any]) -> Tensor:
    return pair[0] * options["by"] + pair[1].to(options["dtype"])


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (norm, (torch.randn(4, 64), torch.ones(64))),
        (of_a_global, (torch.randn(4, 64),)),
        (of_a_closure(), (torch.randn(4, 64),)),
        (of_containers, ((torch.randn(4), torch.arange(4)), {"by": 2.0, "dtype": torch.float32})),
        (torch.softmax, (torch.randn(4, 8), -1)),
        (nn.LayerNorm(64).bfloat16(), (torch.randn(4, 64, dtype=torch.bfloat16),)),
        (nn.LSTM(8, 8), (torch.randn(4, 2, 8),)),
        (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), (torch.randn(2, 4, 32),)),
        (nn.Dropout(0.5), (torch.randn(64, 64),)),
        (nn.Embedding(100, 8), (torch.randint(0, 100, (4, 4)),)),
        (nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), (torch.randn(2, 3, 8, 8),)),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_functions_and_torchs_own_layers_are_tasks(function: Any, args: tuple[Any, ...]) -> None:
    source = task_source(trace_call(function, args))  # which runs it, and compares
    sources.check(source)


def test_a_tensor_from_outside_is_a_buffer_under_its_own_name() -> None:
    call = trace_call(of_a_global, (torch.randn(4, 64),))
    assert list(call.weights) == ["SCALE"] and call.weights["SCALE"] is SCALE


def test_layouts_are_kept() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    _, (drawn,) = model_of(task_source(trace_call(torch.relu, (x,))))
    assert drawn.stride() == x.stride() and drawn.shape == x.shape


def test_what_prints_is_traced_in_the_operators_of_aten(capsys: pytest.CaptureFixture[str]) -> None:
    def talks(x: Tensor) -> Tensor:
        print("called")
        return F.silu(x)

    source = task_source(trace_call(talks, (torch.randn(4, 8),)))
    assert "torch.ops.aten.silu.default(x)" in source


class Data:
    pass


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (nn.Linear, (torch.ones(1),), "is a class — pass an instance, such as Linear(…)"),
        (3, (torch.ones(1),), "a int is neither a module nor a function"),
        (nn.Linear(8, 8), (), "has no example input that is a tensor"),
        (nn.Linear(8, 8), (torch.randn(4, 9),), "fails with these inputs: RuntimeError"),
        (nn.Linear(8, 8), (torch.randn(4, 8).half(),), "give the inputs the dtype of the weights"),
        (nn.Linear(8, 8), (torch.randn(4, 8, device="meta"),), "is on the meta device"),
        (nn.Linear(8, 8, device="meta"), (torch.randn(4, 8),), "weight of Linear is on the meta"),
        (nn.LazyLinear(8), (torch.randn(4, 8),), "has no size yet — call the module once"),
        (nn.Linear(8, 8), (torch.randn(4, 8).to_sparse(),), "pass a plain, dense tensor"),
        (lambda x, y: x, (torch.ones(1), Data()), "an input of a lambda is a Data"),
        (lambda x: Data(), (torch.ones(1),), "an output of a lambda is a Data"),
        (lambda x: 3, (torch.ones(1),), "returns no tensor"),
        (lambda x, y: x, (torch.ones(1),), "pass its arguments as you call it"),
        (lambda x: x if x.sum() > 0 else -x, (torch.ones(1),), "depends on numbers in tensors — pass the part"),
        (lambda x: 2 * x if float(x.sum()) > 0 else -x, (torch.ones(1),), "depends on numbers in tensors"),
        (lambda x: x + torch.from_numpy(x.numpy().copy()), (torch.ones(8),), "use torch's functions in the place"),
        (torch.relu, (torch.full((4, 4), float("nan")),), "holds NaN or infinity"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_task_is_refused_with_a_way_out(
    function: Any, args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        task_source(trace_call(function, args))
    assert message in str(raised.value) and " — " in str(raised.value)


def test_a_random_forward_draws_the_same_numbers_from_one_seed() -> None:
    source = task_source(trace_call(nn.Dropout(0.5), (torch.ones(64, 64),)))
    model, _ = model_of(source)
    torch.manual_seed(1)
    found = model(torch.ones(64, 64))
    torch.manual_seed(1)
    assert torch.equal(found, F.dropout(torch.ones(64, 64)))
