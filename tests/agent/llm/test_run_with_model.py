"""A run with a language model: real HTTP, kernels really compiled and timed, nothing that a model says ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernelwright import cli
from kernelwright.agent.llm.endpoint.fake_endpoint import ErrorResponse, FakeEndpoint, Reply
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import RecordedAttempt, TaskState

pytestmark = pytest.mark.timeout(900)  # whole runs, beside other tests

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x + torch.tanh(x) * torch.exp(-x * x)

def get_inputs():
    return [torch.randn(128, 1024)]

def get_init_inputs():
    return []
"""
PLAIN = '''import torch
from torch import nn
from kernelwright import jit

lib = jit.compile_cpp(r"""
#include <cmath>
using REAL = long double;
extern "C" void f(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) {
        const REAL v = x[i];
        y[i] = v / (1 + std::exp(-v)) + std::tanh(v) * std::exp(-v * v);
    }
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.f(x, y, x.numel())
        return y
'''
# Faster on a single CPU, too.
PARALLEL = PLAIN.replace("long double", "float").replace(
    "    for (long", "    #pragma omp parallel for\n    for (long"
)
WRONG = PLAIN.replace("std::tanh(v)", "v")
BROKEN = PLAIN.replace("lib.f(x, y", "lib.g(x, y")
UNCOMPILED = PLAIN.replace("std::tanh", "std::tangh")
CHEAT = PLAIN.replace("lib.f(x, y, x.numel())", "y = self.kept = getattr(self, 'kept', x)")
CORRECTION = {"critical_issue": "tanh is missing", "why": "x is not tanh(x)", "minimal_fix": "use std::tanh"}


def optimization(metric: str, value: float) -> str:
    evidence = [{"metric": metric, "value": value}]
    return json.dumps(
        {"bottleneck": "one thread", "technique": "parallelize", "method": "parallelize", "plan": "OpenMP over elements",
         "evidence": evidence, "predicted_gain": 1.8}
    )  # fmt: skip


def shown_metric(body: dict[str, Any], name: str) -> float:
    """As the judge was shown it."""
    lines = body["messages"][1]["content"].splitlines()
    line = next(line for line in lines if line.startswith(f"- {name} = "))
    return float(line.split()[3])


def is_coder(body: dict[str, Any]) -> bool:
    return "`ModelNew`, which" in body["messages"][0]["content"]


def is_preflight(body: dict[str, Any]) -> bool:
    return '{"ready": true}' in body["messages"][-1]["content"]


def asked(endpoint: FakeEndpoint) -> list[dict[str, Any]]:
    """All requests but those of preflights."""
    return [body for body in endpoint.requests if not is_preflight(body)]


def coding(endpoint: FakeEndpoint, *replies: str | ErrorResponse | Reply) -> None:
    """The coder says one reply after the other; the judge what it should."""
    said = 0

    def script(body: dict[str, Any], number: int) -> Reply | ErrorResponse:
        nonlocal said
        if is_preflight(body):
            return Reply('{"ready": true}')
        if is_coder(body):
            reply = replies[min(said, len(replies) - 1)]
            said += 1
            return Reply(f"Here:\n```python\n{reply}```\n") if isinstance(reply, str) else reply
        if "critical_issue" in body["messages"][0]["content"]:
            return Reply(json.dumps(CORRECTION))
        if len(body["messages"]) == 2:  # what it says at first it has made up
            return Reply(optimization("l2_hit_rate", 0.1))
        return Reply(optimization("bandwidth_share", shown_metric(body, "bandwidth_share")))

    endpoint.script = script


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return path


def command(home: Path, endpoint: FakeEndpoint, *words: object) -> tuple[list[str], dict[str, str]]:
    environment = {**os.environ, "KERNELWRIGHT_HOME": str(home), "OPENAI_BASE_URL": endpoint.base_url}
    environment.pop("OPENAI_API_KEY", None)
    return [sys.executable, "-m", "kernelwright", "run", *map(str, words)], environment


def run(home: Path, endpoint: FakeEndpoint, *words: object) -> subprocess.CompletedProcess[str]:
    arguments, environment = command(home, endpoint, *words)
    return subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=580)


ASKED = ("--coder", "llm", "--model", "gpt-4.1", "--effort", "quick", "--baseline", "eager")
MODEL = (*ASKED, "--seed", "none", "--repairs", 0)


def low(attempt: RecordedAttempt) -> float:
    speedup = attempt.evaluation.speedup
    return speedup.eager.low if speedup is not None and speedup.eager is not None else 0.0


def attempts(out: Path) -> list[RecordedAttempt]:
    with RunDatabase.open(out, read_only=True) as database:
        [task] = database.tasks()
        return database.attempts(task.task.id)


