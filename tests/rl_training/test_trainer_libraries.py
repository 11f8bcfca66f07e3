"""The package for other trainers with the trainers' real libraries, each in an environment of its own.

They pin what kernelwright pins otherwise (openai, mcp), so each is asked for by its own Python:
.venv-trainers/NAME/bin/python, which `make test-trainers` makes, or a folder named by KERNELWRIGHT_TRAINERS.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.rl_training import trainers
from tests.helpers.rl_training.packaged import WrittenPackage, written
from tests.helpers.rl_training.served import FilePool, file, served

ROOT = Path(__file__).parents[2]
PYTHONS = Path(os.environ.get("KERNELWRIGHT_TRAINERS", ROOT / ".venv-trainers"))
REPLIES = {
    "right": f"```python\n{file(2.0)}```\n",
    "wrong": f"```python\n{file(1.0, 'wrong')}```\n",
    "dies": f"```python\n{file(1.0, 'dies')}```\n",
}
Run = Callable[[str], dict[str, Any]]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Function that runs a program with its library's Python and returns what it prints."""
    with (
        served(tmp_path / "requests.db", FilePool()) as address,
        written(tmp_path / "environment", address, turns=2) as package,
    ):
        yield lambda library: printed(library, package)


def printed(library: str, package: WrittenPackage) -> dict[str, Any]:
    python, path = PYTHONS / library / "bin" / "python", [str(package.folder)]
    if (beside := PYTHONS / library / "site").exists():  # packages to be used with this Python's own torch
        python, path = Path(sys.executable), [*path, str(beside)]
    if not python.exists():
        pytest.skip(f"{library} has no environment: make test-trainers")
    program = Path(trainers.__file__).parent / f"{library}_program.py"
    found = subprocess.run(
        [python, program, json.dumps(REPLIES)],
        cwd=package.folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


def test_verifiers_loads_the_environment_and_scores_replies(run: Run) -> None:
    found = run("verifiers")
    assert found["environment"] == "SingleAgentEnv" and "relu" in found["prompt"].lower()
    assert found["tasks"] == ["builtin:level1/relu", "builtin:level1/softmax"]
    assert found["held_out"] == ["builtin:level1/gelu"]
    assert found["right"]["reward"] > 2 and found["right"]["metrics"]["correct"] == 1.0
    assert found["wrong"]["reward"] == 0.0 and found["wrong"]["metrics"]["correct"] == 0.0
    assert found["dies"]["error"] == "TaskError" and "died" in found["dies"]["message"]
    assert found["dies"]["rewards"] == {"measured_speedup": None}


def test_openenv_resets_and_steps(run: Run) -> None:
    found = run("openenv")
    assert found["problems"] == ["Missing uv.lock - run 'uv lock' to generate it"]
    assert "relu" in found["right"]["prompt"].lower() and found["by_seed"] == "builtin:level1/softmax"
    first, last = found["right"]["steps"]
    assert first["reward"] > 2 and not first["done"] and last["done"] and first["no_verdict"] is None
    assert [step["reward"] for step in found["wrong"]["steps"]] == [0.0, 0.0]
    assert found["dies"]["steps"] == [{"reward": None, "done": True, "no_verdict": "a worker died"}]
    assert found["returns"] == [None]


def test_skyrl_makes_and_steps_the_environment(run: Run) -> None:
    found = run("skyrl")
    first, last = found["right"]["steps"]
    assert first["reward"] > 2 and first["observations"][0]["role"] == "user" and last["done"]
    assert first["metadata"]["correct"] == 1.0
    assert not last["observations"] and last["reward"] == 0.0  # the same file again
    assert [step["reward"] for step in found["wrong"]["steps"]] == [0.0, 0.0]
    assert found["dies"]["steps"] == [] and found["dies"]["error"] == "UnknownRewardError"


def test_nemo_gym_verifies_responses(run: Run) -> None:
    found = run("nemo_gym")
    assert found["right"]["body"]["reward"] > 2 and found["right"]["body"]["correct"] == 1.0
    assert (found["wrong"]["status"], found["wrong"]["body"]["reward"]) == (200, 0.0)
    dies = found["dies"]  # in releases that have a judge module, a row that is told from a reward of 0
    assert dies["status"] == 503 or dies["body"]["_ng_failure_class"] == "judge_failed"


def test_openrlhf_executes_replies(run: Run) -> None:
    found = run("openrlhf")
    assert found["right"]["one"]["reward"] > 2
    assert found["right"]["several"] == {**found["right"]["one"], "replies": 2}  # the same file again earns 0
    assert [found["wrong"][how]["reward"] for how in ("one", "several")] == [0.0, 0.0]
    assert found["dies"]["one"] == {"reward": None, "replies": 1}
    assert found["dies"]["several"] == {"error": "UnknownRewardError"}
