"""One kernel of a package: its envelope, its operators, and the reference that computes everywhere else."""

import copy
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from .backward import BackwardCode
from .envelope import Argument, check_of
from .loaded import Loaded, holder_of
from .operators import (
    Compute,
    Gradients,
    counted,
    define,
    differentiable,
    existing,
    once_differentiable,
    only,
    trained_by,
    unseen,
)
from .parts import classes_of, stock_class
from .sizes import Limits, at, read
from .state import guarded, verified

_PRIMES = (3, 5, 7, 11)
_LOG = logging.getLogger(__name__.partition(".")[0])


class DropInKernel:
    """A function of the layer's inputs and its parameters, both in the order of `metadata.json`.

    `operator` is torch's; `check(*tensors)` tells whether a call is inside the envelope. Inside it a call
    runs the kernel, outside the reference, which is logged once for each reason.
    """

    def __init__(self, words: Mapping[str, Any], module: str, namespace: str, here: str) -> None:
        """Load a kernel described by `words` of metadata.json from the package `module`.

        `here`: the reason it cannot run here at all.
        """
        self.words = words
        self.key = self._module = module
        self.name: str = words["name"]
        self.layers: dict[str, dict[str, str]] = words[
            "layers"
        ]  # classes that it stands in for, see names_in
        self.functions: list[str] = words["functions"]  # that it stands in for, as module.name
        self.constants: dict[str, Any] = words["constants"]  # that these are called with, beside tensors
        self.parameters: list[str] = words["parameters"]  # names in the reference
        self.inputs = [Argument.read(each) for each in words["inputs"]]
        self.weights = [Argument.read(each) for each in words["weights"]]
        self.outputs = [Argument.read(each) for each in words["outputs"]]
        # It computes a function of a layer's output, with the layer's weights: see `deferred`.
        self.of_output = bool(self.layers and self.functions and self.parameters)
        self.why_not_here = here
        self.trainable: bool = bool(words["backward"])
        of = words["backward"]["of"] if self.trainable else ()
        self.at_once = self.trainable and words["backward"]["way"] == "unit"  # forward and all gradients
        self.differentiated = [each.name in of for each in self.arguments]  # those whose gradients it has
        self.rows: list[int] = words["rows"]  # dimensions along which it can be split, see `sharding`
        self.under_autocast: bool = words["under_autocast"]  # which leaves the reference as it is
        self.limits: Limits = words["limits"]  # of free sizes: the least and the most of each
        self._fits = check_of(self.arguments, here, self.under_autocast, self.limits)
        has_all = all(has or not each.dtype.is_floating_point for each, has in self._with_gradients())
        self.check = self._fits if has_all else self._without_gradient
        with verified(), torch.random.fork_rng(devices=[]):
            self.reference = import_module(f"{module}.reference")
            self._model = self.reference.Model(*self.reference.get_init_inputs())
            for name, weight in zip(self.parameters, self.weights, strict=True):
                held, key = holder_of(self._model, name)
                held[key].data = held[key].data.to(weight.dtype)  # of the precision it was verified in
        self._slower = frozenset(words["slower"])  # modes in which it is not called, see `pays`
        self._said: set[str] = set()
        self._lock = threading.RLock()
        self.operator: Any = None
        self.training: Any = None  # the operator where a gradient is wanted, if that saves more
        if not here:
            with verified(), torch.random.fork_rng(devices=[]):
                self._define(words, module, f"{namespace}::{words['operator']}")

    def __deepcopy__(self, memo: object) -> "DropInKernel":
        return self  # a copied model computes by the same kernels

    def __reduce__(self) -> Any:
        return _known, tuple(self._module.rsplit(".", 1))

    @property
    def arguments(self) -> list[Argument]:
        return [*self.inputs, *self.weights]

    def other_sizes(self) -> dict[str, int]:
        """Return small free sizes, of which none is a multiple of another; none of a kernel for one size."""
        found = {}
        for size, (name, (least, most)) in zip(_PRIMES * len(self.limits), self.limits.items(), strict=False):
            found[name] = max(least, size if most is None else min(size, most))
        return found

    def names_in(self, layer: torch.nn.Module) -> list[str]:
        """Return the parameters' names in a layer, of which each class may have others."""
        kind = stock_class(layer)
        renamed = next((self.layers[each] for each in classes_of(kind) if each in self.layers), {})
        return [renamed.get(name, name) for name in self.parameters]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        fits, why = self.check(*tensors)
        if fits:
            return self.run(*tensors)
        made, why = self.by_parts(why, *tensors)
        if not why:
            return made
        if not torch.compiler.is_compiling():
            self.say(why)
        return self.by_reference(*tensors)

    def run(self, *tensors: torch.Tensor) -> Any:
        """Compute what `operator` does; it is called itself only if observed, since that takes time."""
        if not unseen():
            return self.operator(*tensors)
        if self.trainable and torch.is_grad_enabled():
            for each in tensors:
                if each.requires_grad:
                    return self._recorded(*tensors)
        return only(self._compute(*tensors))

    def _recorded(self, *tensors: torch.Tensor) -> Any:
        """Compute with autograd, which keeps no tensor that was made in inference mode."""
        for each in tensors:
            if each.is_inference():
                return self.by_reference(*tensors)
        return self._differentiable(*tensors)

    def pays(self, tensors: Sequence[torch.Tensor]) -> tuple[bool, str]:
        """Return True if the kernel was not measured to be slower in the current mode, else the reason."""
        if not self._slower:
            return True, ""
        wanted = (getattr(each, "requires_grad", False) for each in tensors)  # which are not all tensors
        trains = torch.is_grad_enabled() and any(wanted)
        mode = "training" if trains else "forward"
        if torch.compiler.is_compiling():
            mode += ", compiled"
        return (False, f"it was measured to be slower ({mode})") if mode in self._slower else (True, "")

    def by_parts(self, why: str, *tensors: torch.Tensor) -> tuple[Any, str]:
        """Run the kernel on this rank's parts of distributed tensors; return the result and "".

        `why`: the reason the whole call is outside the envelope. If this one is too, return None and the
        reason.
        """
        if self.why_not_here or not any(type(each).__name__ == "DTensor" for each in tensors):
            return None, why
        from . import sharding  # not every torch has what it imports

        if why := sharding.problem(tensors, self.inputs, self.rows):
            return None, why
        parts = sharding.parts(tensors, len(self.inputs))
        fits, why = self.check(*parts)
        return (
            (sharding.whole(self.run(*parts), tensors[0]), "") if fits else (None, f"this rank's part: {why}")
        )

    def _with_gradients(self) -> Iterator[tuple[Argument, bool]]:
        return zip(self.arguments, self.differentiated, strict=True)

    def _without_gradient(self, *tensors: torch.Tensor) -> tuple[bool, str]:
        """Check a kernel that lacks gradients: where autograd records, these would silently be lost."""
        if torch.is_grad_enabled():
            for each, has, argument in zip(tensors, self.differentiated, self.arguments, strict=False):
                if not has and getattr(each, "requires_grad", False):
                    return False, f"a gradient of {argument.name} is wanted, and the kernel has none"
        return self._fits(*tensors)

    def by_reference(self, *tensors: torch.Tensor) -> Any:
        """Compute the reference with torch's own autograd, for any shapes that it takes."""
        if torch.compiler.is_compiling():
            return self._by_reference(*tensors)
        with self._lock:  # threads must not compute with each other's weights
            return self._by_reference(*tensors)

    def _by_reference(self, *tensors: torch.Tensor) -> Any:
        count = len(self.inputs)
        weights = dict(zip(self.parameters, tensors[count:], strict=True))
        return torch.func.functional_call(self._model, weights, tensors[:count])

    def stock(self) -> torch.nn.Module:
        """Return the reference as a layer of a model."""
        return copy.deepcopy(self._model)

    def say(self, why: str) -> None:
        """Log, once, why the reference computes."""
        if why not in self._said:
            self._said.add(why)
            _LOG.warning("%s: the reference computes, because %s", self.name, why)

    def _define(self, words: Mapping[str, Any], module: str, name: str) -> None:
        """Define the operators, unless another copy of the package has, and load the code that they call."""
        known = existing(name)
        self._compute, traced = self._loaded(f"{module}.kernel")
        self.operator = known or define(
            name, self.arguments, self.outputs, self._compute, limits=self.limits, traced=traced
        )

        def flops(*given: Any) -> int:
            return int(at(words["flops"], read(self.arguments, given)))

        counted(name, flops)
        if not (backward := words["backward"]):
            return
        compute = BackwardCode(module, backward)
        wanted = [each.packed() for each, has in self._with_gradients() if has]
        saves = [Argument.read(each) for each in backward["saves"]]
        forms = {each.name: each for each in (*self.arguments, *self.outputs, *saves)}
        uses = [forms[use] for use in backward["uses"]]
        grads = [each.packed() for each in self.outputs if each.dtype.is_floating_point]
        operator = existing(f"{name}_backward") or define(
            f"{name}_backward", [*grads, *uses], wanted, compute, True, self.limits, compute.traced
        )
        gradients = Gradients(
            operator, compute, uses, self.arguments, self.differentiated, self.outputs, saves
        )
        forward = self._compute
        if saves:
            forward, traced = self._loaded(f"{module}.training")
        self._differentiable = differentiable(forward, gradients, len(self.outputs))
        if known is None:
            once_differentiable(f"{name}_backward")
            if saves:
                training = define(
                    f"{name}_training",
                    self.arguments,
                    [*self.outputs, *saves],
                    forward,
                    limits=self.limits,
                    traced=traced,
                )
                gradients.register(f"{name}_training")
                trained_by(name, training, len(self.outputs))
            else:
                gradients.register(name)
        self.training = existing(f"{name}_training")
        counted(f"{name}_training", flops)
        takes = [*grads, *uses]
        counted(f"{name}_backward", lambda *given: compute.flops(given[-1], read(takes, given)))

    def _loaded(self, module: str) -> tuple[Compute, Compute | None]:
        """Return a file's kernel, and how a compiler sees it, if it does."""
        loaded = Loaded(import_module(module), self.parameters, len(self.inputs))
        return guarded(loaded) if self.under_autocast else loaded, loaded.traced


def _known(package: str, name: str) -> DropInKernel:
    """Return the kernel of a package, for unpickling."""
    found: DropInKernel = import_module(package).KERNELS[name]
    return found
