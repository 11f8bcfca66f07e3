"""A policy as a coder: served by a real server, asked by a real run, and turned down where it cannot answer."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright import cli
from kernelwright.agent.llm.prompting import Situation, coder_messages
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Task, Work
from kernelwright.results.store.database import RunDatabase
from kernelwright.rl_training.serving import server
from tests.helpers.installed import require
from tests.helpers.results.run_factory import TARGET
from tests.helpers.rl_training.by_heart import TEMPLATE, save_policy, save_tokenizer
from tests.helpers.rl_training.recorded import kernel

require("transformers")
require("fastapi")

pytestmark = pytest.mark.builds

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(64, 1000)]

def get_init_inputs():
    return []
"""

# Right, and far from the roofline, so that a judge is asked.
SLOW = kernel().replace("    #pragma omp parallel for\n", "    for (int again = 0; again < 4; ++again)\n")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "relu.py"
    path.write_text(TASK)
    return path


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It has learnt to answer what the coder asks first with a kernel for the task."""
    folder = tmp_path_factory.mktemp("policy")
    work = Work(input_bytes=256_000, weight_bytes=0, output_bytes=256_000, flops=0)
    situation = Situation(Task(id="file:relu", level=1, source=TASK), TARGET, work)
    asked = coder_messages(situation, "cpp", None, None, None)
    save_policy(folder, [message.model_dump() for message in asked], f"```python\n{SLOW}```\n")
    return folder


@pytest.fixture
def served(policy: Path) -> Iterator[dict[str, str]]:
    """What the command says is to be set, while it serves; afterwards it is asked to stop."""
    words = [sys.executable, "-m", "kernelwright", "serve", "policy", str(policy), "--port", str(free_port())]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = [server.stdout.readline() for _ in range(3)]  # which waits until it answers
        assert said[2] == f"kernelwright run TASK --coder llm --model {policy}\n", server.communicate()[1]
        exported = (line.removeprefix("export ").strip().split("=", 1) for line in said[:2])
        yield dict(exported)
        server.send_signal(signal.SIGTERM)
        _, complaints = server.communicate(timeout=120)
    finally:
        server.kill()
    assert server.returncode == 0 and complaints.endswith("stopped\n"), complaints
    assert "equal prompts get equal replies" in complaints


@pytest.mark.slow
@pytest.mark.timeout(900)  # a whole run, beside other tests
def test_the_best_kernel_of_a_run_is_the_policys_own(
    served: dict[str, str], policy: Path, task: Path, tmp_path: Path, home: Path
) -> None:
    """The judge is the policy too, and says nothing that is advice: that is recorded, and the run goes on."""
    environment = {**os.environ, **served, "KERNELWRIGHT_HOME": str(home)}
    words = [sys.executable, "-m", "kernelwright", "run", str(task), "--coder", "llm", "--model", str(policy)]
    words += ["--rounds", "2", "--reply-tokens", "500", "--effort", "quick", "--baseline", "eager"]
    words += ["--seed", "none"]
    out = tmp_path / "out"
    done = subprocess.run(
        [*words, "--out", str(out), "--json"], env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["correct"] == 1
    own = [path for path in (out / "best").iterdir() if path.read_text().endswith(SLOW)]
    assert len(own) == 1  # beside the reference, where that is faster
    with RunDatabase.open(out, read_only=True) as database:
        calls = database.llm_calls()
        [first, *_] = database.attempts("file:relu")
    assert first.candidate.author == f"llm:{policy}" and first.candidate.source == SLOW
    assert {call.role for call in calls} == {"preflight", "coder", "judge"} and len(calls) == summary[
        "llm_calls"
    ]
    asked_first = next(call for call in calls if call.role == "coder")
    assert asked_first.response["text"] == f"```python\n{SLOW}```\n"  # type: ignore[call-overload, index]


def typed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: object) -> str:
    """What `serve policy` says that cannot serve."""
    monkeypatch.setattr(sys, "argv", ["kernelwright", "serve", "policy", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capfd.readouterr().err.strip()
    assert ended.value.code == 2 and said.startswith("error: ") and len(said.splitlines()) == 1, said
    return said


UNFIT = {
    "nothing": "does not exist",
    "no model": "holds no model: no config.json",
    "adapters of nobody knows what": "do not name their base model",
    "no tokenizer": "holds no model: no tokenizer",
    "no template": "has no chat template",
    "no generation prompt": "if add_generation_prompt",
    "no system messages": "its chat template cannot render a prompt (no system)",
}


@pytest.mark.parametrize("lack", UNFIT)
def test_what_cannot_answer_is_not_served(
    lack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "policy"
    if lack != "nothing":
        folder.mkdir()
    if lack == "adapters of nobody knows what":
        (folder / "adapter_config.json").write_text("{}")
    if lack not in ("nothing", "no model", "adapters of nobody knows what"):
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        (folder / "model.safetensors").touch()
    template = {
        "no template": None,
        "no generation prompt": TEMPLATE.partition("{% if add")[0],
        "no system messages": "{{ raise_exception('no system') }}",
    }
    if lack in template:
        save_tokenizer(folder, "text", template[lack])
    assert UNFIT[lack] in typed(monkeypatch, capfd, folder)


def test_adapters_are_served_as_they_were_trained(tmp_path: Path) -> None:
    """Merged for transformers, whose server takes none; beside their model for vLLM's."""
    pytest.importorskip("trl")
    import torch

    from kernelwright.rl_training.serving.policy import policy_in, whole
    from kernelwright.rl_training.trainers.policy import LoraSettings, load_policy
    from tests.helpers.rl_training import tiny_policy

    base, folder = tiny_policy.save(tmp_path / "base"), tmp_path / "adapters"
    trained = load_policy(str(base), LoraSettings(rank=9), "bfloat16")
    with torch.no_grad():
        for name, weights in trained.model.named_parameters():
            if "lora_B" in name:
                weights.fill_(1e-4)  # less than a weight's last bit in bf16
    trained.model.save_pretrained(folder)
    trained.tokenizer.save_pretrained(folder)
    adapters, tokens = policy_in(folder), torch.arange(9)[None]
    exact = load_policy(str(folder)).model(tokens).logits
    with whole(adapters) as merged:
        assert policy_in(merged.folder) == merged
        torch.testing.assert_close(load_policy(merged.name).model(tokens).logits, exact)
        assert not torch.equal(exact, load_policy(str(base)).model(tokens).logits)
    assert not merged.folder.exists()
    assert server._served(adapters) == [
        *(str(base), "--tokenizer", str(folder), "--enable-lora", "--max-lora-rank", "16"),
        *("--lora-modules", f"{folder}={folder}"),
    ]
    base.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match="no longer there"):
        policy_in(folder)


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What passes for a policy until it is loaded."""
    folder = tmp_path_factory.mktemp("fit")
    save_tokenizer(folder, "text")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "model.safetensors").touch()
    return folder


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(
    fit: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = typed(monkeypatch, capfd, fit, "--port", taken.getsockname()[1])
    assert "Address already in use" in said and "--port" in said


def test_a_server_that_is_not_installed_is_said_with_how_to_get_it(
    fit: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    lacking = {"vllm", "uvicorn"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in lacking else found(name, *more)
    )
    assert "needs vllm — pip install vllm" in typed(monkeypatch, capfd, fit, "--backend", "vllm")
    assert "needs uvicorn — pip install 'kernelwright[rl]'" in typed(monkeypatch, capfd, fit)


def test_a_server_that_ends_before_it_answers_is_an_error(
    fit: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(server._MODULES, "transformers", "sysconfig_that_is_not_there")
    monkeypatch.setattr(
        sys, "argv", ["kernelwright", "serve", "policy", str(fit), "--port", str(free_port())]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    complaint, said = capfd.readouterr().err.strip().splitlines()
    assert ended.value.code == 2 and "No module named sysconfig_that_is_not_there" in complaint
    assert said.startswith("error: the server ended before it answered, with status 1 — see its output above")
