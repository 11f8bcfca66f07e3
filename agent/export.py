"""The command `export`: a package of a run's kernels, with kernels for their gradients if asked for."""

import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from kernelwright.agent.cli import execute
from kernelwright.agent.options.run import RunConfig, RunOutputOptions, TaskOptions
from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.kernelbench.options import command
from kernelwright.results.dropin.cli import ExportConfig, chosen_kernels, write_package
from kernelwright.results.dropin.gradient_tasks import training_tasks
from kernelwright.results.dropin.kernel_folder import PackagedKernel
from kernelwright.results.dropin.package import is_here, write
from kernelwright.results.dropin.winner import Winner
from kernelwright.results.formatting import ratio
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.folder import write_atomically

_GRADIENTS = "gradients"  # in a run's folder


@command(ExportConfig)
def export(config: ExportConfig) -> None:
    """Package a verified kernel as a drop-in for a model in training.

    The package needs only torch. It checks each call and leaves to the reference what was not verified; its
    gradients are those of a kernel (--train, --backward), or the reference's. Reports how fast it is, eager
    and compiled, in its wrapper.
    """
    kernels = chosen_kernels(config.source)
    if config.source.train:
        console = Console(stderr=True, highlight=False)
        written = shlex.join(["kernelwright", *sys.argv[1:]])
        search = GradientSearch(
            Path(config.source.run), written, lambda text: console.print(text, markup=False, soft_wrap=True)
        )
        kernels = [search.with_gradient(kernel) for kernel in kernels]
    write_package(config, kernels)


@dataclass(frozen=True)
class GradientSearch:
    """Kernels for the gradients of a run's kernels, found with the options of that run.

    `run`: its folder, in which gradients/NAME/ has their tasks and run; one that was interrupted goes on.
    `command`: what these runs' records say that began them.
    """

    run: Path
    command: str
    say: Callable[[str], None]

    def with_gradient(self, kernel: PackagedKernel) -> PackagedKernel:
        """Return the kernel with those for its gradient, if training is faster with them than without.

        Raises UsageError, MissingPrerequisite, StorageError.
        """
        if kernel.backward:
            raise UsageError("--train and --backward are both given", "leave out one of them")
        if kernel.winner.device and not is_here(kernel.winner.device):
            raise UsageError(
                f"--train times training with {kernel.name}, and there is no GPU here",
                "leave out --train, or export where there is one",
            )
        if not self.run.is_dir():
            raise UsageError(
                f"--train writes into the folder of a run, and {self.run} is none",
                "give the folder, or run `kernelwright gradient` and give --backward",
            )
        try:
            tasks = self._tasks(kernel)
            self._search(kernel, tasks)
            found = replace(kernel, backward=Winner.all_of(self._folder(kernel) / "run"))
            with_kernels = self._speedup(found)
        except UsageError as error:
            self.say(f"{kernel.name} has no kernel for its gradient: {error.message}")
            return kernel
        without = self._speedup(kernel)
        pays = with_kernels > without
        self.say(
            f"{kernel.name}: training is {ratio(with_kernels)} with kernels for its gradient, and "
            f"{ratio(without)} without, so they are {'kept' if pays else 'left out'}"
        )
        return found if pays else kernel

    def _folder(self, kernel: PackagedKernel) -> Path:
        return self.run / _GRADIENTS / kernel.name

    def _tasks(self, kernel: PackagedKernel) -> list[Path]:
        """Write the tasks of a kernel's gradient, or find those that are there."""
        folder = self._folder(kernel)
        known = sorted(folder.glob("*.py"))
        if (folder / "run").exists() and known:
            return known
        self.say(f"writing the gradient of {kernel.name}")
        files = {
            folder / f"{kernel.name}{end}": text for end, text in training_tasks(kernel.winner.task).items()
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file, text in files.items():
                write_atomically(file, text)
        except OSError as error:
            raise StorageError(
                f"{folder} cannot be written ({error.strerror or error})", "export from a copy of the run"
            ) from error
        return list(files)

    def _search(self, kernel: PackagedKernel, tasks: list[Path]) -> None:
        """Run the agent on the tasks, or go on with the run that is there."""
        run = self._folder(kernel) / "run"
        with RunDatabase.open(self.run, read_only=True) as database:
            config = RunConfig.recorded(database)
        if (run / "run.db").exists():
            execute(RunConfig(output=RunOutputOptions(resume=run, shown="progress")), self.command)
            return
        asked = TaskOptions(tasks=tuple(map(str, tasks)), precision=kernel.winner.task.precision)
        output = RunOutputOptions(out=run, shown="progress")
        execute(config.model_copy(update={"tasks": asked, "output": output}), self.command)

    def _speedup(self, kernel: PackagedKernel) -> float:
        """Return how much faster training is with the kernel in its wrapper, eagerly."""
        alone = replace(kernel, layers={}, functions=())
        with tempfile.TemporaryDirectory() as folder:
            measured = write([alone], Path(folder) / "package", f"{kernel.name}_timed")["measured"]
        rows = measured[kernel.name]
        return float(rows["training"]["speedup"]) if "training" in rows else 0.0
