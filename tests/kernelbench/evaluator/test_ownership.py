"""How much of a call is in the candidate's own kernels: reported, and required on request."""

from collections.abc import Iterator

import pytest

from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.records import LEAST_OWN, Verdict
from tests.helpers.evaluator.trial import Evaluate, variant

RETURN = "return torch.nn.functional.gelu(self.norm(x))"
OWN = '''
from kernelwright import jit
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
def demanding(evaluator: Referee) -> Iterator[None]:
    """An evaluator that times only candidates with kernels of their own for half of a call."""
    kept = evaluator.sessions.protocol
    evaluator.sessions.protocol = kept.model_copy(update={"own_kernels": 0.5})
    yield
    evaluator.sessions.protocol = kept


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


# Each spends most of a call outside torch's operators, or says so.
DISGUISED = {
    "Python's own time": variant(RETURN, f"sum(range(300_000)); {RETURN}"),
    "a kernel in a string": f"KERNEL = {OWN.partition('class')[0]!r}\n"
    + variant(RETURN, f"sum(range(300_000)); {RETURN}"),
    "a forged share": "from kernelwright.kernelbench.evaluator.processes import worker\nworker.own_kernel_share = lambda *given: 1.0\n"
    + variant("Model", "Model"),
    "no tracing": variant(
        RETURN, f"if torch._C._len_torch_dispatch_stack(): raise OSError\n        {RETURN}"
    ),
}


@pytest.mark.parametrize("how", DISGUISED)
def test_without_machine_code_of_its_own_nothing_is(how: str, evaluate: Evaluate) -> None:
    evaluation = evaluate(DISGUISED[how])
    assert (evaluation.verdict, evaluation.own_kernel_share) == (Verdict.correct, 0.0), evaluation.reason


def test_a_kernel_that_nobody_calls_counts_for_nothing(evaluate: Evaluate) -> None:
    """Calling eight operators and releasing what they return is a tenth of such a call, and nobody's kernel."""
    math = "torch.sigmoid(x) * x + torch.tanh(x) * torch.exp(-x * x)"
    source = f"""import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {math}

def get_inputs():
    return [torch.randn(256, 1024)]

def get_init_inputs():
    return []
"""
    beside = "from kernelwright import jit\njit.compile_cpp('extern \"C\" void f() {}')\n"
    evaluation = evaluate(beside + source.replace("Model", "ModelNew"), source)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.own_kernel_share is not None and evaluation.own_kernel_share < LEAST_OWN


@pytest.mark.slow
def test_a_kernel_that_is_built_otherwise_counts(evaluate: Evaluate) -> None:
    """By a compiler that the candidate calls itself, into its scratch folder."""
    text = OWN.replace("from kernelwright import jit", "import ctypes, subprocess, tempfile").replace(
        "lib = jit.compile_cpp(", "SOURCE = ("
    )
    build = """
folder = tempfile.mkdtemp()
words = ["g++", "-O3", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o", folder + "/own.so"]
subprocess.run(words, input=SOURCE, text=True, check=True)
lib = ctypes.CDLL(folder + "/own.so")
"""
    call = "lib.norm_gelu(*(ctypes.c_void_p(t.data_ptr()) for t in (x, self.norm.weight, self.norm.bias, y)), *map(ctypes.c_long, x.shape))"
    old = "lib.norm_gelu(x, self.norm.weight, self.norm.bias, y, *x.shape)"
    text = text.replace(old, call).replace("\nimport torch\n", f"{build}\nimport torch\n", 1)
    evaluation = evaluate(text)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    assert evaluation.own_kernel_share is not None and evaluation.own_kernel_share > 0.5
