"""Stage 2: is it right, and not fooled."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import EAGER
from kernelwright.kernelbench.redteam.catalogue import Exercise, catalogue
from kernelwright.kernelbench.redteam.cli import LIMITS, PROTOCOL
from tests.gpu.acceptance.bench import Bench, told
from tests.gpu.acceptance.running import Step

_ROOT = Path(__file__).parents[3]
_MARK = "pytest.mark.acceptance"
_LINE = re.compile(r"^(?P<test>tests/\S+::.+?) (?P<word>PASSED|FAILED|ERROR|SKIPPED)")
_REASON = re.compile(r"^(?:FAILED|ERROR) (?P<test>tests/\S+::.+?) - (?P<reason>.*)")
_TEST_S = 100  # of one test, at most


def tests(bench: Bench) -> None:
    """The tests that only a GPU can run and that matter most, which are marked acceptance."""
    for name, passed, reason in marked(_files_with_marks()):
        bench.check(passed, name, reason)


def marked(files: Iterable[Path]) -> Iterable[tuple[str, bool | None, str]]:
    """Run the tests of files that are marked acceptance; yield each, and at the end again why it failed."""
    words = [sys.executable, "-m", "pytest", "-v", "-m", "acceptance", f"--timeout={_TEST_S}", "--tb=line",
             "-p", "no:cacheprovider", "--color=no", *map(str, files)]  # fmt: skip
    failed: dict[str, str] = {}
    with subprocess.Popen(words, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if match := _LINE.match(line):
                name = match["test"].rpartition("/")[2]
                yield name, {"PASSED": True, "SKIPPED": None}.get(match["word"], False), match["word"].lower()
            elif match := _REASON.match(line):
                failed[match["test"].rpartition("/")[2]] = match["reason"]
    for name, reason in failed.items():
        yield f"{name}, why", False, reason
    if run.returncode not in (0, 1):  # 1: some failed
        yield "pytest", False, f"it ended with status {run.returncode}"


def _files_with_marks() -> list[Path]:
    """Test files that hold the mark: collecting all would import much that is not needed."""
    found = (_ROOT / "tests").rglob("test_*.py")
    return sorted(file.relative_to(_ROOT) for file in found if _MARK in file.read_text())


def gpu_exercises(bench: Bench) -> None:
    """Cheats that only a GPU makes possible are stopped, and their honest twins are accepted."""
    _tried(bench, lambda exercise: not exercise.fits("cpu"))


def other_exercises(bench: Bench) -> None:
    """So are those in torch's language, which a CPU has seen before."""
    _tried(bench, lambda exercise: exercise.fits("cpu"))


def _tried(bench: Bench, chosen: Callable[[Exercise], bool]) -> None:
    exercises = sorted(filter(chosen, catalogue(device=bench.device)), key=lambda exercise: exercise.task.id)
    for exercise in exercises[: 2 if bench.small else None]:
        try:
            found = bench.referee(LIMITS, **dict(PROTOCOL)).evaluate(exercise.task, exercise.candidate, EAGER)
            bench.check(exercise.withstood(found), f"{exercise.family}/{exercise.name}", told(found))
        except InfrastructureError as error:
            bench.check(False, f"{exercise.family}/{exercise.name}", error)


STEPS = (
    Step(tests, 300),
    Step(gpu_exercises, 150),
    Step(other_exercises, 300, on_cpu=True),
)
