"""A candidate that attacks the referee, its memory or its neighbours gets a verdict; the evaluator stays up."""

import json
import os
import time
from typing import Any

import pytest

from kernelwright.kernelbench.errors import InfrastructureError, TaskError
from kernelwright.kernelbench.evaluator import Measurement, Referee
from kernelwright.kernelbench.evaluator.block import Block
from kernelwright.kernelbench.evaluator.processes.worker_handle import Worker
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE, Evaluate, candidate_of, task_of, variant

RETURN = "return torch.nn.functional.gelu(self.norm(x))"
HONEST = variant("Model", "Model")

FIND_MEMORY = """
import os
def shared():
    for fd in range(3, 200):
        try:
            if "memfd" in os.readlink(f"/proc/self/fd/{fd}"):
                yield fd
        except OSError:
            pass
"""
ATTACKS = {
    "truncates_the_inputs": FIND_MEMORY
    + variant(RETURN, "[_try(os.ftruncate, fd, 0) for fd in shared()]\n        " + RETURN)
    + "\ndef _try(f, *a):\n    try: f(*a)\n    except OSError: pass\n",
    "writes_to_the_inputs_through_the_descriptor": FIND_MEMORY
    + variant(RETURN, "[_try(os.pwrite, fd, bytes(1 << 20), 0) for fd in shared()]\n        " + RETURN)
    + "\ndef _try(f, *a):\n    try: f(*a)\n    except OSError: pass\n",
    "leaves_a_deep_folder": "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')\n" + HONEST,
}


@pytest.mark.parametrize("case", ATTACKS)
def test_attacks_on_shared_memory_come_to_nothing(case: str, evaluate: Evaluate) -> None:
    assert evaluate(ATTACKS[case]).verdict in (Verdict.correct, Verdict.runtime_error)
    assert evaluate(HONEST).verdict is Verdict.correct  # the next one is none the worse


GARBAGE = {
    "not_json": 'b"x"',
    "a_list": 'b"[]"',
    "deeply_nested": 'b"[" * 100000',
    "too_long": 'b"y" * (8 << 20)',
}


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_on_the_channel_is_a_verdict(case: str, evaluate: Evaluate) -> None:
    forge = f"""
import os, socket, struct
for fd in range(3, 200):
    try:
        if os.readlink(f"/proc/self/fd/{{fd}}").startswith("socket"):
            payload = {GARBAGE[case]}
            socket.socket(fileno=os.dup(fd)).sendall(struct.pack("<I", len(payload)) + payload)
    except OSError:
        pass
"""
    evaluation = evaluate(forge + HONEST)
    assert evaluation.verdict is not Verdict.correct
    assert evaluate(HONEST).verdict is Verdict.correct


def test_descriptors_sent_by_a_candidate_do_not_pile_up_in_the_judge(evaluate: Evaluate) -> None:
    flood = """
import array, os, socket
for fd in range(3, 200):
    try:
        if os.readlink(f"/proc/self/fd/{fd}").startswith("socket"):
            s = socket.socket(fileno=os.dup(fd))
            s.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 16))])
    except OSError:
        pass
"""
    evaluate(HONEST)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        evaluate(flood + HONEST)
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_work_done_before_the_clock_starts_finds_no_inputs(evaluate: Evaluate) -> None:
    # Computes every slot ahead whenever it runs untimed, and looks results up when called.
    ahead = "import threading, time\n" + variant(
        RETURN,
        "if not hasattr(self, 'known'):\n"
        "            self.known = {}\n"
        "            import gc\n"
        "            self.all = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.shape == x.shape and o.data_ptr() != 0]\n"
        "            def work():\n"
        "                while True:\n"
        "                    for t in self.all: self.known[t.data_ptr()] = torch.nn.functional.gelu(self.norm(t))\n"
        "            threading.Thread(target=work, daemon=True).start()\n"
        "        return self.known[x.data_ptr()] if x.data_ptr() in self.known else " + RETURN[7:],
    )
    assert evaluate(ahead).verdict is not Verdict.correct


def test_parameters_that_are_not_there_are_missed(evaluate: Evaluate) -> None:
    bare = variant("self.norm = nn.LayerNorm(features)", "pass").replace(
        "self.norm(x)", "torch.nn.functional.layer_norm(x, (1024,))"
    )
    evaluation = evaluate(bare)
    assert evaluation.verdict is Verdict.wrong_output
    assert "lacks weights of the reference that it reads: norm.weight" in evaluation.reason


@pytest.mark.parametrize("output", ["x[:1]", "(x, x)", "x.double()", "()"])
def test_outputs_of_another_kind_once_it_is_timed_are_a_verdict(output: str, evaluate: Evaluate) -> None:
    late = (
        f"self.calls = getattr(self, 'calls', 0) + 1\n        if self.calls > 20: return {output}\n        "
    )
    evaluation = evaluate(variant(RETURN, late + RETURN))
    assert evaluation.correctness is not None
    assert evaluation.verdict is Verdict.wrong_output, evaluation.reason


