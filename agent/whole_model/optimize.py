"""Optimization of a whole model: its parts, kernels for them, those that are faster in it, the whole's gain.

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
from kernelwright.agent.options.run import RunConfig, RunOutputOptions, TaskOptions
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
from kernelwright.results.dropin.gradient_tasks import TRAINING_ENDS, training_tasks
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import write
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.formatting import with_bounds
from kernelwright.results.store.folder import write_atomically

PARTS, TASKS, RUN, PACKAGES, RESULT = "parts.json", "tasks", "run", "packages", "comparison.json"
PACKAGE, REPORT = "package", "report.md"
_LEAST_GAIN = 1.0  # lower bound of a speedup above which a kernel is kept

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
        chosen = self._searched(config, command)
        return self._whole([self._result(part) for part in chosen])

    def _searched(self, config: RunConfig, command: str) -> list[ExtractedPart]:
        """Run the agent on the tasks of the parts that are worth it, and return these."""
        chosen = self.chosen()
        self._search(config, [path for part in chosen for path in self.tasks_of(part)], command)
        return chosen

    def chosen(self) -> list[ExtractedPart]:
        """Return the parts that kernels are written for. Raises UsageError if there are none."""
        chosen = [part for part in self.parts().parts if part.task][: self.most_parts]
        if not chosen:
            raise UsageError(
                f"{self.model} has no part that fusing could make faster",
                "see its parts in parts.json, or raise --most-calls",
            )
        for part in chosen:
            if part.one_size:
                self.say(f"{part.name}: a kernel for the first size alone, because {part.one_size}")
        return chosen

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

    def tasks_of(self, part: ExtractedPart) -> list[Path]:
        """Return the task of a part; in training also its gradient, and the forward that saves for it."""
        path = self.out / TASKS / part.task
        files = [path.with_name(path.stem + end) for end in TRAINING_ENDS]
        if self.trains and not files[0].exists():
            task = task_of_text(f"file:{path.stem}", path.read_text(encoding="utf-8"))
            try:
                sources = training_tasks(task)
            except UsageError as error:
                self.say(f"{part.name}: {error.message}")
                return [path]
            for end in reversed(sources):  # the gradient last, which says that all are there
                self._write(path.with_name(path.stem + end), sources[end])
        return [path, *(each for each in files if each.exists())]

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
        found = Winner.all_of(self.out / RUN) if self.trains else ()
        return packaged_kernel(part, winner, found, slower)

    def _result(self, part: ExtractedPart) -> PartResult:
        """Return the result of a part, from its file if it was timed before."""
        result = self._packaged(part)
        if not result.package:
            return result
        file = self.out / PACKAGES / f"{result.package}.json"
        if (known := read(file, PartResult)) is not None:
            return known
        try:
            found = self._timed(part, result)
        except StepEndedError as error:  # which is tried again by the next command
            return result.model_copy(update={"reason": error.message})
        except UsageError as error:
            found = result.model_copy(update={"reason": error.message})
        self._write(file, found.model_dump_json(indent=2) + "\n")
        return found

    def _timed(self, part: ExtractedPart, result: PartResult) -> PartResult:
        """Time the part with its package and without, in workers of its own, for it may end them.

        It is kept if a call is faster by the whole interval over all pairs of workers; a loss with its
        product, too, if the step needs less memory with it and the call is not certainly slower. The whole
        step would tell less: a part of 3% that is twice as fast makes it 1.5% faster, which takes long to be
        seen.
        """
        blocks: list[StepBlocks] = []
        peaks = (0, 0)
        for _ in range(WORKER_PAIRS):
            with StepPair(self.model, self.trains) as pair:
                pair.capture(part.places[0], part.call, of_loss=bool(part.function))
                replaced = pair.put_in(self.out / PACKAGES / result.package / result.package)
                result = result.model_copy(update={"replaced": len(replaced)})
                if unreached := pair.unreached():
                    return result.model_copy(update={"reason": f"it computes no call: {unreached}"})
                if part.function:
                    peaks = pair.peaks()
                blocks.append(pair.part_blocks())
        times = step_times(self.model.workload, blocks)
        self.say(f"{result.part}: {len(replaced)} replaced, {with_bounds(times.speedup)}")
        stock, drop_in = peaks
        smaller = drop_in < stock and times.speedup.high >= _LEAST_GAIN
        kept = times.speedup.low > _LEAST_GAIN or smaller
        reason = "" if kept else "it is not faster, by its whole interval"
        found = {"times": times, "kept": kept, "reason": reason}
        return result.model_copy(update={**found, "stock_peak_bytes": stock, "drop_in_peak_bytes": drop_in})

    def _compiled(self, package: Path) -> StepTimes | None:
        """Time the compiled step with a package; None where it fails."""
        try:
            with StepPair(self.model, self.trains) as pair:
                pair.put_in(package)
                return step_times(self.model.workload, [pair.blocks(compiled=True)])
        except UsageError as error:
            self.say(f"by torch.compile: {error.message}")
            return None

    def _whole(self, results: Sequence[PartResult]) -> ModelResult:
        """Write the package of all that is kept, compare the model with it, and write the result."""
        kept = [result for result in results if result.kept]
        comparison = compiled = None
        if kept:
            self.say("timing the compiled step with all of them")
            compiled = self._compiled(self._written(kept))
            pays = compiled is not None and compiled.speedup.low > _LEAST_GAIN
            package = self._written(kept, () if pays else self._compiled_modes)
            self.say("comparing the whole step, eager and compiled")
            comparison = compare(self.model, self.trains, package)
        result = ModelResult(
            model=str(self.model),
            words=self.model.words,
            trains=self.trains,
            parts=tuple(results),
            comparison=comparison,
            compiled=compiled,
        )
        self._write(self.out / REPORT, markdown(result, self.out))
        self._write(self.out / RESULT, result.model_dump_json(indent=2) + "\n")
        return result

    @property
    def _compiled_modes(self) -> tuple[str, ...]:
        """Modes of calls in the compiled step; in training some need no gradient."""
        return ("training, compiled", "forward, compiled") if self.trains else ("forward, compiled",)

    def _written(self, kept: Sequence[PartResult], slower: Sequence[str] = ()) -> Path:
        """Write the package of all kernels that are kept; return its folder, that can be imported."""
        parts = {part.task: part for part in self.parts().parts}
        kernels = [self._kernel(parts[each.task], self._winner(each.task), slower) for each in kept]
        folder = self.out / PACKAGE
        shutil.rmtree(folder, ignore_errors=True)  # of before, or of a run that was interrupted
        name = f"{self._slug}_kernels"
        write(kernels, folder, name, measure=False)
        return folder / name

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


def packaged_kernel(
    part: ExtractedPart, winner: Winner, found: Sequence[Winner] = (), slower: Sequence[str] = ()
) -> PackagedKernel:
    """Return a part's kernel for a package, in the place of what the part is.

    `found`: verified kernels, among which those of its gradient may be; without them ATen calls compute it.
    `slower`: modes in which it is not called.
    """
    of_gradient = {f"{winner.task.id}{end.removesuffix('.py')}" for end in TRAINING_ENDS}
    backward = tuple(each for each in found if each.task.id in of_gradient)
    return PackagedKernel(
        winner.name,
        winner,
        layers={part.kind: {}} if part.is_module else {},
        functions=(part.function,) if part.function else () if part.is_module else (part.kind,),
        constants=part.constants,
        backward=backward,
        slower=slower,
    )
