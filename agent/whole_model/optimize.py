"""Optimization of a whole model: its parts, kernels for them, those that pay in the whole, the whole's gain.

Its folder: `parts.json` and `tasks/` as of `extract`; `run/`, a run of these tasks; `packages/`, a package
for each kernel; `comparison.json`, `report.md`; and `package/`, with the kernels that were kept. What is
there already is not made again, so the same command resumes after a kill.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kernelwright.agent.cli import execute
from kernelwright.agent.config import RunConfig, RunOutputOptions, TaskOptions
from kernelwright.agent.whole_model.comparison import (
    WORKER_PAIRS,
    StepBlocks,
    StepEndedError,
    StepPair,
    compare,
    step_times,
)
from kernelwright.agent.whole_model.extract import extract
from kernelwright.agent.whole_model.model_name import ModelName
from kernelwright.agent.whole_model.records import (
    ExtractedPart,
    ModelExtract,
    ModelResult,
    PartResult,
    StepTimes,
)
from kernelwright.agent.whole_model.report import markdown
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.records import Record
from kernelwright.kernelbench.sources import task_of_text
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
    """Optimization of one model, in a folder; progress messages go to `say`."""

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
        chosen = [part for part in parts.parts if part.task][: self.most_parts]
        if not chosen:
            raise UsageError(
                f"{self.model} has no part that fusing could make faster",
                "see its parts in parts.json, or raise --most-calls",
            )
        for part in chosen:
            if part.one_size:
                self.say(f"{part.name}: a kernel for the first size alone, because {part.one_size}")
        tasks = [path for part in chosen for path in self._tasks_of(part)]
        self._search(config, tasks, command)
        results = [self._alone(self._packaged(part)) for part in chosen]
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
            task = task_of_text(f"file:{path.stem}", path.read_text(encoding="utf-8"))
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
        name = f"kernels_{Path(part.task).stem}"
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

    def _kernel(self, part: ExtractedPart, winner: Winner, slower: Sequence[str] = ()) -> PackagedKernel:
        return PackagedKernel(
            winner.name,
            winner,
            layers={part.kind: {}} if part.is_module else {},
            functions=() if part.is_module else (part.kind,),
            constants=part.constants,
            backward=Winner.all_of(self.out / RUN) if self.trains else (),
            slower=slower,
        )

    def _alone(self, result: PartResult) -> PartResult:
        """Time the step with one package, from its file if it was timed before."""
        if not result.package:
            return result
        file = self.out / PACKAGES / f"{result.package}.json"
        if (known := read(file, PartResult)) is not None:
            return known
        try:
            found = self._timed_alone(result)
        except StepEndedError as error:  # which is tried again by the next command
            return result.model_copy(update={"reason": error.message})
        except UsageError as error:
            found = result.model_copy(update={"reason": error.message})
        self._write(file, found.model_dump_json(indent=2) + "\n")
        return found

    def _timed_alone(self, result: PartResult) -> PartResult:
        """Time the step with one package, in workers of its own, for it may end them.

        It is kept if the step is faster with it by the whole interval over all pairs of workers; then the
        compiled step is timed, too.
        """
        sizes = self.model.workload
        eager: list[StepBlocks] = []
        compiled: list[StepBlocks] = []
        why = ""
        for _ in range(WORKER_PAIRS):
            with StepPair(self.model, self.trains) as pair:
                replaced = pair.put_in([self.out / PACKAGES / result.package / result.package])
                result = result.model_copy(update={"replaced": len(replaced)})
                if unreached := pair.unreached():
                    return result.model_copy(update={"reason": f"it computes no call: {unreached}"})
                eager.append(pair.blocks(compiled=False))
                result = result.model_copy(update={"alone": step_times(sizes, eager)})
                if not _pays(result.alone):
                    self.say(f"{result.part}: {_said(result.alone)}")
                    reason = "the step is not faster with it, by its whole interval"
                    return result.model_copy(update={"reason": reason})
                if not why:
                    try:
                        compiled.append(pair.blocks(compiled=True))
                    except StepEndedError:
                        raise
                    except UsageError as error:
                        why = error.message
                    else:
                        result = result.model_copy(update={"compiled": step_times(sizes, compiled)})
                        why = "" if _pays(result.compiled) else "the compiled step is not faster with it"
        self.say(f"{result.part}: {_said(result.alone)}; compiled {_said(result.compiled)}")
        return result.model_copy(update={"kept": True, "reason": f"eager only: {why}" if why else ""})

    def _slower(self, result: PartResult) -> tuple[str, ...]:
        """Return the modes in which a kernel is left out; in training some calls need no gradient."""
        modes = ("training", "forward") if self.trains else ("forward",)
        return () if _pays(result.compiled) else tuple(f"{mode}, compiled" for mode in modes)

    def _whole(self, parts: ModelExtract, results: Sequence[PartResult]) -> ModelResult:
        """Write the package of all that is kept, compare the model with it, and write the result."""
        kept = [result for result in results if result.kept]
        comparison = None
        if kept:
            name = f"{self._slug}_kernels"
            package = self.out / PACKAGE / name
            by_task = {part.task: part for part in parts.parts}
            kernels = [
                self._kernel(by_task[each.task], self._winner(each.task), self._slower(each)) for each in kept
            ]
            shutil.rmtree(package.parent, ignore_errors=True)  # of a run that was interrupted
            write(kernels, package.parent, name, measure=False)
            self.say("comparing the whole step, eager and compiled")
            comparison = compare(self.model, self.trains, package)
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


def _pays(times: StepTimes | None) -> bool:
    return times is not None and times.speedup.low > _LEAST_GAIN


def _said(times: StepTimes | None) -> str:
    return with_bounds(times.speedup) if times is not None else "not timed"


def read(path: Path, kind: type[R]) -> R | None:
    """Return a record that was written; None if there is none. Raises StorageError."""
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise StorageError(f"{path} cannot be read", "delete it, and it is made again") from error
