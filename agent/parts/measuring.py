"""Measurement of a reference's submodules, and the files of the parts that are chosen. Runs the task's code.

A part is taken only if the whole with the part's own `Model` in its places gives what the reference gives.
"""

import hashlib
import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import truediv
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.agent.builtin.frontend.export import quoted
from kernelwright.agent.builtin.frontend.submodules import (
    NestedCalls,
    SubmoduleCall,
    called_through,
    described,
)
from kernelwright.agent.builtin.frontend.trace import is_literal
from kernelwright.agent.builtin.ir.graph import Meta
from kernelwright.agent.builtin.ir.names import attribute
from kernelwright.agent.builtin.ir.untraceable import Untraceable
from kernelwright.agent.parts.assembly import PlacedPart, assembled
from kernelwright.agent.parts.choice import COVERED, ChosenPart, MeasuredSubmodule, Place, chosen
from kernelwright.agent.parts.construction import Constructions, NotWritten
from kernelwright.agent.parts.inputs import input_text
from kernelwright.agent.parts.task_file import PartModel, constructed, taken_out
from kernelwright.kernelbench.evaluator.reference.loading import (
    DTYPES,
    import_source,
    import_task,
    seed_device,
    to_device,
    to_precision,
)
from kernelwright.kernelbench.evaluator.reference.task_format import (
    constructor_inputs,
    for_device,
    inputs_of,
)

# Calls, of whose shares of the time the medians count, and the seconds that all of these take.
_LEAST_CALLS, _MOST_CALLS = 5, 100
_LEAST_S, _MOST_S = 1.0, 10.0


@dataclass
class _Seen:
    """A submodule as it is seen in calls of the whole."""

    calls: dict[str, SubmoduleCall] = field(default_factory=dict)  # by what is given
    refused: bool = False
    writes: bool = False  # into what it is given
    times: list[float] = field(default_factory=list)  # in each call of the whole