def dies_when_run(session: TaskSession, victim: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    run = session.run

    def kill_first(worker: Worker, *arguments: Any, **options: Any) -> Block:
        if worker is victim and not victim.closed:
            os.kill(victim.init_pid, 9)
        return run(worker, *arguments, **options)

    monkeypatch.setattr(session, "run", kill_first)


def test_a_baseline_that_dies_is_not_the_candidates_fault(
    evaluator: Referee, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(HONEST)
    session = evaluator.sessions._session
    assert session is not None
    eager = session.baseline("eager")
    assert eager is not None
    dies_when_run(session, eager, monkeypatch)
    with pytest.raises(InfrastructureError, match="eager"):
        evaluate(HONEST)
    assert evaluate(HONEST).verdict is Verdict.correct


def test_a_compiled_baseline_that_dies_is_left_out(
    evaluator: Referee, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(HONEST)
    session = evaluator.sessions._session
    assert session is not None
    # Another eager worker stands for torch.compile's code, and dies when it is first called.
    session._baselines["compile"] = stand_in = session._start_baseline("eager")
    dies_when_run(session, stand_in, monkeypatch)
    evaluation = evaluator.evaluate(session.task, candidate_of(HONEST), Measurement(("eager", "compile")))
    assert evaluation.verdict is Verdict.correct
    assert evaluation.timing is not None and evaluation.speedup is not None
    assert evaluation.timing.compile_us is None and evaluation.speedup.compile is None
    assert "killed" in evaluation.timing.failed_baselines["compile"]


@pytest.mark.parametrize("who", ["oracle", "eager"])
def test_who_is_killed_between_two_evaluations_is_replaced(
    who: str, evaluator: Referee, evaluate: Evaluate
) -> None:
    evaluate(HONEST)
    session = evaluator.sessions._session
    assert session is not None
    worker = session.oracle._worker if who == "oracle" else session.baseline("eager")
    assert worker is not None
    os.kill(worker.init_pid, 9)
    while worker.alive:
        time.sleep(0.01)
    assert evaluate(HONEST).verdict is Verdict.correct


def test_broken_tasks_leave_nothing_behind(evaluator: Referee) -> None:
    broken = task_of(REFERENCE.replace("torch.randn(512, 1024)", "undefined"), "broken")
    evaluator.sessions.release()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(TaskError, match="undefined"):
            evaluator.evaluate(broken, candidate_of(HONEST))
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_reference_for_which_memory_is_short_is_to_be_made_smaller(
    evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = evaluator.sessions.open(task_of(REFERENCE)).oracle
    said = {"error_type": "RuntimeError", "error_text": "DefaultCPUAllocator: can't allocate memory"}
    monkeypatch.setattr(oracle._worker, "request", lambda *_: json.dumps({"answer": said}))
    with pytest.raises(TaskError, match="can't allocate memory") as caught:
        oracle.begin()
    assert "--set" in caught.value.fix


def test_evaluations_in_a_row_leave_nothing_behind(evaluator: Referee, evaluate: Evaluate) -> None:
    evaluate(HONEST)
    before = len(os.listdir("/proc/self/fd"))
    scratch = set(evaluator.sessions.pool._base.iterdir())
    for _ in range(3):
        evaluate("x = 1")
        evaluate(variant(RETURN, "raise ValueError"))
    deadline = time.monotonic() + 5  # the thread that reads a worker's last words closes their pipe
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert set(evaluator.sessions.pool._base.iterdir()) == scratch


SCALAR = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, y):
        return torch.nn.functional.mse_loss(x, y)
def get_inputs():
    return [torch.randn(512, 512), torch.randn(512, 512)]
def get_init_inputs():
    return []
"""
LOSS, VIEW = "torch.nn.functional.mse_loss(x, y)", "torch.stack([x, y] * 16, 1)[:, -1]"
OTHERS = {
    "scalar_output": (SCALAR, "torch.nn.functional.mse_loss(x, y)", "(x - y).square().mean()"),
    "complex_output": (
        SCALAR.replace("torch.nn.functional.mse_loss(x, y)", "torch.fft.rfft(x * y)"),
        "torch.fft.rfft(x * y)",
        "torch.fft.rfft(x.double() * y.double()).to(torch.complex64)",
    ),
    "expanded_input": (
        SCALAR.replace("[torch.randn(512, 512), torch", "[torch.randn(512, 1).expand(512, 512), torch"),
        "torch.nn.functional.mse_loss(x, y)",
        "(x - y).square().mean()",
    ),
    "a_view_of_far_larger_memory": (SCALAR.replace(LOSS, VIEW), VIEW, "y.clone()"),
    "another_such_view": (SCALAR.replace(LOSS, VIEW), VIEW, "torch.stack([y] * 32, 1)[:, 3]"),
    "nested_outputs": (
        SCALAR.replace("torch.nn.functional.mse_loss(x, y)", "(x + y, [x - y, (x * y,)])"),
        "x + y",
        "y + x",
    ),
    "an_empty_tensor": (
        SCALAR.replace("torch.nn.functional.mse_loss(x, y)", "(x + y, x[:0])"),
        "x + y",
        "y + x",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_outputs_of_every_kind_are_compared(case: str, evaluate: Evaluate) -> None:
    reference, old, new = OTHERS[case]
    candidate = reference.replace("Model(", "ModelNew(").replace(old, new)
    assert candidate != reference.replace("Model(", "ModelNew(")
    evaluation = evaluate(candidate, reference)
    assert evaluation.verdict is Verdict.correct, evaluation.reason
