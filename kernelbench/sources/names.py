"""Resolution of names on a command line to tasks: each is expanded, read, configured and checked."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelwright.kernelbench.errors import TaskError, UnknownTaskError, UsageError
from kernelwright.kernelbench.modules.worker import named_module, write_in_worker
from kernelwright.kernelbench.records import Precision, Size, Task
from kernelwright.kernelbench.sources import builtin, checkout, hgemm, hub
from kernelwright.kernelbench.sources.assignments import constants
from kernelwright.kernelbench.sources.entry import Entry, from_file, read_text
from kernelwright.kernelbench.sources.formats import task_files
from kernelwright.kernelbench.sources.overrides import apply, distribute, from_words
from kernelwright.kernelbench.sources.pretrained import with_random_weights
from kernelwright.kernelbench.sources.selection import select, unknown
from kernelwright.kernelbench.sources.sizes import from_size_words, of_file, ordered
from kernelwright.kernelbench.sources.validate import check


@dataclass(frozen=True)
class FoundTask:
    """An entry with its text, the overrides that a list file gave it, and its sizes."""

    entry: Entry
    source: str  # without the workload
    overrides: Mapping[str, str]
    sizes: tuple[Size, ...] = ()


def resolve(
    names: Sequence[str],
    *,
    kernelbench_dir: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    precision: Precision = Precision.task,
    suite: str | None = None,
    device: str = "cpu",
    inputs: Sequence[str] = (),
    init: Sequence[str] = (),
    sizes: Sequence[str] = (),
) -> list[Task]:
    """Return the tasks that the names (forms: see the package) and the suite mean, each once, in order.

    `suite` is one more name, usually of many tasks: `builtin:level1`, `kernelbench:1`, `tasks.txt`.
    `overrides` maps constants to Python literals; each is set in the tasks that have the constant, over the
    value set by a list file. Where `device` is a GPU ("cuda:0"), a task of the built-in suite has its
    constants for that (tasks/gpu_sizes.toml) below both. A task keeps its id whatever is set in it, and
    `Task.overrides` says what is. `kernelbench_dir` falls back to the environment's KERNELBENCH_DIR.
    `sizes`, such as "batch_size=4,weight=3", are of the tasks that have their constants, instead of the
    file's own. `inputs`, such as "8,128:bf16", and `init` are of modules that a name means, whose task files
    are written.

    Raises `UnknownTaskError` for an unknown name, `TaskError` for a file that is not a task, `UsageError` for
    an override or size that is not of literals or fits no task, and for one id that would mean two different
    tasks, `MissingPrerequisite` if a checkout or package is missing.
    """
    wanted = [*names, *([suite] if suite else [])]
    if not wanted:
        raise UsageError(
            "no task is given", "name a task, e.g. builtin:level1/softmax, or use --suite builtin"
        )
    library = TaskLibrary(kernelbench_dir, tuple(inputs), tuple(init), from_size_words(sizes))
    found = [each for name in wanted for each in library.find(name)]
    where = found[0].entry.where if len(found) == 1 else f"the {len(found)} tasks"
    given = distribute([each.source for each in found], overrides or {}, where)
    if (inputs or init) and not library.wrote:
        raise UsageError(
            f"{'--input' if inputs else '--init'} is for a module, and {where} has inputs of its own",
            "leave it out, or name a class: FILE.py:CLASS",
        )
    on_gpu = {} if device == "cpu" else builtin.gpu_sizes()
    tasks: dict[str, Task] = {}
    for each, own, its_sizes in zip(found, given, _sizes(found, from_size_words(sizes), where), strict=True):
        if both := {**each.overrides, **own}.keys() & {name for size in its_sizes for name in size.constants}:
            name = sorted(both)[0]
            raise UsageError(
                f"{each.entry.where}: its sizes set {name}, so that it cannot be set for all",
                f"leave out the setting of {name}, or give the sizes as --size {name}=…",
            )
        overrides_of = {**on_gpu.get(each.entry.id, {}), **each.overrides, **own}
        task = _task(each, overrides_of, precision, its_sizes)
        before = tasks.setdefault(task.id, task)
        if before != task:
            raise _two_tasks_of_one_id(before, task)
    return list(tasks.values())


def task_of_text(name: str, source: str, precision: Precision = Precision.task) -> Task:
    """Return the task of a file's text. Raises TaskError and UsageError where it is none."""
    found = _read(Entry(name, 0, name, text=source))
    return _task(found, {}, precision, found.sizes)


