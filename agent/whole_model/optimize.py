"""Optimization of a whole model: its parts, kernels for them, those that pay in the whole, the whole's gain.

Its folder: `parts.json` and `tasks/` as of `extract`; `run/`, a run of these tasks; `packages/`, a package
for each kernel; `comparison.json`, `report.md`; and `package/`, with the kernels that were kept. What is
there already is not made again, so the same command resumes after a kill.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kernelwright.agent.cli import execute
from kernelwright.agent.config import RunConfig, RunOutputOptions, TaskOptions
from kernelwright.agent.whole_model.comparison import StepPair
from kernelwright.agent.whole_model.extract import extract
from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.records import (
    ExtractedPart,
    ModelExtract,
    ModelResult,
    PartResult,
)
from kernelwright.agent.whole_model.report import markdown
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.records import Record, Task
from kernelwright.results.dropin.gradient_tasks import gradient_tasks
from kernelwright.results.dropin.package import PackagedKernel, write
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.formatting import with_bounds
from kernelwright.results.store.folder import write_atomically

PARTS, TASKS, RUN, PACKAGES, RESULT = "parts.json", "tasks", "run", "packages", "comparison.json"
PACKAGE, REPORT = "package", "report.md"
_GRADIENT, _FORWARD = "_gradient.py", "_training.py"
_LEAST_GAIN = 1.0  # lower bound of a part's speedup of the whole step, above which it is kept

R = TypeVar("R", bound=Record)
OfModel = TypeVar("OfModel", bound=ModelExtract | ModelResult)
Say = Callable[[str], None]


@dataclass(frozen=True)
class ModelOptimization:
    """ModelOptimization of one model, in a folder; progress messages go to `say`."""

    model: ModelName
    trains: bool
    out: Path
    most_calls: int
    most_parts: int = 8
    say: Say = print

    def run(self, config: RunConfig, command: str) -> ModelResult:
        """Do all of it. Raises UsageError, MissingPrerequisite, StorageError."""
        known = self._known(RESULT, ModelResult)
        if known is not None:
            return known
        parts = self.parts()
        chosen = [part for part in parts.parts if part.task and part.is_module][: self.most_parts]
        if not chosen:
            raise UsageError(
                f"{self.model} has no module that fusing could make faster",
                "see its parts in parts.json, or raise --most-calls",
            )
        tasks = [path for part in chosen for path in self._tasks_of(part)]
        self._search(config, tasks, command)
        results = self._each_alone([self._packaged(part) for part in chosen])
        return self._whole(parts, results)

    def parts(self) -> ModelExtract:
        """Return the model's parts, from the folder if they are there."""
        known = self._known(PARTS, ModelExtract)
        if known is not None:
            return known
        self.say(f"running a step of {self.model}")
        found, sources = extract(self.model, self.trains, self.most_calls)
        for name, source in sources.items():
            self._write(self.out / TASKS / name, source)
        self._write(self.out / PARTS, found.model_dump_json(indent=2) + "\n")
        return found

    def _known(self, name: str, kind: type[OfModel]) -> OfModel | None:
        """Return what the folder has of this model. Raises UsageError for a folder of another."""
        found = read(self.out / name, kind)
        own = str(self.model), self.model.words, self.trains
        if found is not None and (found.model, found.words, found.trains) != own:
            given = [found.model, *["--train"] * found.trains, *found.words]
            raise UsageError(f"{self.out} is of {' '.join(given)}", "give another --out")
        return found

    def _tasks_of(self, part: ExtractedPart) -> list[Path]:
        """Return the task of a part; in training also its gradient, and the forward that saves for it."""
        path = self.out / TASKS / part.task
        gradient, forward = (path.with_name(path.stem + suffix) for suffix in (_GRADIENT, _FORWARD))
        if self.trains and not gradient.exists():
            task = Task(id=f"file:{path.stem}", level=0, source=path.read_text(encoding="utf-8"))
            try:
                sources = gradient_tasks(task, "activations")
            except UsageError:
                try:
                    sources = gradient_tasks(task)
                except UsageError as error:
                    self.say(f"{part.name}: {error.message}")
                    return [path]
            for file, source in zip((forward, gradient), reversed(sources), strict=True):
                if source:
                    self._write(file, source)
        return [path, *(each for each in (gradient, forward) if each.exists())]

    def _search(self, config: RunConfig, tasks: Sequence[Path], command: str) -> None:
        """Run the agent on the tasks, or go on with the run in the folder."""
        run = self.out / RUN
        if (run / "run.db").exists():
            output = RunOutputOptions(resume=run, shown="progress")
            execute(RunConfig(execution=config.execution, output=output), command)
        else:
            self.say(f"{len(tasks)} tasks")
            output = RunOutputOptions(out=run, shown="progress")
            asked = TaskOptions(tasks=tuple(map(str, tasks)))
            execute(config.model_copy(update={"tasks": asked, "output": output}), command)

    def _packaged(self, part: ExtractedPart) -> PartResult:
        """Write the package of a part's kernel, if there is one."""
        name = f"kernels_{Path(part.task).stem.partition('_')[2]}"
        folder = self.out / PACKAGES / name
        result = PartResult(part=part.name, task=part.task, places=part.places, package=name)
        try:
            winner = self._winner(part.task)
            if not folder.exists():
                self.say(f"packaging the kernel of {part.name}")
                write([self._kernel(part, winner)], folder, name, measure=False)
        except UsageError as error:
            return result.model_copy(update={"package": "", "reason": error.message})
        return result

    def _winner(self, task: str) -> Winner:
        return Winner.of(self.out / RUN, f"file:{Path(task).stem}")

    def _kernel(self, part: ExtractedPart, winner: Winner) -> PackagedKernel:
        backward = Winner.all_of(self.out / RUN) if self.trains else ()
        return PackagedKernel(winner.name, winner, {part.kind: {}}, backward=backward)

    def _each_alone(self, results: Sequence[PartResult]) -> list[PartResult]:
        """Time the step with one package at a time; those that pay are kept."""
        return [self._alone(result) if result.package else result for result in results]

    def _alone(self, result: PartResult) -> PartResult:
        """Time the step with one package, in a worker of its own, for it may end that."""
        try:
            with StepPair(self.model, self.trains) as pair:
                replaced = pair.put_in([self.out / PACKAGES / result.package])
                times = pair.times(compiled=False)
        except UsageError as error:
            return result.model_copy(update={"reason": error.message})
        self.say(f"{result.part}: {len(replaced)} replaced, {with_bounds(times.speedup)}")
        kept = times.speedup.low > _LEAST_GAIN
        reason = "" if kept else "the step is not faster with it, by its whole interval"
        update = {"replaced": len(replaced), "alone": times, "kept": kept, "reason": reason}
        return result.model_copy(update=update)

    def _whole(self, parts: ModelExtract, results: Sequence[PartResult]) -> ModelResult:
        """Compare the model with all that is kept, and write the package and the result."""
        kept = [result for result in results if result.kept]
        comparison = None
        if kept:
            self.say("comparing the whole step, eager and compiled")
            with StepPair(self.model, self.trains) as pair:
                pair.put_in([self.out / PACKAGES / result.package for result in kept])
                comparison = pair.compared()
            if not (self.out / PACKAGE).exists():
                by_task = {part.task: part for part in parts.parts}
                kernels = [self._kernel(by_task[each.task], self._winner(each.task)) for each in kept]
                write(kernels, self.out / PACKAGE, f"{self._slug}_kernels", measure=False)
        result = ModelResult(
            model=str(self.model),
            words=self.model.words,
            trains=self.trains,
            parts=tuple(results),
            comparison=comparison,
        )
        self._write(self.out / REPORT, markdown(result, self.out))
        self._write(self.out / RESULT, result.model_dump_json(indent=2) + "\n")
        return result

    @property
    def _slug(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in self.model.name.lower())

    def _write(self, path: Path, text: str) -> None:
        try:
            write_atomically(path, text)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}", "give another --out") from error


def read(path: Path, kind: type[R]) -> R | None:
    """Return a record that was written; None if there is none. Raises StorageError."""
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise StorageError(f"{path} cannot be read", "delete it, and it is made again") from error
