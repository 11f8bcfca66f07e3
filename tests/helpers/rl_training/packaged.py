"""The package that `kernelwright train environment` writes, imported from where it was written."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from kernelwright.rl_training.environment.task_data import TaskData
from kernelwright.rl_training.other_trainers.folder import PACKAGE, EnvironmentSettings, write
from kernelwright.rl_training.tasks import Tasks
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import WORK, builtin_task


def tasks(
    train: tuple[str, ...] = ("level1/relu", "level1/softmax"), test: tuple[str, ...] = ("level1/gelu",)
) -> Tasks:
    def data(name: str) -> TaskData:
        return TaskData(task=builtin_task(name), language="cpp", target=run_factory.TARGET, work=WORK)

    return Tasks(train=tuple(data(name) for name in train), test=tuple(data(name) for name in test))


class WrittenPackage:
    """A package in `folder`; `module("client")` imports a module of it, as a trainer would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{PACKAGE}.{name}")


@contextmanager
def written(folder: Path, server: str, turns: int = 1, scheme: str = "kevin") -> Iterator[WrittenPackage]:
    """A package for a server, on Python's path until the end."""
    write(
        folder, tasks(), EnvironmentSettings(server=server, scheme=scheme, turns=turns), "kernelwright train"
    )
    sys.path.insert(0, str(folder))
    try:
        yield WrittenPackage(folder)
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