class Submodules:
    """The submodules of a task's reference."""

    def __init__(self, name: str, source: str, precision: str, device: str) -> None:
        """`name`: the task's id."""
        self.name, self.source, self.precision = name, source, precision
        self.device = torch.device(device)
        self.module = import_task(source, self.device, Path.cwd())
        self.given = self.module.get_init_inputs()
        self.init = constructor_inputs(self.given, self.module.Model)
        self.constructions = Constructions()
        self.seen: dict[str, _Seen] = {}
        self.nested = NestedCalls()
        self.refused: dict[str, str] = {}  # why submodules are no parts, by the first path
        with self.constructions.recorded():
            self.model = self.build(self.module.Model)
        self.inputs = [self.draw(seed) for seed in (0, 1)]

    def build(self, model: Any) -> nn.Module:
        """Construct the model of a class."""
        seed_device(0, self.device)
        return to_device(model(*self.init), self.precision, self.device)

    def draw(self, seed: int) -> list[Any]:
        """Return inputs of the reference, on its device."""
        seed_device(seed, self.device)
        inputs = inputs_of(self.module.get_inputs(), self.model)
        return pytree.tree_map(lambda leaf: to_precision(leaf, self.precision, self.device), inputs)

    def parts(self) -> list[dict[str, Any]]:
        """Return the parts that can be cut, the most expensive first: fields of `PartOf`, and the source.

        None where those that can be are not most of the whole.
        """
        for inputs in self.inputs:
            self._record(inputs)
        began = time.monotonic()
        for number in range(1, _MOST_CALLS + 1):
            self._time()
            took_s = time.monotonic() - began
            if took_s > _MOST_S or (number >= _LEAST_CALLS and took_s > _LEAST_S):
                break
        found: list[dict[str, Any]] = []
        for part in chosen(self._measured()):
            for cut in self._files(part):
                if not (why := self._difference([*found, cut])):
                    found.append(cut)
                    self.refused.pop(part.places[0][0], None)
                    break
                self.refused[part.places[0][0]] = why
        return found if sum(cut["share"] for cut in found) >= COVERED else []

    # What is called, and how long it takes.

    def _record(self, inputs: Sequence[Any]) -> None:
        model = self.model

        def call(path: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            seen = self.seen.setdefault(path, _Seen())
            made, writes = self.nested.carry_out(path, original, args, kwargs)
            seen.writes |= writes
            try:
                one = SubmoduleCall(path, quoted(path, model), described((args, kwargs)), described(made))
                known = seen.calls.setdefault(repr(one.given), one)
                seen.refused |= known.made != one.made or not _fits(one)
            except Untraceable:
                seen.refused = True
            return made

        self._call(model, call, inputs)

    def _time(self) -> None:
        marks: dict[str, list[tuple[Any, Any]]] = {}

        def call(path: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            begin = self._mark()
            made = original(*args, **kwargs)
            marks.setdefault(path, []).append((begin, self._mark()))
            return made

        self._call(self.model, call, self.inputs[0])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for path, pairs in marks.items():
            self.seen[path].times.append(sum(self._seconds(*pair) for pair in pairs))

    def _call(self, model: nn.Module, function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        seed_device(0, self.device)
        with torch.no_grad(), called_through(dict(model.named_modules()), function):
            return model(*_cloned(inputs))

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) / 1000 if self.device.type == "cuda" else end - begin

    def _measured(self) -> dict[str, MeasuredSubmodule]:
        modules, whole = dict(self.model.named_modules()), self.seen[""].times

        def share(seen: _Seen) -> float:
            return statistics.median(map(truediv, seen.times, whole)) if seen.times else 0.0

        return {
            path: MeasuredSubmodule(
                seconds=share(seen) * min(whole),
                kind=_kind(modules[path], seen),
                fits=not seen.refused and len(seen.calls) == 1,
                calls=tuple(self.nested.within.get(path, ())),
                writes=seen.writes,
                is_chain=type(modules[path]).forward is nn.Sequential.forward,
                is_library=path not in self.nested.within
                and type(modules[path]).__module__.startswith("torch."),
            )
            for path, seen in self.seen.items()
        }

    # The files.

    def _files(self, part: ChosenPart) -> Iterator[dict[str, Any]]:
        """Yield the part with its file: constructed by itself, and taken out of the whole."""
        first = part.places[0]
        (call,) = self.seen[first[0]].calls.values()
        arguments = self._arguments(first[0], call)
        inputs = self._inputs(first[0])
        if inputs is None:
            return
        args, kwargs = call.given
        words = call.text[len(attribute(call.name)) :]
        for model in self._models(first):
            yield {
                "places": part.places,
                "share": part.share,
                "is_plain": not kwargs and all(isinstance(value, Meta) for value in args),
                "source": model.source(self._title(part), arguments, words, inputs),
            }

    def _models(self, place: Place) -> Iterator[PartModel]:
        with suppress(NotWritten):
            names: set[str] = set()
            words = [self.constructions.text(self.model.get_submodule(path), names) for path in place]
            text = words[0] if len(words) == 1 else f"torch.nn.Sequential({', '.join(words)})"
            yield constructed(self.source, text, names)
        literals = [repr(value) for value in self.init] if all(map(is_literal, self.init)) else None
        if literals is None and list(self.given) != list(self.init):
            return
        owner, _, name = place[0].rpartition(".")
        if len(place) == 1:
            access = attribute(quoted(place[0], self.model))
        else:
            begin = list(self.model.get_submodule(owner)._modules).index(name)
            access = f"{attribute(quoted(owner, self.model))}[{begin}:{begin + len(place)}]"
        yield taken_out(self.source, literals, access.removeprefix("self"))

    def _title(self, part: ChosenPart) -> str:
        first, *others = part.places[0]
        what = f"Submodule `{first}`" if not others else f"Submodules `{first}` to `{others[-1]}`"
        places = f" and {len(part.places) - 1} equal to it" if len(part.places) > 1 else ""
        return f"{what} of {self.name}{places}: {part.share:.0%} of the whole's time in eager."

    def _arguments(self, path: str, call: SubmoduleCall) -> list[str]:
        """Return names for the tensors that a submodule is called with."""
        args, kwargs = call.given
        names = [f"x{number}" for number in range(len(args))]
        with suppress(TypeError, ValueError):
            known = list(inspect.signature(self.model.get_submodule(path).forward).parameters.values())
            plain = [each.name for each in known if each.kind is each.POSITIONAL_OR_KEYWORD]
            names = plain[: len(args)] if len(plain) >= len(args) else names
        pairs = [*zip(names, args, strict=True), *kwargs.items()]
        found = [name for name, value in pairs if isinstance(value, Meta)]
        return ["x"] if found == ["input"] else found

    def _inputs(self, path: str) -> list[str] | None:
        """Return the texts of tensors like those that a submodule is given; None if there are none such."""
        taken: list[list[Tensor]] = []

        def call(found: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if found == path and not taken:
                taken.append([value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)])
                taken[0] = [value.detach().clone() for value in taken[0]]
            return original(*args, **kwargs)

        self._call(self.model, call, self.inputs[0])
        (built,) = self.seen[path].calls.values()
        args, kwargs = built.given
        metas = [value for value in (*args, *kwargs.values()) if isinstance(value, Meta)]
        own = DTYPES[self.precision] is None
        texts = [input_text(value, meta, own) for value, meta in zip(taken[0], metas, strict=True)]
        return None if None in texts else [text for text in texts if text is not None]

    # Whether it is the same.

    def _difference(self, cuts: Sequence[Mapping[str, Any]]) -> str:
        """Return how the whole, put together from these parts' own models, differs from itself; "" if not."""
        parts = [
            PlacedPart(
                cut["places"], cut["is_plain"], cut["source"].replace("class Model(", "class ModelNew(")
            )
            for cut in cuts
        ]
        try:
            text, left = assembled(self.source, parts)
            if left:
                return next(iter(left.values()))
            name = f"assembled_{hashlib.sha256(text.encode()).hexdigest()}"
            module = import_source(for_device(text, self.device), name, Path.cwd())
            ours = self.build(module.ModelNew)
            ours.load_state_dict(dict(self.build(self.module.Model).state_dict()))
            for seed, inputs in enumerate(self.inputs):
                results = []
                for model in (self.build(self.module.Model), ours):
                    seed_device(seed, self.device)
                    with torch.no_grad():
                        results.append(pytree.tree_leaves(model(*_cloned(inputs))))
                torch.testing.assert_close(results[1], results[0], equal_nan=True)
        except Exception as error:  # noqa: BLE001 - the task's code may raise anything
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return ""


def _fits(call: SubmoduleCall) -> bool:
    """Return True if it is given tensors and constants, and makes tensors."""
    _ = call.text  # raises Untraceable for what cannot be written
    args, kwargs = call.given
    values = [*args, *kwargs.values()]
    flat = all(value is None or isinstance(value, Meta | int | float | str) for value in values)
    made = list(call.made) if type(call.made) in (tuple, list) else [call.made]
    given = any(isinstance(value, Meta) for value in values)
    return flat and given and bool(made) and all(isinstance(value, Meta) for value in made)


def _kind(module: nn.Module, seen: _Seen) -> str:
    settings = [
        (name, type(each).__qualname__, {k: v for k, v in vars(each).items() if not k.startswith("_")})
        for name, each in module.named_modules()
    ]
    weights = [(name, value.shape, value.dtype) for name, value in module.state_dict().items()]
    return f"{settings}{weights}{sorted(seen.calls)}"


def _cloned(inputs: Sequence[Any]) -> Any:
    return pytree.tree_map_only(Tensor, torch.clone, list(inputs))
