"""A model by its name on the command line, with its example inputs and constructor arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.inputs import names_of, parse
from kernelwright.kernelbench.modules.worker import named_module
from kernelwright.kernelbench.records import Size
from kernelwright.kernelbench.sources.sizes import from_size_words

if TYPE_CHECKING:
    from kernelwright.agent.whole_model.step import ModelStep


@dataclass(frozen=True)
class ModelName:
    """FILE.py:NAME, package.module:NAME or hf:NAME, as it is seen from `folder`.

    `sizes`: of named axes of its inputs, or what a batch is made from; none of a model with one size.
    """

    where: str
    name: str
    inputs: tuple[str, ...] = ()  # as --input has them
    init: tuple[str, ...] = ()  # as --init has them
    sizes: tuple[str, ...] = ()  # as --size has them
    folder: str = "."

    @classmethod
    def of(
        cls,
        text: str,
        inputs: Sequence[str] = (),
        init: Sequence[str] = (),
        sizes: Sequence[str] = (),
        folder: Path = Path(),
    ) -> ModelName:
        """Return the model of a name. Raises UsageError for what is none, before anything is imported."""
        found = named_module(text)
        if found is None:
            raise UsageError(f"{text} names no model", "give FILE.py:NAME, package.module:NAME or hf:NAME")
        where, name = found
        if where.endswith(".py") and not (folder / where).is_file():
            raise UsageError(f"there is no file {where}", "check the path")
        axes = names_of(parse(inputs))
        found_sizes = from_size_words(sizes)
        if inputs and found_sizes and not axes:
            raise UsageError(
                f"no --input has the axis {next(iter(found_sizes[0].constants))}",
                "name it there, as in --input input_ids=batch,length:int64<32000",
            )
        _check_sizes(found_sizes, axes)
        return cls(where, name, tuple(inputs), tuple(init), tuple(sizes), str(folder.resolve()))

    def __str__(self) -> str:
        return f"{self.where}:{self.name}"

    @property
    def words(self) -> tuple[str, ...]:
        """The options that it was named with."""
        given = {"--input": self.inputs, "--init": self.init, "--size": self.sizes}
        return tuple(f"{option} {each}" for option, words in given.items() for each in words)

    @property
    def workload(self) -> tuple[Size, ...]:
        """The sizes of its step, those that are shown to a coder first; one that sets nothing by default."""
        found = sorted(from_size_words(self.sizes), key=lambda size: size.hidden)
        return tuple(found) or (Size(constants={}),)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ModelName:
        several = {name: tuple(found[name]) for name in ("inputs", "init", "sizes")}
        return cls(**{**found, **several})

    def steps(self, trains: bool) -> Callable[[Mapping[str, int]], ModelStep]:
        """Import and build the model, from its folder; return its step at given sizes.

        Raises UsageError, MissingPrerequisite; so does the function.
        """
        from kernelwright.agent.whole_model.step import ModelStep
        from kernelwright.kernelbench.modules.locating import draw, locate

        os.chdir(self.folder)
        specs = parse(self.inputs)
        made = locate(self.where, self.name, self.init, specs, Path(self.folder), builds=True)

        def at(sizes: Mapping[str, int]) -> ModelStep:
            given = draw(specs, sizes)
            return ModelStep.of(made, given.args, given.kwargs, trains, str(self), sizes)

        return at


def lengths(size: Size) -> dict[str, int]:
    """Return a size's constants as integers."""
    return {name: int(value) for name, value in size.constants.items()}


def _check_sizes(sizes: Sequence[Size], axes: Sequence[str]) -> None:
    """Raise UsageError for sizes that do not give each axis a length."""
    if axes and not sizes:
        raise UsageError(
            f"no size is given for {axes[0]} in --input",
            f"give those that count: --size {','.join(f'{axis}=8' for axis in axes)}",
        )
    for size in sizes:
        for name, value in size.constants.items():
            if not value.isdecimal() or not int(value):
                raise UsageError(f"{name} is {value}, which is no length", f"give --size {name}=8, say")
        if other := size.constants.keys() ^ (set(axes) or sizes[0].constants.keys()):
            name = sorted(other)[0]
            what = "is no axis of an --input" if name in size.constants else f"has no length in --size {size}"
            raise UsageError(f"{name} {what}", "give each size all named axes, and no others")
    if all(size.hidden for size in sizes) and sizes:
        raise UsageError("all sizes are hidden", "leave one visible, for the coder to write for")
    known = [size.constants for size in sizes]
    if twice := next((size for size in sizes if known.count(size.constants) > 1), None):
        raise UsageError(f"--size {twice} is given twice", "leave one out and add up their weights")
