"""A model by its name on the command line, with its example inputs and constructor arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.inputs import parse
from kernelwright.kernelbench.modules.worker import named_module

if TYPE_CHECKING:
    from kernelwright.agent.whole_model.step import ModelStep


@dataclass(frozen=True)
class ModelName:
    """FILE.py:NAME, package.module:NAME or hf:NAME, as it is seen from `folder`."""

    where: str
    name: str
    inputs: tuple[str, ...] = ()  # as --input has them
    init: tuple[str, ...] = ()  # as --init has them
    folder: str = "."

    @classmethod
    def of(
        cls, text: str, inputs: Sequence[str] = (), init: Sequence[str] = (), folder: Path = Path()
    ) -> ModelName:
        """Return the model of a name. Raises UsageError for what is none, before anything is imported."""
        found = named_module(text)
        if found is None:
            raise UsageError(f"{text} names no model", "give FILE.py:NAME, package.module:NAME or hf:NAME")
        where, name = found
        if where.endswith(".py") and not (folder / where).is_file():
            raise UsageError(f"there is no file {where}", "check the path")
        parse(inputs)
        return cls(where, name, tuple(inputs), tuple(init), str(folder.resolve()))

    def __str__(self) -> str:
        return f"{self.where}:{self.name}"

    @property
    def words(self) -> tuple[str, ...]:
        """The options that it was named with."""
        return (*(f"--input {each}" for each in self.inputs), *(f"--init {each}" for each in self.init))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ModelName:
        return cls(**{**found, "inputs": tuple(found["inputs"]), "init": tuple(found["init"])})

    def step(self, trains: bool) -> ModelStep:
        """Import and build the model, from its folder. Raises UsageError, MissingPrerequisite."""
        from kernelwright.agent.whole_model.step import ModelStep
        from kernelwright.kernelbench.modules.locating import draw, locate

        os.chdir(self.folder)
        specs = parse(self.inputs)
        given = draw(specs)
        made = locate(self.where, self.name, self.init, specs, Path(self.folder), builds=True)
        return ModelStep.of(made, given.args, given.kwargs, trains, str(self))