@dataclass
class TaskLibrary:
    """Finder of entries by name; a suite is listed once and kept for the next name."""

    kernelbench_dir: Path | None
    inputs: tuple[str, ...] = ()  # of modules
    init: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()
    wrote: bool = False  # whether there was a module
    shelves: dict[str, list[Entry]] = field(default_factory=dict)

    def find(self, name: str, folder: Path = Path(), lists: tuple[Path, ...] = ()) -> list[FoundTask]:
        """Return the tasks a name means; relative paths start at `folder`, within the list files `lists`."""
        entries = self._of_module(name, folder) or self._of_suite(name)
        if entries is None:
            path = folder / Path(name).expanduser()
            if files := task_files(path, self._first_size):
                return [_read(Entry(f"file:{each.name}", 0, each.name, text=each.source)) for each in files]
            if path.suffix == ".txt":
                return self._of_list(path, lists)
            if path.suffix != ".py" or not path.is_file():
                raise self._no_file(name, path)
            entries = [from_file(path)]
        return [_read(entry) for entry in entries]

    @property
    def _first_size(self) -> Mapping[str, str]:
        return next((size.constants for size in self.sizes if not size.hidden), {})

    def _of_module(self, name: str, folder: Path) -> list[Entry] | None:
        if (module := named_module(name)) is None:
            return None
        self.wrote = True
        text = write_in_worker(*module, self.inputs, self.init, folder, self._first_size)
        where = Path(module[0]).stem if module[0].endswith(".py") else module[0]
        return [Entry(f"module:{where}.{module[1]}", 0, module[1], text=text)]

    def _of_suite(self, name: str) -> list[Entry] | None:
        suite, _, rest = name.partition(":")
        if suite in ("builtin", "kernelbench"):
            return select(self._shelf(suite), rest, name)
        if suite == "hgemm":
            return hgemm.entries(rest, name)
        if suite == "hf":
            dataset, selector = hub.split_name(rest)
            if not dataset:
                raise UsageError(f"{name} names no data set", "use hf:ScalingIntelligence/KernelBench:2/40")
            return select(self._shelf(f"hf:{dataset}"), selector, name)
        return None

    def _shelf(self, suite: str) -> list[Entry]:
        if suite not in self.shelves:
            if suite == "builtin":
                self.shelves[suite] = builtin.entries()
            elif suite == "kernelbench":
                self.shelves[suite] = checkout.entries(checkout.find(self.kernelbench_dir))
            else:
                self.shelves[suite] = hub.entries(suite.removeprefix("hf:"))
        return self.shelves[suite]

    def _of_list(self, path: Path, lists: tuple[Path, ...]) -> list[FoundTask]:
        if not path.is_file():
            raise UnknownTaskError(f"the list of tasks {path} does not exist", "check the path")
        if path.resolve() in lists:
            raise UsageError(f"the list {path} includes itself", "remove that line")
        found = []
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            where = f"{path} line {number}"
            try:
                words = shlex.split(line, comments=True)
            except ValueError as error:
                raise UsageError(f"{where} cannot be read: {error}", "close the quotation") from error
            if not words:
                continue
            if len(words) > 1 and (words[1] != "set" or len(words) == 2):
                raise UsageError(f"{where} has more than a name", "use the form NAME set constant=value …")
            here = self.find(words[0], path.parent, (*lists, path.resolve()))
            values = from_words(word for word in words[2:] if word != "set")
            given = distribute([each.source for each in here], values, where)
            found += [
                replace(each, overrides={**each.overrides, **own})
                for each, own in zip(here, given, strict=True)
            ]
        if not found:
            raise UsageError(
                f"the list {path} names no task", "write one name a line, e.g. builtin:level1/softmax"
            )
        return found

    def _no_file(self, name: str, path: Path) -> UsageError:
        if path.is_dir():
            return UsageError(f"{name} is a folder", f"name the files in it: {name.rstrip('/')}/*.py")
        if path.is_file():
            return UsageError(
                f"{name} is neither a task nor a list of tasks", "a task ends in .py, a list in .txt"
            )
        if name.startswith("file:"):
            return UnknownTaskError(
                f"{name} is the id of a task file, not its path", "give the path of the file"
            )
        entries = list(self._shelf("builtin"))
        if checkout.known(self.kernelbench_dir) is not None:
            entries += self._shelf("kernelbench")
        if path.parent.is_dir():
            siblings = sorted(path.parent.glob("*.py"))
            entries += [Entry(str(file), 0, file.name) for file in siblings]
        return unknown(name, entries)


def _read(entry: Entry) -> FoundTask:
    source = with_random_weights(entry.read(), entry.where)
    check(source, entry.where)
    source, sizes = of_file(source, entry.where)
    return FoundTask(entry, source, {}, sizes)


def _sizes(found: Sequence[FoundTask], given: Sequence[Size], where: str) -> list[tuple[Size, ...]]:
    """Return the sizes of each task: those given that it has the constants of, or else its own."""
    known = [constants(each.source, each.entry.where) for each in found] if given else []
    for size in given:
        if not any(size.constants.keys() <= names.keys() for names in known):
            distribute([each.source for each in found], size.constants, where)  # which says what none has
            raise UsageError(f"none of {where} has all constants of the size {size}", "give fewer of them")
    own = [tuple(size for size in given if size.constants.keys() <= names.keys()) for names in known]
    return [sizes or each.sizes for each, sizes in zip(found, own or [()] * len(found), strict=True)]


def _task(found: FoundTask, overrides: dict[str, str], precision: Precision, sizes: tuple[Size, ...]) -> Task:
    where = found.entry.where
    source = apply(found.source, overrides, where)
    if workload := ordered(sizes, source, where):
        written = constants(source, where)
        first = {name: value for name, value in workload[0].constants.items() if written[name] != value}
        source, overrides = apply(source, first, where), {**overrides, **first}
    return Task(
        id=found.entry.id,
        level=found.entry.level,
        source=source,
        overrides=overrides,
        precision=precision,
        workload=workload if len(workload) > 1 else (),
    )


def _two_tasks_of_one_id(first: Task, second: Task) -> UsageError:
    # Results are kept under the id, so that one of the two would overwrite the other.
    if first.overrides != second.overrides:
        return UsageError(
            f"{first.id} is named twice with different constants", "run them one after the other"
        )
    return TaskError(f"two different files have the id {first.id}", "rename one of the files")