@pytest.mark.slow
def test_a_kernel_is_mended_and_made_faster_by_a_judge_that_is_held_to_the_metrics(
    endpoint: FakeEndpoint, task: Path, tmp_path: Path, home: Path
) -> None:
    """In a run that is killed in the middle, and goes on without paying for an answer twice."""
    coding(endpoint, WRONG, PLAIN, PARALLEL)
    out = tmp_path / "out"
    words, environment = command(home, endpoint, task, *MODEL, "--rounds", 3, "--out", out)
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while sum(map(is_coder, asked(endpoint))) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(1.0)  # its answer is there, and is being evaluated
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = run(home, endpoint, "--resume", out, "--max-usd", 5, "--json")
    assert done.returncode == 0, done.stderr
    with RunDatabase.open(out, read_only=True) as database:
        budget = database.settings["budget"]
    assert isinstance(budget, dict) and budget["max_usd"] == 5  # from now on
    assert len(asked(endpoint)) == 6
    summary = json.loads(done.stdout)
    tried = attempts(out)
    assert [str(a.evaluation.verdict) for a in tried] == ["wrong_output", "correct", "correct", "correct"]
    assert tried[-1].confirms and "omp parallel" in tried[-1].candidate.source
    assert (
        summary["llm_calls"] == len(endpoint.requests) == 8 and summary["correct"] == 1
    )  # and two preflights
    assert summary["usd"] == pytest.approx(8 * (100 * 2.0 + 50 * 8.0) / 1e6)
    assert tried[1].advice is not None and tried[1].advice.bottleneck == "tanh is missing"
    assert tried[1].candidate.parents == (tried[0].candidate.sha256,)
    assert tried[2].advice is not None and tried[2].advice.predicted_gain == 1.8
    assert set(tried[2].advice.evidence) == {"bandwidth_share"}
    [told] = [body for body in asked(endpoint) if len(body["messages"]) > 2]
    assert "unknown metric 'l2_hit_rate'" in told["messages"][-1]["content"]
    assert tried[2].advice.about == tried[1].candidate.sha256
    last = [body for body in endpoint.requests if is_coder(body)][-1]["messages"][1]["content"]
    assert "parallelize" in last and "std::tanh" in last and "times as fast as eager" in last
    page = (out / "report.html").read_text()
    assert "Predicted and measured gains" in page and "1.5 to 2" in page and "1.80×" in page
    assert "The best kernel's line" in page and page.index("wrong output") < page.index(
        "round 2, parallelize"
    )

    replayed = run(home, endpoint, "--replay", out, "--out", tmp_path / "again", "--json")
    assert replayed.returncode == 0 and "The same decisions" in replayed.stderr, replayed.stderr
    assert len(asked(endpoint)) == 6 and json.loads(replayed.stdout)["llm_calls"] == 0
    assert [a.evaluation for a in attempts(tmp_path / "again")] == [a.evaluation for a in tried]


