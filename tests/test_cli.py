"""The command line is a contract: its options are frozen here, and its errors are one line with the fix."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kernelwright import cli
from kernelwright.kernelbench.records import Evaluation
from kernelwright.profiling.ladder import RUNGS
from kernelwright.reference import reference

REFERENCE = """
import torch
from torch import nn

rows = 256
columns = 512

class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x + 1.0

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""

SURFACE = {
    "demo": {"--out"},
    "doctor": {"--target", "--measure", "--roofline", "--model", "--json"},
    "tasks": {"--suite", "--audit", "--mutations", "--memory", "--set", "--kernelbench-dir", "--json"},
    "evaluate": {
        "task", "candidate", "--target", "--set", "--size", "--precision", "--baseline", "--compile-limit", "--require-own-kernels",
        "--hot", "--server", "--effort", "--sanitize", "--check-first", "--kernelbench-dir", "--json", "--input", "--init"
    },
    "profile": {"task", "candidate", "--target", "--input", "--init", "--set", "--precision", "--simulate", "--roofline", "--kernelbench-dir", "--json"},
    "redteam": {"names", "--target", "--hot", "--server", "--json"},
    "run": {
        "tasks", "--input", "--init", "--suite", "--coder", "--command", "--attempts", "--attempt-minutes", "--judge", "--model", "--judge-model", "--language", "--temperature",
        "--judge-temperature", "--reasoning-effort", "--judge-reasoning-effort", "--reply-tokens", "--seed", "--repairs", "--parts",
        "--max-usd", "--max-tokens", "--max-usd-per-task", "--max-tokens-per-task", "--price", "--prices", "--requests-a-minute",
        "--extra-body", "--service-tier", "--silence-limit", "--call-limit", "--retry-limit",
        "--tokens-a-minute", "--rounds", "--target-speedup", "--target-score", "--patience", "--all-tasks", "--search", "--hold", "--refine-from",
        "--beam-width", "--beam-advices", "--islands", "--turns", "--context-tokens", "--rank-by", "--memory", "--learn-from", "--target", "--set", "--size", "--precision",
        "--baseline", "--compile-limit", "--require-own-kernels", "--effort", "--check-first", "--profilers", "--evaluator", "--evaluator-token", "--cluster", "--max-minutes", "--max-minutes-per-task",
        "--max-evaluations", "--max-evaluations-per-task", "--workers", "--tasks-at-once", "--tracking", "--out", "--resume", "--replay", "--dry-run", "--database", "--kernelbench-dir", "--json", "--config",
    },
    "extract": {"named", "--out", "--input", "--init", "--size", "--train", "--most-calls", "--json", "--config"},
    "compile": {
        "task", "--language", "--schedule", "--dump", "--free", "--out", "--input", "--init", "--set", "--precision",
        "--kernelbench-dir",
    },
    "mcp": {
        "tasks", "--input", "--init", "--suite", "--set", "--size", "--precision", "--kernelbench-dir", "--seed",
        "--max-minutes", "--max-minutes-per-task", "--max-evaluations", "--max-evaluations-per-task", "--target", "--baseline", "--compile-limit",
        "--require-own-kernels", "--effort", "--check-first", "--profilers", "--evaluator", "--evaluator-token", "--cluster", "--transport", "--host", "--port",
        "--token-file", "--out", "--resume", "--config",
    },
    "workspace": {
        "task", "folder", "--seed", "--out", "--target", "--input", "--init", "--set", "--size", "--precision",
        "--baseline", "--effort", "--max-evaluations", "--max-minutes", "--kernelbench-dir",
    },
    "check": {"file", "--idea", "--json"},
    "measure": {"file", "--idea", "--profile", "--json"},
    "history": {"--json"},
    "submit": {"file", "--idea", "--json"},
    "audit": {
        "path", "--kernelbench-dir", "--limit", "--draw", "--target", "--baseline", "--compile-limit", "--effort", "--evaluator", "--evaluator-token", "--cluster", "--out", "--resume", "--config",
    },
    "report": {"run", "task", "--round", "--format", "--output"},
    "metrics": {"runs", "--keep", "--output", "--json"},
    "export": {
        "run", "task", "--out", "--all", "--layer", "--function", "--rename", "--backward", "--train", "--name", "--format", "--measure", "--inside", "--where-faster",
        "--licence", "--set", "--kernelbench-dir", "--json", "--config",
    },
    "gradient": {"task", "--out", "--forward", "--saved", "--input", "--init", "--set", "--precision", "--kernelbench-dir"},
    "serve evaluator": {
        "--host", "--port", "--token-file", "--tasks", "--kernelbench-dir", "--target", "--effort", "--compile-limit",
        "--require-own-kernels", "--check-first", "--workers", "--queue", "--patience", "--database", "--config",
    },
    "serve policy": {"model", "options", "--host", "--port", "--backend"},
    "serve scripted": {"tasks", "--port", "--latency", "--kernelbench-dir"},
    "train curate": {"runs", "--out", "--k", "--evaluation-list", "--held-out-share", "--held-out-by", "--seed", "--compare", "--kernelbench-dir", "--json"},
    "train check": {"--data", "--reward", "--most", "--target", "--evaluator", "--evaluator-token", "--cluster", "--json", "--config"},
    "train sft": {
        "--model", "--data", "--out", "--steps", "--learning-rate", "--batch-size", "--micro-batch", "--max-length",
        "--reasoning", "--min-speedup", "--seed", "--save-every", "--lora-rank", "--precision", "--optimizer", "--deepspeed", "--gradient-checkpointing",
        "--tracking", "--cpu", "--json", "--config",
    },
    "train rl": {
        "--model", "--data", "--out", "--estimator", "--loss", "--reward", "--smooth", "--turns", "--exemplars",
        "--steps", "--learning-rate", "--batch-size", "--group", "--micro-batch", "--temperature", "--top-p", "--max-completion",
        "--k", "--mask-truncated", "--evaluate-every", "--evaluate-samples", "--kl", "--entropy", "--clip-low", "--clip-high", "--updates-per-batch", "--redraws", "--generate-at-once", "--vllm", "--vllm-memory", "--vllm-tensor-parallel", "--vllm-max-length", "--vllm-sleep", "--vllm-url", "--restores", "--target", "--evaluator", "--evaluator-token", "--cluster", "--seed", "--save-every", "--lora-rank", "--precision",
        "--optimizer", "--deepspeed", "--gradient-checkpointing", "--tracking", "--cpu", "--json", "--config",
    },
    "train offline": {
        "--model", "--data", "--out", "--method", "--reward", "--steps", "--learning-rate", "--batch-size",
        "--max-length", "--save-every", "--seed", "--lora-rank", "--precision", "--tracking", "--cpu", "--json", "--config",
    },
    "train demo": {"--out", "--space", "--seeds", "--short", "--json", "--config"},
    "train evaluate": {
        "--model", "--base", "--cpu", "--data", "--split", "--held-out-share", "--target", "--evaluator", "--evaluator-token", "--cluster",
        "--samples", "--temperature", "--top-p", "--max-completion", "--at-once", "--seed", "--out", "--json", "--config",
    },
    "train push": {"folder", "repository", "--public", "--message", "--json", "--config"},
    "train environment": {
        "sources", "--held-out-share", "--seed", "--server", "--reward", "--effort", "--turns", "--out", "--json", "--config",
    },
    "train verl": {
        "sources", "--out", "--model", "--algorithm", "--reward", "--turns", "--tasks-per-step", "--samples", "--steps",
        "--fully-async", "--partial-rollouts", "--staleness", "--engine", "--nodes", "--gpus", "--rollout-nodes",
        "--prompt-tokens", "--response-tokens", "--held-out-share", "--seed", "--json", "--config",
    },
}  # fmt: skip


