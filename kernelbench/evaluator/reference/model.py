"""A task's reference as one function of its inputs: the same in every run, in its precision and in float64.

A reference may draw random numbers, write to its inputs or keep buffers. Each run begins with the model's
state as it was constructed and with inputs of its own, and the float64 run gets the random numbers that the
run in the task's own precision drew. What still is no function of its inputs, or is lost in its own rounding
errors, is no task: `TaskFault` says why.
"""

import contextlib
import functools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.evaluator.memory.layout import DTYPES, TensorLayout
from kernelwright.kernelbench.evaluator.reference import slices
from kernelwright.kernelbench.evaluator.reference.agreement import OFF, double, same, share_off
from kernelwright.kernelbench.evaluator.reference.disturbances import (
    Factors,
    MovedCasts,
    alike,
    is_cast_to_compute,
    rounding,
    times,
)
from kernelwright.kernelbench.evaluator.reference.draws import FastDraws
from kernelwright.kernelbench.evaluator.reference.float64 import (
    Exact,
    RecordedDraws,
    ReplayFailed,
    remember,
    widened,
)
from kernelwright.kernelbench.evaluator.reference.loading import (
    constructor_seed,
    import_task,
    lazy_module,
    seed_device,
    to_device,
    to_precision,
)
from kernelwright.kernelbench.evaluator.reference.operators import FlopCounter
from kernelwright.kernelbench.evaluator.reference.outputs import flattened
from kernelwright.kernelbench.evaluator.reference.rounded import RoundedProducts
from kernelwright.kernelbench.evaluator.reference.state import State, copied, identical, map_plain_tensors
from kernelwright.kernelbench.evaluator.reference.task_format import (
    TaskFault,
    constants_of,
    constructor_inputs,
    described,
    filled,
    inputs_of,
)
from kernelwright.kernelbench.evaluator.reference.weights import is_frozen, possible_weights, vary
from kernelwright.kernelbench.evaluator.refusal import NO_MEMORY

_MANY = 0.1  # of an output's elements, that are off so far
_SOON_S = 5.0  # a call; a float64 one may take many times as long


