"""The page of architectures is of those that were checked, and says how many these are."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.export import architectures
from kernelwright.kernelbench.errors import UsageError
from tests.helpers.results import run_factory

FINE = dict.fromkeys(("step", "autocast", "LoRA", "checkpointing", "generate", "DDP"), "ok")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(architectures, "_RUNS", tmp_path)
    machine = run_factory.TARGET.fingerprint.model_dump(mode="json")
    found: dict[str, dict[str, Any]] = {
        "t5": {"FSDP2": "loss is 1 from float64, stock 0", "left": {"02_gelu": "wrong_output: at [0]"}},
        "llama": {"FSDP2": "-", "left": {}},
        "bart": {"FSDP2": "ok", "left": {}},
    }
    for name, more in found.items():
        (tmp_path / name).mkdir()
        kernels = "kernel_01_norm, gelu, kernel_03_norm"
        about = {"kernels": kernels, "package": "", "machine": machine, "left": more.pop("left")}
        (tmp_path / name / "packaged.json").write_text(json.dumps(about))
        (tmp_path / name / "checks.json").write_text(json.dumps({**FINE, "calls": [5, 1], **more}))
    return tmp_path


def test_the_page_is_of_what_was_checked(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are in the order of the architectures; what is kept is not checked again."""
    script = runs / "architectures.py"
    script.write_text('ARCHITECTURES = ("llama", "mistral", "t5")\n')
    monkeypatch.setattr(architectures, "_SCRIPT", script)
    architectures.run("llama,t5")
    lines = script.with_suffix(".md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ")][1:]
    assert [row.split(" | ")[0] for row in rows[1:]] == ["| llama", "| t5"]
    assert rows[2] == "| t5 | norm, gelu | 5 of 6 | ok | ok | ok | ok | ok | ok | no |  |"  # none compiled
    assert lines[-2:] == [
        "- t5, FSDP2: loss is 1 from float64, stock 0",
        "- t5, 02_gelu: wrong_output: at [0]",
    ]
    assert "It has run for 2 of 3 architectures." in lines


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no architecture gpt5 — give some of llama, mistral"):
        architectures.run("t5,gpt5")
