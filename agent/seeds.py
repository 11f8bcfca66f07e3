"""Seeds: kernels that are there before the first round. A task's winner is never slower than its seed."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelwright.agent.attempts import repeated
from kernelwright.agent.protocols import PARTS, Attempt, Coder, NoSeed, SeedSource
from kernelwright.agent.search import Request, Search, Stop
from kernelwright.kernelbench.candidates import candidate_from_file, language_of
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.parsing import parsed
from kernelwright.kernelbench.records import Candidate, Task


@dataclass(frozen=True)
class BuiltinSeed:
    """The first kernel of the builtin coder."""

    coder: Coder

    def __call__(self, task: Task) -> Candidate:
        """Return the seed. Raises NoSeed where the builtin coder would submit the reference itself."""
        candidate = self.coder.propose(task, (), None)
        if candidate.language == "torch":
            said = ast.get_docstring(parsed(candidate.source)) or "nothing is gained by kernels"
            raise NoSeed(said.partition(": ")[2].rstrip(".") or said)
        return candidate.model_copy(update={"origin": "seed"})


@dataclass(frozen=True)
class FileSeed:
    """A kernel that the user has; parts of its task begin with another seed."""

    source: str
    of_parts: SeedSource | None = None

    def __call__(self, task: Task) -> Candidate:
        if task.part is not None and self.of_parts is not None:
            return self.of_parts(task)
        language = language_of(self.source)
        return Candidate(source=self.source, language=language, author="file", origin="seed")


@dataclass(frozen=True)
class SeedsApart:
    """A search that knows the rounds of a history alone.

    For the builtin coder's, whose rules read schedules: a seed of the user's has none. It may still win.
    """

    search: Search

    def step(self, task: Task, history: Sequence[Attempt]) -> Sequence[Request] | Stop:
        rounds = _without_seeds(history)
        found = self.search.step(task, rounds)
        if isinstance(found, Stop):
            return found
        before = len(history) - len(rounds)
        return [replace(request, seen=before + request.seen) for request in found]

    def advised_on(self, task: Task, history: Sequence[Attempt]) -> Sequence[Attempt]:
        return self.search.advised_on(task, _without_seeds(history))


def _without_seeds(history: Sequence[Attempt]) -> list[Attempt]:
    return [attempt for attempt in history if attempt.candidate.origin != "seed"]


def missing(
    tried: Sequence[Attempt], together: Candidate | None, seed: SeedSource | None
) -> list[SeedSource]:
    """Return the seeds that a history does not have yet: what was put `together`, then the `seed`."""
    found: list[SeedSource] = []
    if together is not None and repeated(together, tried) is None:
        found.append(lambda _: together)
    if seed is not None and all(attempt.candidate.author == PARTS for attempt in tried):
        found.append(seed)
    return found


def read_seed(path: Path) -> str:
    """Return the source of a seed, FILE.py or FILE.py:FUNCTION.

    Raises UsageError if the file defines no ModelNew, nor one function to take for it, or has no kernels.
    """
    flag = f"--seed {path}"
    if ".py" not in path.name and not path.exists():
        raise UsageError(f"{flag} is no seed", "give builtin, none, or a .py file that defines ModelNew")
    try:
        source = candidate_from_file(path).source
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{flag} cannot be read: {error}", "give a Python file") from None
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    if "ModelNew" not in names:
        raise UsageError(
            f"{flag} defines no class ModelNew", f"name the function that calls the kernel: {path}:FUNCTION"
        )
    if language_of(source) == "torch":
        raise UsageError(
            f"{flag} has no kernels of its own", "give a file with kernels, such as Triton, CUDA or C++ ones"
        )
    return source