class Twin:
    """A model and the state that each of its runs begins with."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.state = model, State(model)


class Reference:
    """Reference of a task, which can be run on inputs.

    `mutated`: the inputs that forward writes to. `refilled`: whether it adds to, or takes from, a list or
    dict that it is given. `changed`: names of the state that a call changes.

    `kept`: outputs that are memory of the model's, which the next call overwrites. `overlap`: of each output,
    whether elements share memory. Raises TaskFault.
    """

    def __init__(
        self, source: str, precision: str, seed: int, vary_weights: bool, device: torch.device
    ) -> None:
        self.precision, self.seed, self.device = precision, seed, device
        with at("import"):
            self.module = import_task(source, device, Path.cwd())
        with at("get_init_inputs()"):
            seed_device(seed, device)
            given = self.module.get_init_inputs()
        self.init = constructor_inputs(given, self.module.Model)
        model = self._constructed(seed)
        self.drawn = {name: value.cpu().clone() for name, value in model.state_dict().items()}
        self.weights = [name for name, _ in model.named_parameters()] + self._weight_buffers(model)
        if vary_weights:
            vary(model, self.weights)
        with at("a copy of Model"):
            self.own = Twin(model)
            self.exact = Twin(_in_float64(model))
        self._moved: list[tuple[Twin, list[torch.Tensor | None], MovedCasts]] = []
        leaves, self.spec = pytree.tree_flatten(self._draw(seed))
        kinds = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        needs = [is_tensor and leaf.requires_grad for is_tensor, leaf in zip(kinds, leaves, strict=True)]
        self.leaves = list(zip(kinds, constants_of(leaves), needs, strict=True))
        self.first = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for position, tensor in enumerate(self.first):
            _check_layout(tensor, f"input {position}")
        self.mutated: list[int] = list(range(len(self.first)))  # until it is known
        self.kept: list[int] = []
        self.random = True
        kept = [*self.first, *self.own.state.tensors()]
        self._casts = any(is_cast_to_compute(tensor) for tensor in kept)
        self.batch = 0  # of large calls that are made in slices of it; see `slices`
        self._learn()

    def _constructed(self, seed: int) -> nn.Module:
        with at(f"Model({described(self.init)})"):
            with constructor_seed(seed, self.device):
                model = self.module.Model(*self.init)
            if name := lazy_module(model):
                raise TaskFault(
                    f"has a lazy module, {name}, whose weights do not exist before the first call",
                    "give it its sizes in the constructor, or call it there once",
                )
            return to_device(model, self.precision, self.device)

    @property
    def model(self) -> nn.Module:
        return self.own.model

    def _weight_buffers(self, model: nn.Module) -> list[str]:
        """Names of buffers that are weights, where others are constants.

        The constructor draws them at random, or calls them weights and makes all ones or zeros, as
        FrozenBatchNorm2d does.
        """
        names = possible_weights(model)
        if not names:
            return names
        other = self._constructed(self.seed + 1).state_dict()
        return [
            name
            for name in names
            if is_frozen(name, self.drawn[name]) or not identical(other[name].cpu(), self.drawn[name])
        ]

    def _draw(self, seed: int, into: Sequence[torch.Tensor] = ()) -> list[Any]:
        seed_device(seed, self.device)
        with at("get_inputs()"), FastDraws(seed, into) if self.device.type == "cpu" else self.device:
            given = self.module.get_inputs()
        inputs = inputs_of(given, self.model)
        return list(pytree.tree_map(lambda value: to_precision(value, self.precision, self.device), inputs))

    def tensors(self, seed: int, into: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
        """Return the inputs that are tensors, drawn from a seed, perhaps into the memory of `into`."""
        leaves = pytree.tree_leaves(self._draw(seed, into))
        return [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def _learn(self) -> None:
        """Run it: the outputs' layout, the work, the effects. Raises TaskFault where it is no function."""
        others = _other_generators()
        given = [tensor.clone() for tensor in self.first]
        before = [tensor._version for tensor in given]
        seed_device(self.seed, self.device)
        begun = self._generator_state()
        started = time.perf_counter()
        arguments = self.arguments(given)
        whole = pytree.tree_leaves(arguments)
        with FlopCounter() as counter, RoundedProducts(None) as products:
            outputs = self._called(self.own, arguments)
        took_s = time.perf_counter() - started
        self.products = products.products  # of float32 operands
        self.random = not torch.equal(begun, self._generator_state())
        if others != _other_generators():
            raise TaskFault(
                "draws random numbers from Python's or NumPy's generator in forward",
                "draw them with torch, whose generator both sides get the same seed for",
            )
        left, spec = pytree.tree_flatten(arguments)
        self.refilled = spec != self.spec or any(a is not b for a, b in zip(left, whole, strict=True))
        # On a CPU torch rounds no operands to tf32.
        tf32 = self.precision == "tf32" and self.device.type == "cuda"
        self.flops = counter.by_precision(tf32)
        self.mutated = [
            i for i, t in enumerate(given) if t._version != before[i] or not identical(t, self.first[i])
        ]
        self.changed = self.own.state.changed()
        if names := self.own.state.changed_parameters():
            raise TaskFault(f"changes its parameter {names[0]} in forward", "return the new value instead")
        for position, output in enumerate(outputs):
            _check_layout(output, f"output {position}")
        if not any(output.numel() for output in outputs):
            raise TaskFault("gives nothing: no output of forward holds a number", "return the result from it")
        kept = {_storage(t) for t in self.own.state.tensors()} if self.changed else set()
        self.kept = [i for i, output in enumerate(outputs) if _storage(output) in kept]
        own = {_storage(given[i]) for i in range(len(given)) if i not in self.mutated}
        own |= {_storage(t) for t in (*self.model.parameters(), *self.model.buffers())} - kept
        self.views = [_storage(output) in own for output in outputs]
        given_back = {_storage(output) for output in outputs}
        self._lost = [i for i in self.mutated if _storage(given[i]) not in given_back]
        self.overlap = [_overlaps(output) for output in outputs]
        outputs = [output.clone() for output in outputs]
        self.outputs = [TensorLayout.of(output.contiguous()) for output in outputs]
        self._check_repeats(outputs)
        self.batch = self._independent_samples(outputs)
        if took_s < _SOON_S:  # else when a candidate is verified, which has more time
            self.check_precision(*self.both(self.first, self.seed))

    def _check_repeats(self, first: Sequence[torch.Tensor]) -> None:
        """Raise TaskFault if it shows in the outputs of later calls that the model has been called once."""
        others = self.tensors(self.seed + 1)
        other = self.run(self.own, others, self.seed, restored=False)
        again = self.run(self.own, self.first, self.seed, restored=False)
        if same(first, again) and (not self.changed or same(other, self.run(self.own, others, self.seed))):
            return
        if not same(first, self.run(self.own, self.first, self.seed)):
            raise TaskFault(
                "gives different outputs for the same inputs and the same seed",
                "make it a function of its inputs",
            )
        raise TaskFault(
            f"gives outputs that depend on earlier calls ({', '.join(self.changed[:4]) or 'its state'})",
            "make that an input and an output",
        )

    def _independent_samples(self, outputs: Sequence[torch.Tensor]) -> int:
        """Return the size of the batch if large calls on a GPU may be made in slices of it, else 0."""
        batch = slices.batch_of(outputs)
        size = sum(tensor.nbytes for tensor in (*self.first, *outputs))
        if not slices.wanted(self.device, size) or batch < 2:
            return 0
        if self.random or self.changed or self.mutated or self.refilled or self.kept:
            return 0
        try:
            found = self._in_slices(self.own, self.first, batch, lambda tensor: tensor)
        except TaskFault:  # it takes calls of that size alone
            return 0
        return batch if found is not None and same(outputs, found) else 0

    def _in_slices(
        self,
        twin: Twin,
        tensors: Sequence[torch.Tensor],
        batch: int,
        change: slices.Change,
        within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> list[torch.Tensor] | None:
        """Return the outputs for changed inputs, called `within` a context slice by slice."""
        twin.state.restore()

        def call(given: list[torch.Tensor]) -> list[torch.Tensor]:
            with within():
                return self._called(twin, self.arguments(given))

        return slices.called(call, tensors, batch, change)

    def _generator_state(self) -> torch.Tensor:
        return torch.cat([generator.get_state() for generator in self._generators()])

    def _generators(self) -> list[torch.Generator]:
        on_gpu = self.device.type == "cuda"
        return [
            torch.default_generator,
            *(torch.cuda.default_generators[self.device.index or 0 :][:1] * on_gpu),
        ]

    def arguments(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Arguments of forward, with `tensors` in their places."""
        arguments = pytree.tree_unflatten(filled(self.leaves, tensors), self.spec)
        assert isinstance(arguments, list)
        return arguments

    def run(
        self, twin: Twin, tensors: Sequence[torch.Tensor], seed: int | None, restored: bool = True
    ) -> list[torch.Tensor]:
        """Return the outputs for `tensors`, which stay as they are.

        `restored`: the model's state is what it was constructed with. Raises TaskFault.
        """
        if restored:
            twin.state.restore()
        given = [t.clone() if i in self.mutated else t for i, t in enumerate(tensors)]
        before = [t._version for t in tensors]
        if seed is not None:
            seed_device(seed, self.device)
        outputs = self._called(twin, self.arguments(given))
        if any(t._version != version for t, version in zip(tensors, before, strict=True)):
            raise TaskFault("changes its inputs for some values only", "return a new tensor")
        if (shapes := [tuple(o.shape) for o in outputs]) != [layout.shape for layout in self.outputs]:
            raise TaskFault(
                f"gives outputs whose shapes depend on the data: {shapes} after "
                f"{[layout.shape for layout in self.outputs]}",
                "pad them to a shape that the inputs' shapes decide",
            )
        return [output.clone() if i in self.kept else output for i, output in enumerate(outputs)]

    def _called(self, twin: Twin, arguments: list[Any]) -> list[torch.Tensor]:
        in_float64 = "forward in float64" if twin is self.__dict__.get("exact") else "forward"
        with at(f"{in_float64}({described(arguments)})"):
            outputs = flattened(twin.model(*arguments), self.device)
            return [output.detach().resolve_conj().resolve_neg() for output in outputs]

    def both(
        self,
        tensors: Sequence[torch.Tensor],
        seed: int | None,
        *watching: contextlib.AbstractContextManager[Any],
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return outputs in the task's own precision and in float64, with the same random numbers.

        `watching`: within which each of the two runs, if given. Raises TaskFault.
        """
        watch, watch_exact = watching or (contextlib.nullcontext(), contextlib.nullcontext())
        draws = RecordedDraws(self._generators())
        with draws, watch:  # from a generator of the task's own, too
            reference = self.run(self.own, tensors, seed)
        if self.batch and not watching:
            sliced = self._in_slices(self.exact, tensors, self.batch, widened, Exact)
            assert sliced is not None  # it has been tried
            return reference, [double(output) for output in sliced]
        try:
            with Exact(draws.taken), watch_exact:
                exact = self.run(self.exact, [widened(tensor) for tensor in tensors], seed)
        except ReplayFailed as failure:
            raise TaskFault(str(failure), "draw them in an order that no dtype decides") from None
        return reference, [double(output) for output in exact]

    def check_precision(self, reference: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> None:
        """Raise TaskFault where the reference's own error is a considerable part of what it computes."""
        for position, (mine, right) in enumerate(zip(reference, exact, strict=True)):
            share = share_off(mine, right)
            if share > _MANY:
                raise TaskFault(
                    f"differs from its own float64 result: of output {position}, {share:.0%} of the elements "
                    f"differ by more than {OFF:.0%} of their spread, so no error budget can tell right from "
                    "wrong",
                    "give it inputs on which it is well-conditioned, or a higher --precision",
                )

    def disturbed(
        self,
        count: int,
        tensors: Sequence[torch.Tensor],
        seed: int | None,
        fresh: bool = False,
        ulps: float | None = None,
    ) -> Iterator[list[torch.Tensor]]:
        """Yield outputs of `count` runs with weights and inputs moved by an ulp or so, or by up to `ulps`.

        Every call moves them alike, unless it is to be `fresh`, or is on a GPU, where drawing is quick and
        memory short. With `ulps` it is, and what is equal stays equal.
        """
        fresh = fresh or ulps is not None or self.device.type == "cuda"
        while not fresh and len(self._moved) < count:
            self._moved.append(self._disturbance(tensors))
        for number in range(count):
            if self.batch and ulps is None:
                moved_slice = lambda tensor: times(tensor, rounding(tensor), into=True)  # noqa: E731
                sliced = self._in_slices(Twin(self._moved_model(rounding)), tensors, self.batch, moved_slice)
                assert sliced is not None  # it has been tried
                yield sliced
                continue
            twin, factors, casts = self._disturbance(tensors, ulps) if fresh else self._moved[number]
            moved = [times(t, f, into=fresh) for t, f in zip(tensors, factors, strict=True)]
            del factors
            with casts if self._casts else contextlib.nullcontext():
                outputs = self.run(twin, moved, seed)
            yield outputs

    def coarse(self) -> bool:
        """Return True if what is moved by ulps is of a lower precision than fp32."""
        moved = [t for t in (*self.first, *self.model.parameters()) if t.is_floating_point()]
        return any(torch.finfo(t.dtype).bits == 16 for t in moved)

    def _disturbance(
        self, tensors: Sequence[torch.Tensor], ulps: float | None = None
    ) -> tuple[Twin, list[torch.Tensor | None], MovedCasts]:
        """Return a model with moved weights, factors for the inputs, and those for what is cast."""
        factors_of = rounding if ulps is None else functools.partial(alike, ulps=ulps)
        twin, factors = Twin(self._moved_model(factors_of)), [factors_of(tensor) for tensor in tensors]
        return twin, factors, MovedCasts(factors_of)

    def _moved_model(self, factors_of: Factors) -> nn.Module:
        self.own.state.restore()
        model = copied(self.model)
        with torch.no_grad():
            for parameter in model.parameters():
                factors = factors_of(parameter)
                if factors is not None:
                    parameter.mul_(factors)
        return model

    def varied(
        self, names: Sequence[str], tensors: Sequence[torch.Tensor], seed: int | None
    ) -> list[torch.Tensor]:
        """Return the outputs where these weights are varied once more."""
        self.own.state.restore()
        model = copied(self.model)
        vary(model, names, statistics=False)
        return self.run(Twin(model), tensors, seed)

    def unchecked(self) -> list[str]:
        """Sentences on effects of a call, besides its outputs, that no candidate is held to."""
        return [f"forward changes input {i} in place, which is not looked at" for i in self._lost]

    def effects(self) -> list[str]:
        """Sentences on effects of a call besides its outputs."""
        found = [f"forward changes input {position} in place" for position in self.mutated]
        found += ["forward changes a list or dict that it is given"] * self.refilled
        if self.changed:
            found.append(f"forward keeps state that no output depends on: {', '.join(self.changed[:4])}")
        return found + ["forward draws random numbers"] * self.random


@contextlib.contextmanager
def at(step: str) -> Iterator[None]:
    """Raise what the task's own code raises in the block as a TaskFault that names the step."""
    try:
        yield
    except (TaskFault, ReplayFailed, torch.OutOfMemoryError):
        raise
    except Exception as error:
        text = f"fails at {step}: {type(error).__name__}: {str(error)[:1500]}"
        raise TaskFault(text, _remedy(error)) from error


def _remedy(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return "a task is one file: put what it imports into it, or install it"
    if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
        return "reduce its sizes with --set"
    return "run its Model on its get_inputs() by hand and fix the task file"


def _in_float64(model: nn.Module) -> nn.Module:
    with at("copying Model, for a float64 run"):
        twin = copied(model).double()
    mine = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in (*twin.named_parameters(), *twin.named_buffers()):
        if tensor.is_floating_point():
            remember(tensor, mine[name].dtype)
    map_plain_tensors(twin, widened)
    return twin


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _overlaps(tensor: torch.Tensor) -> bool:
    """Return True if elements share memory, as those of an expanded tensor do."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return TensorLayout(kind, tuple(tensor.shape), tuple(tensor.stride())).overlaps


def _check_layout(tensor: torch.Tensor, what: str) -> None:
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise TaskFault(
            f"has for {what} a tensor that is not dense ({tensor.layout}, {kind})", "make it dense"
        )
    if kind not in DTYPES:
        raise TaskFault(f"has for {what} a tensor of {kind}", f"use one of {', '.join(DTYPES)}")


def _other_generators() -> Any:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), kind, np.asarray(keys).tobytes(), rest
