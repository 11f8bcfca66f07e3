"""Whatever a reference makes or casts itself is float64 in its exact run, and says the dtype that it had."""

from pathlib import Path

import pytest
import torch

from kernelwright.kernelbench.evaluator.reference.float64 import Exact, widened
from kernelwright.kernelbench.evaluator.reference.task_format import TaskFault
from tests.helpers.evaluator.references import oracle, task


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SQUARE = "self.w = nn.Parameter(torch.randn(128, 128))"
HALF = "[torch.randn(64, 128, dtype=torch.bfloat16)]"
CUSTOM = """
class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.dtype is torch.float32
        return x * x
"""
MOE = """
gate = (x @ self.w[:, :4]).softmax(-1, dtype=torch.float32)
top, chosen = gate.topk(2, -1)
out = torch.zeros_like(x)
for e in range(4):
    rows, place = (chosen == e).nonzero(as_tuple=True)
    out.index_add_(0, rows, (x[rows] * top[rows, place][:, None]).to(x.dtype))
return out
"""
W4A16 = """
low, high = (self.packed & 15).to(x.dtype) - 8, (self.packed >> 4).to(x.dtype) - 8
w = torch.stack([low, high], -1).flatten(1) * self.scale
return F.linear(x, w)
"""
PACKED = """
self.register_buffer("packed", torch.randint(0, 256, (32, 64), dtype=torch.uint8))
self.register_buffer("scale", torch.rand(32, 1).to(torch.bfloat16))
"""
ATTENTION = """
q = x.view(2, 4, 8, 128)
s = (q @ q.transpose(-1, -2)).float() / 8
s = s + torch.triu(torch.full((8, 8), float("-inf")), 1)
return torch.softmax(s, -1, dtype=torch.float32).to(q.dtype) @ q
"""
ROTARY = """
frequencies = 1.0 / (10000 ** (torch.arange(0, 128, 2, dtype=torch.float32) / 128))
angles = torch.outer(torch.arange(64, dtype=torch.float32), frequencies)
a, b = x.float().chunk(2, -1)
return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).type_as(x)
"""
GRAPH = """
with torch.enable_grad():
    y = x.detach().requires_grad_()
    return torch.autograd.grad(F.gelu(y).float().sum(), y)[0]
"""
# forward, what it is written beside.
RUN = {
    "zeros_of_the_default_dtype": ("return self.r(x[None], torch.zeros(1, 1, 32))[0]", {"init": "self.r = nn.GRU(128, 32, batch_first=True)"}),
    "plain_tensors": ("return self.r(x[None], (self.h, self.c))[0]",
                      {"init": "self.r = nn.LSTM(128, 32, batch_first=True); self.h, self.c = torch.randn(2, 1, 1, 32)"}),
    "plain_tensors_in_a_list": ("return x @ self.ws[0] + self.ws[1]", {"init": "self.ws = [torch.randn(128, 8), torch.randn(8)]"}),
    "a_tensor_of_the_file": ("return x @ TABLE", {"before": "TABLE = torch.randn(128, 16)"}),
    "softmax_in_float": (ATTENTION, {"draw": HALF}),
    "index_add_of_one_dtype": (MOE, {"init": SQUARE}),
    "index_add_in_bf16": (MOE, {"init": SQUARE.replace("128)", "128).bfloat16()"), "draw": HALF}),
    "four_bit_weights": (W4A16, {"init": PACKED, "draw": HALF}),
    "tables_in_forward": (ROTARY, {}),
    "tables_in_bf16": (ROTARY, {"draw": HALF}),
    "autocast": ("with torch.autocast('cpu', dtype=torch.bfloat16):\n    return (x @ self.w).float().sigmoid()", {"init": SQUARE}),
    "half_inside": ("return (x.half() * 2).float()", {}),
    "one_hot": ("return F.one_hot(x.argmax(1), 128).float() @ self.w", {"init": SQUARE}),
    "asks_for_the_dtype": ("assert x.dtype is torch.bfloat16 and (x * 2).dtype is torch.bfloat16\nreturn (x * 2).float()", {"draw": HALF}),
    "branches_on_the_dtype": ("y = x.float()\nreturn y * 2 if y.dtype is torch.float32 else y * 3", {"draw": HALF}),
    "checks_in_a_custom_function": ("return Squared.apply(x)", {"before": CUSTOM}),
    "limits_of_the_dtype": ("return x.masked_fill(x < 0, torch.finfo(x.dtype).min).softmax(-1)", {"draw": HALF}),
    "a_mask_that_is_not_saved": ("return x + self.mask[:64]",
                                 {"init": "self.register_buffer('mask', torch.ones(128, 128, dtype=torch.float16), persistent=False)"}),
    "gradients_in_forward": (GRAPH, {}),
    "bits": ("return (x.view(torch.int32) & -65536).view(torch.float32)", {}),
    "eight_bit_floats": ("return (x.to(torch.float8_e4m3fn).float() @ self.w).to(x.dtype)", {"init": SQUARE}),
    "complex_numbers": ("return torch.view_as_real(torch.fft.fft(x.to(torch.complex64)))", {}),
    "numbers": ("return x * torch.tensor(0.1) + torch.full((128,), 0.3) + torch.linspace(0, 1, 128)", {}),
    "float64_inside": ("return x.double().cumsum(1).to(x.dtype)", {"draw": HALF}),
    "another_output": ("y = torch.empty(64, 128, dtype=x.dtype)\ntorch.mul(x, 2, out=y)\nreturn y", {"draw": HALF}),
}  # fmt: skip


