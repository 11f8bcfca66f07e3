"""Right is right on every input family, with the reference's own weights; nothing else is."""

import pytest

from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import Evaluate, variant

RETURN = "return torch.nn.functional.gelu(self.norm(x))"
NORM = "self.norm = nn.LayerNorm(features)"

HONEST = {
    "the_reference_itself": variant("Model", "Model"),
    "another_order_of_operations": variant(
        RETURN,
        "m = x.mean(-1, keepdim=True)\n"
        "        v = (x - m).square().mean(-1, keepdim=True)\n"
        "        y = (x - m) * torch.rsqrt(v + 1e-5) * self.norm.weight + self.norm.bias\n"
        "        return 0.5 * y * (1 + torch.erf(y * 0.7071067811865476))",
    ),
    "more_accurate_than_the_reference": variant(
        RETURN,
        "w, b = self.norm.weight.double(), self.norm.bias.double()\n"
        "        y = torch.nn.functional.layer_norm(x.double(), (x.shape[-1],), w, b)\n"
        "        return torch.nn.functional.gelu(y).float()",
    ),
    "noncontiguous_output": variant(RETURN, RETURN + ".T.contiguous().T"),
    "a_view_of_a_padded_buffer": variant(
        RETURN, "buffer = x.new_empty(x.shape[0], x.shape[1] + 16)\n        y = buffer[:, :-16]\n"
        "        y.copy_(torch.nn.functional.gelu(self.norm(x)))\n        return y"),
    "renamed_weights": variant(NORM, "self.other = nn.LayerNorm(features)").replace("self.norm(x)", "self.other(x)"),
    "weights_in_one_tensor": variant(
        NORM, "self.both = nn.Parameter(torch.cat([torch.ones(features), torch.zeros(features)]))"
    ).replace("self.norm(x)", "torch.nn.functional.layer_norm(x, (1024,), self.both[:1024], self.both[1024:])"),
}  # fmt: skip


@pytest.mark.parametrize("case", HONEST)
def test_honest_candidates_are_accepted(case: str, evaluate: Evaluate) -> None:
    evaluation = evaluate(HONEST[case])
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.correctness is not None and evaluation.correctness.inputs_tried >= 7
    assert evaluation.correctness.error is not None and evaluation.correctness.error <= 1.0


WRONG = {
    "half_precision_inside": variant(RETURN, "return torch.nn.functional.gelu(self.norm(x.half().float()))"),
    "ignores_the_affine_weights": variant(
        RETURN, "return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (1024,)))"
    ),
    "statistics_of_half_the_row": variant(
        RETURN,
        "h = x[:, :512]\n        v, m = torch.var_mean(h, -1, correction=0, keepdim=True)\n"
        "        y = (x - m) * torch.rsqrt(v + 1e-5) * self.norm.weight + self.norm.bias\n"
        "        return torch.nn.functional.gelu(y)",
    ),
    "tanh_for_erf": variant("gelu(self.norm(x))", "gelu(self.norm(x), approximate='tanh')"),
    "constant": variant(RETURN, "return torch.zeros_like(x)"),
    "returns_its_input": variant(RETURN, "return x"),
    "changes_its_input": variant(RETURN, "y = " + RETURN[7:] + "; x.mul_(1.0001); return y"),
    "leaves_the_last_row_unwritten": variant(
        RETURN, "y = torch.empty_like(x); y[:-1] = torch.nn.functional.gelu(self.norm(x[:-1])); return y"
    ),
    "remembers_by_pointer": variant(
        RETURN, "self.seen = getattr(self, 'seen', {})\n        key = x.data_ptr()\n"
        "        if key not in self.seen: self.seen[key] = torch.nn.functional.gelu(self.norm(x))\n"
        "        return self.seen[key].clone()"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_compute_the_function_is_wrong(case: str, evaluate: Evaluate) -> None:
    evaluation = evaluate(WRONG[case])
    assert evaluation.verdict is Verdict.wrong_output, (evaluation.verdict, evaluation.reason)


def test_different_results_for_the_same_inputs_are_nondeterministic(evaluate: Evaluate) -> None:
    flips = variant(RETURN, "self.n = getattr(self, 'n', 0) + 1\n        y = torch.nn.functional.gelu(self.norm(x))\n"
                            "        return y if self.n <= 3 else y + 0.01")  # fmt: skip
    evaluation = evaluate(flips)
    assert evaluation.verdict in (Verdict.nondeterministic, Verdict.wrong_output), evaluation.reason


def test_right_when_verified_but_wrong_when_timed_is_cheating(evaluate: Evaluate) -> None:
    # About ten calls verify; everything after answers with a copy of the last honest result.
    lazy = variant(
        RETURN, "self.n = getattr(self, 'n', 0) + 1\n"
        "        if self.n <= 14: self.last = torch.nn.functional.gelu(self.norm(x))\n"
        "        return self.last.clone()")  # fmt: skip
    evaluation = evaluate(lazy)
    assert evaluation.verdict in (Verdict.cheating, Verdict.wrong_output), evaluation.reason
    assert evaluation.speedup is None


def test_outputs_written_after_the_call_returned_do_not_count(evaluate: Evaluate) -> None:
    late = "import threading, time\n" + variant(
        RETURN, "y = torch.zeros_like(x)\n"
        "        def work():\n"
        "            time.sleep(0.05)\n"
        "            y.copy_(torch.nn.functional.gelu(self.norm(x)))\n"
        "        threading.Thread(target=work).start()\n"
        "        return y")  # fmt: skip
    # The first of two such calls may have been written to when its outputs are read.
    assert evaluate(late).verdict in (Verdict.wrong_output, Verdict.nondeterministic)


INTEGERS = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, y):
        return torch.argmax(x, 1), (x[:, 0] > y)
def get_inputs():
    return [torch.randn(256, 100), torch.rand(256)]
def get_init_inputs():
    return []
"""


def test_integer_and_boolean_outputs_are_exact(evaluate: Evaluate) -> None:
    right = INTEGERS.replace("Model(", "ModelNew(")
    assert evaluate(right, INTEGERS).verdict is Verdict.correct
    wrong = right.replace("torch.argmax(x, 1)", "torch.argmax(x, 1).clamp(max=98)")
    assert evaluate(wrong, INTEGERS).verdict is Verdict.wrong_output


VIEWS = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(100))
    def forward(self, x):
        return x.T, self.weight, x + 1
def get_inputs():
    return [torch.randn(256, 100)]
def get_init_inputs():
    return []
"""


def test_what_the_reference_gives_as_a_view_may_be_one(evaluate: Evaluate) -> None:
    right = VIEWS.replace("Model(", "ModelNew(")
    evaluation = evaluate(right, VIEWS)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    kept = right.replace("self.weight =", "self.buffer = torch.empty(256, 100); self.weight =")
    kept = kept.replace("x + 1", "torch.add(x, 1, out=self.buffer)")
    evaluation = evaluate(kept, VIEWS)
    assert evaluation.verdict is Verdict.wrong_output and "share" in evaluation.reason


DROPOUT = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)
def get_inputs():
    return [torch.randn(256, 100)]
