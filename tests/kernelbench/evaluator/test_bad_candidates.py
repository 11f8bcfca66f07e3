"""Whatever a candidate does wrong is its verdict; the evaluator itself stays up and goes on."""

import time
from collections.abc import Iterator

import pytest

from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import Evaluate, variant

RETURN = "return torch.nn.functional.gelu(self.norm(x))"

C_LOOP = '''
from kernelwright import jit
lib = jit.compile_cpp("""
extern "C" void forever(float* x) { volatile int go = 1; while (go) { x[0] += 1; } }
""")
'''
C_CRASH = '''
from kernelwright import jit
lib = jit.compile_cpp("""
extern "C" void crash(float* x) { *(volatile int*)16 = 1; }
""")
'''
BROKEN_CPP = '''
from kernelwright import jit
lib = jit.compile_cpp("""
extern "C" void broken(float* x) { x[0] = undeclared; }
""")
'''

CASES = {
    "syntax_error": ("def forward(:", Verdict.build_error, "not valid Python: invalid syntax (line 1)"),
    "no_model_new": ("x = 1", Verdict.build_error, "no class ModelNew"),
    "raises_at_import": ("raise OSError('no such thing')", Verdict.build_error, "OSError: no such thing"),
    "exits_at_import": ("import sys; sys.exit(0)", Verdict.build_error, "SystemExit"),
    "cpp_that_does_not_compile": (BROKEN_CPP, Verdict.build_error, "undeclared"),
    "wrong_constructor": (variant("def __init__(self, features)", "def __init__(self, a, b, features)"),
                          Verdict.runtime_error, "cannot be constructed"),
    "raises_in_forward": (variant(RETURN, "raise RuntimeError('not today')"), Verdict.runtime_error, "not today"),
    "wrong_shape": (variant(RETURN, RETURN + ".T"), Verdict.wrong_output, "has shape (1024, 512), not (512, 1024)"),
    "wrong_dtype": (variant(RETURN, RETURN + ".double()"), Verdict.wrong_output, "dtype float64, not float32"),
    "wrong_arity": (variant(RETURN, "return x, x"), Verdict.wrong_output, "2 outputs, not 1"),
    "wrong_device": (variant(RETURN, RETURN + ".to('meta')"), Verdict.wrong_output, "on device meta"),
    "none": (variant(RETURN, "return None"), Verdict.wrong_output, "output 0 is None, not a tensor of shape"),
    "no_output": (variant(RETURN, "return []"), Verdict.wrong_output, "no output"),
    "segfault": (C_CRASH + variant(RETURN, "lib.crash(x); return x"), Verdict.runtime_error, "SIGSEGV"),
    "abort": (variant(RETURN, "__import__('os').abort()"), Verdict.runtime_error, "killed by SIG"),
    "out_of_memory": (variant(RETURN, "return torch.ones(1 << 34)[:1]"), Verdict.runtime_error, "memory"),
    "exit_in_forward": (variant(RETURN, "__import__('os')._exit(0)"), Verdict.runtime_error, "exited with status 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_names_what_is_wrong(case: str, evaluate: Evaluate) -> None:
    source, verdict, words = CASES[case]
    evaluation = evaluate(source)
    assert evaluation.verdict is verdict, evaluation.reason
    assert words in evaluation.reason
    assert evaluation.speedup is None


@pytest.fixture
def impatient(evaluator: Referee, evaluate: Evaluate) -> Iterator[None]:
    """Short limits, for candidates that hang. The session is up, so that what passes is the candidate's time."""
    evaluate("x = 1")
    session = evaluator.sessions._session
    assert session is not None
    kept = session.limits
    session.limits = kept.model_copy(update={"build_s": 3.0, "load_s": 3.0, "call_s": 2.0})
    yield
    session.limits = kept


FIRST_CALL = {
    "cpp_loop": C_LOOP + variant(RETURN, "y = x.clone(); lib.forever(y); return y"),
    "python_loop": variant(RETURN, "\n        while True: pass"),
    "sleep_that_ignores_signals": variant(
        RETURN, "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(999)"
    ),
    "at_import": "import time\ntime.sleep(999)",
}


@pytest.mark.parametrize("case", FIRST_CALL)
@pytest.mark.usefixtures("impatient")
def test_a_hang_ends_at_its_limit(case: str, evaluate: Evaluate) -> None:
    started = time.monotonic()
    evaluation = evaluate(FIRST_CALL[case])
    assert evaluation.verdict is Verdict.timeout, evaluation.reason
    assert "more than 3 s" in evaluation.reason
    assert time.monotonic() - started < 15


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_hang_in_a_later_call_ends_at_its_limit(evaluate: Evaluate) -> None:
    later = "self.n = getattr(self, 'n', 0) + 1\n        while self.n == 4: pass\n        "
    started = time.monotonic()
    evaluation = evaluate(variant(RETURN, later + RETURN))
    assert evaluation.verdict is Verdict.timeout, evaluation.reason
    assert time.monotonic() - started < 30


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_the_first_call_of_a_process_may_compile(evaluate: Evaluate) -> None:
    first = "import time; time.sleep(2.5 * (not hasattr(self, 'n'))); self.n = 1\n        "
    evaluation = evaluate(variant(RETURN, first + RETURN))
    assert evaluation.verdict is Verdict.correct, evaluation.reason


def test_a_destructor_that_never_returns_harms_nobody(evaluate: Evaluate) -> None:
    trap = "class Trap:\n    def __del__(self):\n        while True: pass\n\nkept = Trap()\n"
    started = time.monotonic()
    assert evaluate(trap + variant("Model", "Model")).verdict is Verdict.correct
    assert time.monotonic() - started < 60


def test_a_fork_bomb_is_stopped(evaluate: Evaluate) -> None:
    bomb = "import os\n        while True: os.fork()"
    started = time.monotonic()
    evaluation = evaluate(variant(RETURN, bomb))
    assert evaluation.verdict in (Verdict.runtime_error, Verdict.timeout), evaluation.reason
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_gigabytes_of_output_are_dropped(evaluate: Evaluate) -> None:
    noisy = variant(
        RETURN, "line = 'x' * (1 << 20)\n        for _ in range(200): print(line)\n        " + RETURN
    )
    evaluation = evaluate(noisy)
    assert evaluation.verdict in (Verdict.correct, Verdict.timeout), evaluation.reason


def test_deleting_its_own_files_does_not_help_or_hurt(evaluate: Evaluate) -> None:
    gone = "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)\n"
    evaluation = evaluate(gone + variant("Model", "Model"))
    assert evaluation.verdict is Verdict.correct, evaluation.reason


def test_who_runs_out_of_memory_in_a_block_is_timed_in_shorter_ones(evaluate: Evaluate) -> None:
    """Outputs of a whole block are kept, as they are not where a kernel is used."""
    limited = """
import weakref
kept = weakref.WeakSet()
class Out:
    pass
""" + variant(
        "return torch.nn.functional.gelu(self.norm(x))",
        "y = torch.nn.functional.gelu(self.norm(x)); y.mark = Out(); kept.add(y.mark)\n"
        "        if len(kept) > 16: raise MemoryError\n"
        "        return y",
    )
    evaluation = evaluate(limited)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    never = limited.replace("> 16", "> 0")
    evaluation = evaluate(never)
    assert evaluation.verdict is Verdict.runtime_error and "MemoryError" in evaluation.reason