@pytest.mark.parametrize("case", RUN)
def test_it_runs_in_float64_and_is_close(case: str, tmp_path: Path) -> None:
    forward, beside = RUN[case]
    made = oracle(task(forward, **beside), tmp_path)
    reference, exact = made.reference.both(made.reference.first, None)
    for mine, right in zip(reference, exact, strict=True):
        assert right.dtype is torch.float64 and mine.dtype is not torch.float64
        coarse = 0.05 if beside.get("draw") == HALF or case in ("autocast", "half_inside") else 1e-3
        assert float((mine.double() - right).norm() / right.norm()) < coarse


def test_the_exact_run_has_the_accuracy_of_float64(tmp_path: Path) -> None:
    """A cast to float32 within it is none: against sums that are exact."""
    source = task("return x.float().double().float().cumsum(1) / torch.arange(1, 129, dtype=torch.float32)")
    made = oracle(source, tmp_path)
    (x,) = made.reference.first
    _, (exact,) = made.reference.both([x], None)
    right = x.double().cumsum(1) / torch.arange(1, 129, dtype=torch.float64)
    assert float((exact - right).abs().max()) < 1e-14


def test_a_cast_to_the_same_dtype_is_the_tensor_itself() -> None:
    """What is written to it then is written to the tensor; a cast to another one makes a new tensor."""
    x = widened(torch.ones(3))
    with torch.no_grad(), Exact():
        x.float().add_(1)
        assert float(x[0]) == 2
        x.double().add_(1)
        x.half().add_(1)
        assert float(x[0]) == 2 and x.dtype is torch.float32 and x.half().dtype is torch.float16
    assert torch.get_default_dtype() is torch.float32


def test_the_name_of_a_type_is_that_of_its_own() -> None:
    x = widened(torch.ones(3))
    with torch.no_grad(), Exact():
        assert x.type() == "torch.FloatTensor" and x.element_size() == 4
        half = x.type("torch.HalfTensor")
        assert half.type() == "torch.HalfTensor" and half.dtype is torch.float16
    assert half.untyped_storage().nbytes() == 3 * 8


def test_eight_bit_floats_keep_their_rounding() -> None:
    x = torch.tensor([1.03, 17.2, -0.3])
    with torch.no_grad(), Exact():
        rounded = widened(x).to(torch.float8_e4m3fn).float()
    assert torch.equal(rounded, x.to(torch.float8_e4m3fn).double())


def test_an_operator_that_has_no_float64_is_taken_as_exact(tmp_path: Path) -> None:
    made = oracle(task("return torch.ops.aten._int_mm(x, x.t()).float()",
                       draw="[torch.randint(-9, 9, (32, 64), dtype=torch.int8)]"), tmp_path)  # fmt: skip
    assert made.reference.outputs[0].dtype == "float32"


def test_what_fails_in_float64_alone_says_so(tmp_path: Path) -> None:
    with pytest.raises(TaskFault, match=r"fails at forward in float64\(float.*: RuntimeError: no such thing"):
        forward = (
            "if torch.get_default_dtype() is torch.float64: raise RuntimeError('no such thing')\nreturn x"
        )
        oracle(task(forward), tmp_path)