def test_the_option_surface_is_frozen() -> None:
    found = {}
    for name, command in commands(typer.main.get_command(cli.app)):
        found[name] = {
            next((o for o in p.opts if o.startswith("--")), p.name)
            for p in command.params
            if p.name != "help"
        }
    assert found == SURFACE


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """All commands, those of groups with the group's name before them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


@pytest.mark.parametrize("words", [[], ["train"], ["serve"]])
def test_without_a_command_it_prints_help(words: list[str], home: Path) -> None:
    done = kernelwright_command(home, *words)
    assert (done.returncode, done.stderr) == (0, "") and "Commands" in done.stdout


def test_it_says_its_version(home: Path) -> None:
    assert kernelwright_command(home, "--version").stdout == "kernelwright 0.1.0\n"


def loaded_after(script: str) -> set[str]:
    """Names of the modules that a Python process has loaded when a script has run."""
    program = f"import sys, kernelwright\n{script}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_package_imports_nothing_heavy() -> None:
    assert loaded_after("").isdisjoint(
        {"torch", "numpy", "pandas", "sqlalchemy", "pydantic", "jinja2", "typer"}
    )


def test_help_imports_no_command() -> None:
    loaded = loaded_after(
        "sys.argv = ['kernelwright', '--help']\n"
        "from kernelwright import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass"
    )
    assert loaded.isdisjoint({"torch", "numpy", "pandas", "sqlalchemy", "pydantic", "jinja2"})
    assert [name for name in loaded if re.fullmatch(r"kernelwright\..*\bcli", name)] == ["kernelwright.cli"]


def test_no_command_imports_torch_before_it_runs() -> None:
    """Importing torch takes longer than all else, and the referee process does without it."""
    script = """
