"""Exercises of the red team, read from their files, and the check whether an evaluation withstood them."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kernelwright.kernelbench.candidates import language_of
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Candidate, Evaluation, Task, Verdict

FOLDER = Path(__file__).parent
HONEST = "honest"
WORTHLESS = 1.1  # where the interval of a speedup that was to be forged begins at most


@dataclass(frozen=True)
class Exercise:
    """One candidate of the red team. `family` is that of the cheat, or "honest"."""

    name: str
    family: str
    path: Path

    @property
    def honest(self) -> bool:
        return self.family == HONEST

    @cached_property
    def _said(self) -> list[str]:
        said = ast.get_docstring(ast.parse(self.path.read_text())) or ""
        return said.splitlines()

    @property
    def what(self) -> str:
        """Description in a sentence."""
        return self._said[0]

    def fits(self, device: str) -> bool:
        """Return True if it can run on a device: some need a GPU, and those with C++ of their own a CPU."""
        needs_gpu = self._field("Device") == "cuda"
        return not needs_gpu if device == "cpu" else needs_gpu or self.candidate.language == "torch"

    @property
    def stopped(self) -> str:
        """Defence that stops it, for a cheat."""
        return self._field("Stopped")

    @cached_property
    def task(self) -> Task:
        name = self._field("Reference")
        source = (FOLDER / "references" / f"{name}.py").read_text()
        return Task(id=f"redteam:{name}", level=1, source=source)

    @cached_property
    def candidate(self) -> Candidate:
        source = self.path.read_text()
        return Candidate(source=source, language=language_of(source), author="red team")

    def _field(self, name: str) -> str:
        found = [line.removeprefix(f"{name}: ") for line in self._said if line.startswith(f"{name}: ")]
        return found[0] if found else ""

    def withstood(self, evaluation: Evaluation) -> bool:
        """Return True if the evaluator did right: honest candidates are correct, cheats are not.

        Cheats that compute the right result may be correct, if the file says so, and they gain nothing.
        """
        if self.honest:
            return evaluation.verdict is Verdict.correct
        if evaluation.verdict is not Verdict.correct:
            return True
        if not self._field("Correct"):
            return False
        speedup = evaluation.speedup
        return speedup is not None and speedup.eager is not None and speedup.eager.low <= WORTHLESS


def catalogue(names: Sequence[str] = (), device: str = "cpu") -> list[Exercise]:
    """Return all exercises for a device, or those named by name or family. Raises UsageError."""
    return [exercise for exercise in named(names) if exercise.fits(device)]


def named(names: Sequence[str] = ()) -> list[Exercise]:
    """Return all exercises, for whatever device, or those named by name or family.

    Raises UsageError for an unknown name.
    """
    paths = sorted(FOLDER.glob("cheats/*/*.py")) + sorted(FOLDER.glob("honest/*.py"))
    found = [Exercise(path.stem, path.parent.name, path) for path in paths]
    for name in names:
        if not any(name in (exercise.name, exercise.family) for exercise in found):
            families = ", ".join(dict.fromkeys(exercise.family for exercise in found))
            raise UsageError(f"unknown cheat '{name}'", f"use the name of a cheat, or one of {families}")
    return [e for e in found if not names or e.name in names or e.family in names]
