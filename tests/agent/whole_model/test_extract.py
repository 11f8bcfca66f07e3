"""`kernelwright extract`: a model in, ranked tasks out; its code runs in a worker."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.agent.whole_model.extract import _words
from kernelwright.agent.whole_model.records import ModelExtract

MODELS = Path(__file__).with_name("models.py")


def extract(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", "extract", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_model_becomes_ranked_tasks(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS.read_text())
    done = extract("models.py:build", "--train", "--init", "layers=3", "--out", "parts", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = ModelExtract.model_validate_json((tmp_path / "parts" / "parts.json").read_text())
    assert found.trains and {part.name for part in found.parts} >= {"Norm", "gated"}
    assert [part.fusable_s for part in found.parts] == sorted(
        (p.fusable_s for p in found.parts), reverse=True
    )
    norm = next(part for part in found.parts if part.name == "Norm")
    assert norm.places == ("norms.0", "norms.1", "norms.2") and norm.kind == "models.Norm"
    assert norm.reads_a_sum and f"{norm.task} reads a sum that is made outside of it" in done.stdout
    table = [line for line in done.stdout.splitlines() if "reads a sum" not in line]
    assert max(map(len, table)) <= 80 and norm.task in done.stdout
    tasks = sorted(path.name for path in (tmp_path / "parts" / "tasks").iterdir())
    assert tasks == sorted(part.task for part in found.parts)
    compiled = subprocess.run(
        [sys.executable, "-m", "kernelwright", "compile", f"parts/tasks/{norm.task}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "Nothing is left to torch" in compiled.stdout
    again = extract("models.py:build", "--out", "parts", folder=tmp_path)
    assert again.returncode == 2 and "parts exists already" in again.stderr


@pytest.mark.slow
def test_a_model_of_transformers_is_extracted_with_its_functions(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sizes = "hidden_size=64 intermediate_size=128 num_hidden_layers=2 num_attention_heads=4 vocab_size=500"
    done = extract(
        "hf:LlamaForCausalLM", "--train", "--json", "--out", "parts",
        *(word for size in sizes.split() for word in ("--init", size)),
        "--input", "input_ids=8,64:int64<500", "--input", "labels=8,64:int64<500", folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {part["kind"].rpartition(".")[2]: part for part in json.loads(done.stdout)["parts"]}
    assert found["LlamaRMSNorm"]["calls"] == 5
    functions = [part for part in found.values() if not part["is_module"]]
    assert functions and all(":" in place for part in functions for place in part["places"])
    rope = (tmp_path / "parts" / "tasks" / found["apply_rotary_pos_emb"]["task"]).read_text()
    assert rope.endswith('without_gradient = ["cos", "sin"]\n')


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["softmax"], "softmax names no model — give FILE.py:NAME"),
        (["none.py:build"], "there is no file none.py"),
        (["torch.nn:Linear", "--input", "8,4.5"], "invalid --input 8,4.5"),
        (["torch.nn:Linear", "--input", "8,y"], "no size is given for y in --input"),
    ],
)
def test_what_is_no_model_is_said_before_anything_is_started(
    words: list[str], said: str, tmp_path: Path
) -> None:
    done = extract(*words, "--out", "parts", folder=tmp_path)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "parts").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("loss", "models.py:loss fails: TypeError"),
        ("Norm", "cannot be constructed"),
        ("nothing", "models.py has no nothing"),
    ],
)
def test_a_model_that_fails_is_said_in_a_line(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS.read_text())
    done = extract(f"models.py:{name}", "--out", "parts", folder=tmp_path)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "file"), [("LlamaRMSNorm", "llama_rms_norm"), ("apply_rotary", "apply_rotary"), ("T5LayerNorm", "t5_layer_norm")]
)  # fmt: skip
def test_a_class_s_name_is_a_file_s(name: str, file: str) -> None:
    assert _words(name) == file
