"""How much of a call is in the candidate's own kernels: reported, and required on request."""

from collections.abc import Iterator

import pytest
from trial import Evaluate, variant

from kernelbench.evaluator import Evaluator
from kernelbench.records import Verdict

RETURN = "return torch.nn.functional.gelu(self.norm(x))"
OWN = '''
from kernelbench import jit
lib = jit.compile_cpp("""
#include <cmath>
extern "C" void norm_gelu(const float* x, const float* w, const float* b, float* y, long rows, long columns) {
    #pragma omp parallel for
    for (long r = 0; r < rows; ++r) {
        const float* in = x + r * columns;
        double sum = 0, squares = 0;
        for (long i = 0; i < columns; ++i) sum += in[i];
        const double mean = sum / columns;
        for (long i = 0; i < columns; ++i) squares += (in[i] - mean) * (in[i] - mean);
        const float scale = 1 / std::sqrt(squares / columns + 1e-5);
        for (long i = 0; i < columns; ++i) {
            const float z = (in[i] - float(mean)) * scale * w[i] + b[i];
            y[r * columns + i] = 0.5f * z * (1 + std::erf(z * 0.70710678f));
        }
    }
}
""")
''' + variant(
    RETURN,
    "y = torch.empty_like(x); lib.norm_gelu(x, self.norm.weight, self.norm.bias, y, *x.shape); return y",
)


@pytest.fixture
def demanding(evaluator: Evaluator) -> Iterator[None]:
    """An evaluator that times only candidates with kernels of their own for half of a call."""
    kept = evaluator.protocol
    evaluator.protocol = kept.model_copy(update={"own_kernels": 0.5})
    yield
    evaluator.protocol = kept


@pytest.mark.usefixtures("demanding")
def test_what_torch_does_is_not_timed_where_own_kernels_are_required(evaluate: Evaluate) -> None:
    evaluation = evaluate(variant("Model", "Model"))
    assert evaluation.verdict is Verdict.unmeasured and evaluation.speedup is None
    assert "in kernels of its own, not 50%" in evaluation.reason


@pytest.mark.usefixtures("demanding")
def test_kernels_of_its_own_are_timed(evaluate: Evaluate) -> None:
    evaluation = evaluate(OWN)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.own_kernel_share is not None and evaluation.own_kernel_share > 0.5


def test_the_share_is_reported_in_any_case(evaluate: Evaluate) -> None:
    evaluation = evaluate(variant("Model", "Model"))
    assert evaluation.verdict is Verdict.correct
    assert evaluation.own_kernel_share is not None and evaluation.own_kernel_share < 0.5