import typer.main
from kernelwright import cli

def load(command):
    for sub in getattr(command, "commands", {}).values():
        load(sub)
    command.params

load(typer.main.get_command(cli.app))
"""
    loaded = loaded_after(script)
    assert "kernelwright.agent.cli" in loaded and "torch" not in loaded


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        (["kernelwright"], "re", {"redteam", "report"}),
        (["kernelwright", "train"], "s", {"sft"}),
        (["kernelwright", "run"], "--check", {"--check-first"}),
    ],
)
def test_the_shell_completes_commands_and_options(
    words: list[str], incomplete: str, expected: set[str]
) -> None:
    line = " ".join([*words, incomplete])
    asked = {"_KERNELWRIGHT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    program = "import sys; sys.argv = ['kernelwright']; from kernelwright.cli import main; main()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    assert set(done.stdout.split()) == expected, done.stderr


def kernelwright_command(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", *map(str, arguments)]
    environment = {**os.environ, "KERNELWRIGHT_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "swish.py"
    path.write_text(REFERENCE)
    return path


@pytest.mark.builds
def test_evaluate_prints_one_json_object_and_nothing_else(task: Path, tmp_path: Path, home: Path) -> None:
    candidate = tmp_path / "candidate.py"
    candidate.write_text(REFERENCE.replace("class Model(", "class ModelNew("))
    done = kernelwright_command(
        home, "evaluate", task, candidate, "--baseline", "eager", "--effort", "quick", "--json"
    )
    assert done.returncode == 0, done.stderr
    evaluation = json.loads(done.stdout)
    assert evaluation["schema"] == 1
    assert evaluation["verdict"] == "correct"
    assert {"task", "candidate", "target", "reason", "correctness", "timing", "speedup", "own_kernel_share",
            "stages", "environment"} <= evaluation.keys()  # fmt: skip
    assert set(evaluation["speedup"]["eager"]) == {"median", "low", "high"}
    assert {"inputs_tried", "error", "reference_error", "worst_input"} <= evaluation["correctness"].keys()
    timing, score = evaluation["timing"], evaluation["speed_of_light_score"]
    least, took = timing["floor_us"], timing["candidate_us"]["median"]
    eager = took * evaluation["speedup"]["eager"]["median"]
    if min(took, eager) > least:  # the data may lie in the cache
        assert score == pytest.approx((eager - least) / (eager + took - 2 * least))
    assert Evaluation.model_validate_json(done.stdout).timing is not None


@pytest.mark.builds
def test_a_verdict_that_is_not_correct_exits_with_1(task: Path, tmp_path: Path, home: Path) -> None:
    candidate = tmp_path / "candidate.py"
    candidate.write_text(REFERENCE.replace("class Model(", "class ModelNew(").replace("+ 1.0", "+ 1.1"))
    done = kernelwright_command(home, "evaluate", task, candidate, "--baseline", "eager")
    assert done.returncode == 1
    assert "wrong_output" in done.stdout


BROKEN_TASKS = {
    "no_model": (REFERENCE.replace("class Model(", "class Other("), "Model"),
    "inputs_raise": (
        REFERENCE.replace("return [torch.randn(rows, columns)]", "raise ValueError('no data')"),
        "no data",
    ),
    "no_get_inputs": (REFERENCE.replace("get_inputs", "inputs"), "get_inputs"),
    "dies": (
        REFERENCE.replace("return [torch.randn(rows, columns)]", "__import__('os')._exit(3)"),
        "did not survive",
    ),
}
# A model is given to `optimize` in place of tasks; the same command goes on with its folder.
SURFACE["optimize"] = {"named", "--train", "--most-calls", "--most-parts"} | SURFACE["run"] - {
    "tasks", "--suite", "--set", "--precision", "--kernelbench-dir", "--resume", "--replay", "--dry-run", "--database"
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.builds
@pytest.mark.parametrize("case", BROKEN_TASKS)
def test_a_broken_task_is_one_line_with_its_mend(case: str, tmp_path: Path, home: Path) -> None:
    source, words = BROKEN_TASKS[case]
    path = tmp_path / "broken.py"
    path.write_text(source)
    done = kernelwright_command(home, "evaluate", path, path, "--json")
    assert done.returncode == 2
    assert_one_line(done.stdout, done.stderr, words)


def assert_one_line(stdout: str, stderr: str, words: str) -> None:
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: ") and " — " in lines[0]
    assert words in lines[0]
    assert stdout == ""


USAGE = {
    "near_names_for_an_unknown_task": (["run", "builtin:level1/softmaxx"], "builtin:level1/softmax"),
    "unknown_constant": (["run", "builtin:level1/softmax", "--set", "nonsense=3"], "nonsense"),
    "unknown_option": (["run", "--frobnicate"], "--frobnicate"),
    "unknown_coder": (["run", "builtin:level1/softmax", "--coder", "llm"], "--coder llm"),
    "no_task": (["run"], "no task"),
    "no_checkout": (["run", "kernelbench:2/40"], "--kernelbench-dir"),
    "a_folder_that_is_no_run": (["report", "/"], "holds no run"),
    "no_archive": (["audit"], "give a run folder of KernelBench"),
    "an_archive_that_is_not_there": (["audit", "/nonexistent"], "/nonexistent does not exist"),
    "a_folder_that_is_no_archive": (["audit", "/proc/self/fdinfo"], "level_L_problem_P_sample_S_kernel.py"),
    "an_archive_that_is_no_json": (["audit", __file__], "neither JSON nor a JSON object a line"),
    "no_audit_to_go_on_with": (["audit", "--resume", "/"], "/ holds no run"),
    "an_audit_with_new_options": (
        ["audit", "--resume", "/", "--target", "sm_90"],
        "--resume takes --target from the audit",
    ),
    "an_audit_on_an_unknown_target": (["audit", "/nonexistent", "--target", "tpu"], "tpu"),
    "unwritable_folder": (["run", "builtin:level1/softmax", "--out", "/proc/nowhere"], "/proc/nowhere"),
    "missing_candidate": (["evaluate", "builtin:level1/softmax", "/nonexistent.py"], "No such file"),
    "unknown_target": (["evaluate", "builtin:level1/softmax", __file__, "--target", "tpu"], "tpu"),
    "unknown_chip": (
        ["profile", "builtin:level1/softmax", __file__, "--target", "sm_61"],
        "unknown chip 'sm_61' — use one of sm_70",
    ),
    "unknown_baseline": (
        ["run", "builtin:level1/softmax", "--baseline", "numpy"],
        "eager, compile, max-autotune",
    ),
    "no_policy": (["run", "builtin:level1/softmax", "--rank-by", "/nowhere"], "holds no policy of schedules"),
    "no_time_to_compile": (["run", "builtin:level1/softmax", "--compile-limit", "0"], "above 0"),
    "a_share_beyond_one": (["run", "builtin:level1/softmax", "--require-own-kernels", "50"], "from 0 to 1"),
    "unknown_effort": (["run", "builtin:level1/softmax", "--effort", "heroic"], "quick, full, thorough"),
    "no_workers": (["run", "builtin:level1/softmax", "--workers", "0"], "enough for 1 to"),
    "no_rate": (["evaluate", "builtin:level1/softmax", __file__, "--server", "0"], "calls a second"),
    "a_picture_of_another_kind": (["doctor", "--roofline", "roofline.png"], "roofline.svg"),
    "a_picture_in_no_folder": (["doctor", "--roofline", "nowhere/roofline.svg"], "does not exist"),
    "unknown_target_of_doctor": (["doctor", "--target", "tpu"], "--target cpu"),
    "unknown_cheat": (["redteam", "bribery"], "clock, not_computing"),
    "a_gpu_that_is_not_there": (
        ["evaluate", "builtin:level1/softmax", __file__, "--target", "cuda:99"],
        "no target cuda:99",
    ),
    "graphs_of_a_cpu": (
        ["evaluate", "builtin:level1/softmax", __file__, "--baseline", "cuda-graphs"],
        "--target cuda:0",
    ),
    "no_language": (["compile", "builtin:level1/softmax", "--language", "fortran"], "cpp, triton, cuda"),
    "no_knob": (["compile", "builtin:level1/softmax", "--schedule", "k0.colour=red"], "k0.block"),
    "no_value_of_a_knob": (["compile", "builtin:level1/softmax", "--schedule", "k0.block=7"], "64, 128"),
    "no_free_constant": (["compile", "builtin:level1/softmax", "--free", "rows"], "batch_size"),
    "no_such_sanitizer": (
        ["evaluate", "builtin:level1/softmax", __file__, "--target", "cuda:0", "--sanitize", "soap"],
        "memcheck, racecheck",
    ),
    "checked_first_before_no_gpu": (
        ["run", "builtin:level1/softmax", "--target", "cpu", "--check-first"],
        "without a GPU --target cuda makes the same check",
    ),
    "a_run_that_is_not_there": (
        ["train", "curate", "/nonexistent", "--out", "/proc/nowhere"],
        "holds no run",
    ),
    "no_winners": (["train", "curate", "/nonexistent", "--out", "/proc/nowhere", "--k", "0"], "1 or more"),
    "all_held_out": (
        ["train", "curate", "/nonexistent", "--out", "/proc/nowhere", "--held-out-share", "1"],
        "from 0 to below 1",
    ),
    "no_evaluation_list": (
        ["train", "curate", "/nonexistent", "--out", "/proc/nowhere", "--evaluation-list", "tasks.txt"],
        "the list of tasks tasks.txt does not exist",
    ),
    "sanitized_on_a_cpu": (
        ["evaluate", "builtin:level1/softmax", __file__, "--sanitize", "memcheck"],
        "--target cuda:0",
    ),
}


@pytest.mark.parametrize("case", USAGE)
def test_bad_usage_is_one_line_with_its_mend(
    case: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KERNELBENCH_DIR", raising=False)
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(home))
    arguments, words = USAGE[case]
    monkeypatch.setattr(sys, "argv", ["kernelwright", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert_one_line(*capsys.readouterr(), words)


def test_a_missing_compiler_is_one_line_with_its_fix(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    done = kernelwright_command(home, "run", "builtin:level1/softmax")
    assert done.returncode == 2
    assert_one_line(done.stdout, done.stderr, "install g++")


@pytest.mark.slow
@pytest.mark.builds
def test_doctor_says_what_is_on_and_how_to_get_the_rest(home: Path) -> None:
    done = kernelwright_command(home, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [item["name"] for item in found["items"]]
    assert {"language cpp", "pid_namespace", "distinct_uid", "rlimits", "copy bandwidth"} <= set(names)
    assert all(item["why"] for item in found["items"])
    assert [name for name in names if name.startswith("profiler ")] == [
        f"profiler {name}" for name in ("roofline", *(rung.name for rung in RUNGS))
    ]  # on or off, each with its reason
    assert found["target"]["ceilings"]["copy_bytes_s"] > 1e9
    assert found["survey"] is None
    assert next(item for item in found["items"] if item["name"] == "ceilings")["why"].startswith(
        "kernelwright doctor --measure"
    )
    again = kernelwright_command(home, "doctor")  # which knows the ceilings now, and needs no worker
    assert again.returncode == 0 and again.stderr == ""


def test_tasks_lists_the_suite_with_its_constants(home: Path) -> None:
    done = kernelwright_command(home, "tasks", "--suite", "builtin:level1", "--json")
    listed = json.loads(done.stdout)["tasks"]
    assert len(listed) >= 40
    softmax = next(task for task in listed if task["id"] == "builtin:level1/softmax")
    assert softmax["constants"]


@pytest.mark.slow
def test_tasks_are_fitted_to_a_gpu_s_memory_without_one(task: Path, home: Path) -> None:
    done = kernelwright_command(home, "tasks", "--suite", str(task), "--memory", "80", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (fit,) = answer["tasks"]
    assert 79.0 < answer["memory_bytes"] / (1 << 30) < 79.2
    assert fit["fits"] and not fit["error"] and fit["calls"] > 1
    assert sum(fit["parts"].values()) <= answer["memory_bytes"]
    wrong = kernelwright_command(home, "tasks", "--memory", "80", "--audit")
    assert wrong.returncode == 2 and "cannot be combined" in wrong.stderr


@pytest.mark.slow
@pytest.mark.builds
def test_audit_finds_a_task_that_measures_nothing(task: Path, tmp_path: Path, home: Path) -> None:
    idle = tmp_path / "idle.py"
    idle.write_text(REFERENCE.replace("torch.sigmoid(x) * x + 1.0", "torch.relu(torch.relu(x)) + 1.0"))
    names = tmp_path / "list.txt"
    remembers, writes = tmp_path / "remembers.py", tmp_path / "writes.py"
    kept = "self.last = getattr(self, 'last', 0) + x; return self.last"
    remembers.write_text(REFERENCE.replace("return torch.sigmoid(x) * x + 1.0", kept))
    writes.write_text(REFERENCE.replace("torch.sigmoid(x) * x + 1.0", "x.mul_(2).add_(1)"))
    names.write_text(f"{task}\n{idle}\n{remembers}\n{writes}\n")
    done = kernelwright_command(home, "tasks", "--suite", names, "--audit", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = answer["audit"]
    assert found["file:swish"] == [] and found["file:writes"] == []
    assert answer["effects"]["file:swish"] == []
    assert answer["effects"]["file:writes"] == ["forward changes input 0 in place"]
    assert "depend on earlier calls (last)" in found["file:remembers"][0]
    assert any("changes nothing" in finding for finding in found["file:idle"])


def test_help_of_run_fits_two_screens(home: Path) -> None:
    import os

    words = [sys.executable, "-m", "kernelwright", "run", "--help"]
    environment = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=200)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) <= 110 and max(map(len, lines)) <= 80
    for panel in ("Tasks", "Model", "Search", "Tuner", "Budget", "Evaluation", "Execution", "Output"):
        assert f"─ {panel} ─" in done.stdout


def test_the_reference_of_options_is_that_of_the_commands() -> None:
    """Made again with `python -m kernelwright.reference > docs/options.md`."""
    assert (Path(__file__).parents[1] / "docs" / "options.md").read_text() == reference()


def test_the_command_line_goes_before_the_file(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(home))
    path = tmp_path / "run.toml"
    path.write_text(
        '[tasks]\ntasks = ["builtin:level1/softmax"]\n[model]\ncoder = "llm"\n[search]\nrounds = 0\n'
    )
    for words, said in (
        ((), "invalid --rounds 0"),
        (("--rounds", "3"), "--coder llm and --model belong together"),
        (("--rounds", "3", "--coder", "builtin", "--set", "nonsense=1"), "nonsense"),
    ):
        monkeypatch.setattr(sys, "argv", ["kernelwright", "run", "--config", str(path), *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        assert_one_line(*capsys.readouterr(), said)