@pytest.mark.slow
def test_a_kernel_has_to_be_right_at_sizes_that_the_model_does_not_know(
    endpoint: FakeEndpoint, tmp_path: Path, home: Path
) -> None:
    """The run is killed after its first round, and resumed with the same sizes."""
    workload = """rows = 128
workload = [{"rows": 64, "weight": 9}, {"rows": 1237, "hidden": True}]
"""
    task = tmp_path / "task.py"
    task.write_text(TASK.replace("randn(128", "randn(rows").replace("\nclass", f"{workload}\nclass"))
    coding(endpoint, PARALLEL.replace("x.numel()", "min(x.numel(), 64 * 1024)"), PARALLEL)
    out = tmp_path / "out"
    words, environment = command(home, endpoint, task, *MODEL, "--rounds", 2, "--out", out)
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while sum(map(is_coder, asked(endpoint))) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = run(home, endpoint, "--resume", out, "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["tasks"]
    assert row["verdict"] == "correct" and [each["size"]["weight"] for each in row["sizes"]] == [9, 1]
    wrong, right, confirmed = attempts(out)
    assert str(wrong.evaluation.verdict) == "wrong_output" and len(wrong.evaluation.sizes) == 2
    elements = str(1237 * 1024)
    assert elements in wrong.evaluation.sizes[-1].reason and elements not in wrong.evaluation.reason
    assert confirmed.confirms and len(confirmed.evaluation.sizes) == len(right.evaluation.sizes) == 2
    prompts = json.dumps(endpoint.requests)
    assert "rows=64: 9" in prompts and "wrong output at a hidden size" in prompts and "1237" not in prompts
    assert elements not in prompts


@pytest.mark.slow
def test_whatever_the_model_does_the_run_goes_on(
    endpoint: FakeEndpoint, task: Path, tmp_path: Path, home: Path
) -> None:
    says_nothing = Reply("", pieces=1)
    coding(
        endpoint,
        says_nothing, says_nothing,  # round 0: asked twice
        UNCOMPILED,
        BROKEN,
        Reply("x" * 200_000), Reply("Ελληνικά 🙂 no code"),
        CHEAT,
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * x.sigmoid()\n", PLAIN,
        PLAIN, PLAIN,  # the same again, twice
    )  # fmt: skip
    out = tmp_path / "out"
    done = run(home, endpoint, task, *MODEL, "--rounds", 7, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    tried = [a for a in attempts(out) if not a.confirms]
    verdicts = [str(a.evaluation.verdict) for a in tried]
    assert verdicts[:4] == ["build_error", "build_error", "runtime_error", "build_error"]
    assert verdicts[4] in ("wrong_output", "cheating") and verdicts[5] == "correct"
    assert verdicts[6] == "build_error" and "repeats the file of round 5" in tried[6].evaluation.reason
    assert tried[0].evaluation.reason == "the reply is empty"
    coder = [body["messages"] for body in asked(endpoint) if is_coder(body)]
    assert any("no kernels of its own" in messages[-1]["content"] for messages in coder)
    assert json.loads(done.stdout)["correct"] == 1


@pytest.mark.slow
def test_a_run_whose_credit_is_exhausted_says_so_and_how_to_go_on(
    endpoint: FakeEndpoint, task: Path, tmp_path: Path, home: Path
) -> None:
    exhausted = ErrorResponse(402, "Insufficient credits")
    coding(endpoint, exhausted)
    others = [tmp_path / f"{number}.py" for number in range(3)]
    for number, path in enumerate(others):
        path.write_text(TASK.replace("128", str(128 + number)))
    out = tmp_path / "out"
    done = run(home, endpoint, *others, *MODEL, "--rounds", 1, "--out", out)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    *_, how, error = done.stderr.strip().splitlines()
    assert f"--resume {out}" in how and "Insufficient credits" in error, done.stderr
    with RunDatabase.open(out, read_only=True) as database:
        assert {entry.state for entry in database.tasks()} == {TaskState.pending}


@pytest.mark.slow
def test_kernels_of_the_builtin_coder_and_of_a_model_compete(
    endpoint: FakeEndpoint, task: Path, tmp_path: Path, home: Path
) -> None:
    coding(endpoint, PLAIN, PARALLEL)
    out = tmp_path / "out"
    words = ("--search", "evolve", "--islands", 2, "--rounds", 9, "--max-evaluations", 3)
    done = run(home, endpoint, task, *MODEL, *words, "--out", out)
    assert done.returncode == 0, done.stderr
    tried = attempts(out)
    assert [a.candidate.author for a in tried[:2]] == ["builtin", "llm:gpt-4.1"]
    with RunDatabase.open(out, read_only=True) as database:
        assert sum(database.evaluations().values()) == 3
    assert tried[-1].confirms  # the last one of three was kept for the winner
    assert "3 evaluations are spent" in (out / "report.html").read_text()
    best = tried[-1].candidate.sha256
    assert best == max(tried[:-1], key=lambda a: low(a)).candidate.sha256


CANNOT = {
    "no_model": (("--coder", "llm"), "--model"),
    "no_coder": (("--model", "m"), "--coder llm"),
    "another_judge": (("--coder", "llm", "--judge", "rules", "--model", "m"), "--judge llm"),
    "no_judge_of_schedules": (("--judge", "none"), "--judge llm"),
    "no_such_seed": (("--coder", "llm", "--model", "m", "--seed", "bulitin"), "give builtin, none, or a .py file"),
    "no_seed": (("--coder", "llm", "--model", "m", "--seed", __file__), "defines no class ModelNew"),
    "cuda_on_a_cpu": (("--coder", "llm", "--model", "m", "--language", "cuda"), "cpp, triton"),
    "no_price": (("--coder", "llm", "--model", "nobody-knows", "--max-usd", "1"), "--prices"),
    "a_price_of_one_number": (("--coder", "llm", "--model", "m", "--price", "2"), "such as 2/8"),
    "a_body_that_is_none": (("--coder", "llm", "--model", "m", "--extra-body", "top_p=1"), "not a JSON object"),
    "nobody_there": (("--coder", "llm", "--model", "m", "--retry-limit", "0.2"), "http://127.0.0.1:1/v1 cannot be used"),
    "too_hot": (("--coder", "llm", "--model", "m", "--temperature", "7"), "temperature"),
    "one_evaluation": (("--max-evaluations", "1"), "use at least 2"),
    "no_time": (("--max-minutes-per-task", "0"), "use more than 0"),
    "two_languages": (
        ("--coder", "llm", "--model", "m", "--language", "cpp", "--language", "triton"), "--search evolve"
    ),
    "untimed_evolution": (
        ("--coder", "llm", "--model", "m", "--search", "evolve", "--rounds", "9", "--language", "triton"), "without a GPU"
    ),
    "builtin_beam": (("--search", "beam"), "with --coder builtin"),
    "resumed_otherwise": (("--resume", "somewhere"), "takes TASKS from the run"),
    "a_run_to_learn_from": (("--learn-from", "/nowhere"), "/nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_work_is_said_at_once(
    case: str,
    task: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, said = CANNOT[case]
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    out = () if case == "resumed_otherwise" else ("--out", str(tmp_path / "x"))
    monkeypatch.setattr(sys, "argv", ["kernelwright", "run", str(task), *words, *out])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    stderr = capsys.readouterr().err
    assert ended.value.code == 2 and said in stderr, stderr
    assert len(stderr.strip().splitlines()) == 1, stderr
    assert not (tmp_path / "x").exists()