def get_init_inputs():
    return []
"""


def test_a_random_forward_is_seeded_alike_on_both_sides(evaluate: Evaluate) -> None:
    assert evaluate(DROPOUT.replace("Model(", "ModelNew("), DROPOUT).verdict is Verdict.correct


TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2.0, mask=i < n)

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
"""
DOUBLE = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return x * 2.0
def get_inputs():
    return [torch.randn(64, 100)]
def get_init_inputs():
    return []
"""


def test_triton_is_interpreted_and_never_timed_on_the_cpu(evaluate: Evaluate) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    evaluation = evaluate(TRITON, DOUBLE)
    assert evaluation.verdict is Verdict.unmeasured, evaluation.reason
    assert evaluation.timing is None and evaluation.speedup is None
    assert evaluate(TRITON.replace("2.0", "2.001"), DOUBLE).verdict is Verdict.wrong_output


AUTOTUNED = TRITON.replace(
    "@triton.jit",
    '@triton.autotune([triton.Config({"BLOCK": n}) for n in (1024, 64)], key=["n"])\n@triton.jit',
)
AUTOTUNED = AUTOTUNED.replace("(triton.cdiv(x.numel(), 1024),)", 'lambda m: (triton.cdiv(6400, m["BLOCK"]),)')
AUTOTUNED = AUTOTUNED.replace(", BLOCK=1024)", ")")


def test_autotuned_kernels_are_interpreted_in_their_first_configuration(evaluate: Evaluate) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    evaluation = evaluate(AUTOTUNED, DOUBLE)
    assert evaluation.verdict is Verdict.unmeasured, evaluation.reason
    assert evaluate(AUTOTUNED.replace("2.0", "2.001"), DOUBLE).verdict is Verdict.wrong_output


INLINE = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

# As in torch's documentation.
source = """
at::Tensor sin_add(at::Tensor x, at::Tensor y) {
  return x.sin() + y.sin();
}
"""
other = """
#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x) {
  TORCH_CHECK(x.dim() == 2, "two dimensions, please");
  auto y = torch::empty_like(x);
  auto from = x.accessor<float, 2>();
  auto to = y.accessor<float, 2>();
  at::parallel_for(0, x.size(0), 1, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i)
      for (int64_t j = 0; j < x.size(1); ++j) to[i][j] = 2 * from[i][j];
  });
  return y;
}
"""
module = load_inline(name='inline_extension',
                     cpp_sources=[source, other],
                     functions={"sin_add": "", "twice": 'doubles "x"'})
x, y = torch.randn(2, 100)
torch.testing.assert_close(module.sin_add(x, y), x.sin() + y.sin())
assert module.twice.__doc__.rstrip().endswith('doubles "x"')
try:
    module.twice(torch.ones(2))
except RuntimeError as error:
    assert "two dimensions, please" in str(error)
else:
    raise AssertionError("TORCH_CHECK did not raise")

class ModelNew(nn.Module):
    def forward(self, x):
        return module.twice(x)
'''


@pytest.mark.slow
def test_load_inline_is_accepted_as_is(evaluate: Evaluate) -> None:
    evaluation = evaluate(INLINE, DOUBLE)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
