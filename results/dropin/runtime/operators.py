"""A kernel and its backward as operators of torch: autograd, torch.compile and export see through them.

An operator with autograd costs a call tens of µs. So where nothing observes operators (no compiler, mode,
transform or profiler: `unseen`) the kernels are called without them, see `differentiable`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from .envelope import Argument
from .state import guarded

Tensors: TypeAlias = tuple[torch.Tensor, ...]
Compute: TypeAlias = Callable[..., Tensors]
_LIBRARIES: dict[str, torch.library.Library] = {}


def existing(name: str) -> Any | None:
    """Return the operator of this name if another copy of its package has defined it."""
    namespace, _, function = name.partition("::")
    found = getattr(getattr(torch.ops, namespace), function, None)
    return found.default if found is not None else None


def define(name: str, takes: Sequence[Argument], outputs: Sequence[Argument], compute: Compute) -> Any:
    """Define the operator `namespace::function` of such tensors, on the CPU.

    `name`: contains a hash of what it computes, so that a name is never reused. `compute` returns as many
    tensors as there are `outputs`; those that alias others are copied. The operator raises ValueError for
    tensors of another shape or dtype, and copies those with other strides.
    """
    namespace, _, function = name.partition("::")
    library = _LIBRARIES.setdefault(namespace, torch.library.Library(namespace, "FRAGMENT"))
    one = len(outputs) == 1
    given = ", ".join(f"Tensor a{place}" for place in range(len(takes)))
    returned = "Tensor" if one else f"({', '.join('Tensor' for _ in outputs)})"
    library.define(f"{function}({given}) -> {returned}", tags=torch.Tag.pt2_compliant_tag)
    compute = guarded(compute)

    def called(*tensors: torch.Tensor) -> Any:
        tensors = tuple(form.conformed(each) for form, each in zip(takes, tensors, strict=True))
        return only(_apart(compute(*tensors), tensors))

    library.impl(function, called, "CPU")

    def fake(*tensors: torch.Tensor) -> Any:
        return only(tuple(tensors[0].new_empty_strided(o.shape, o.strides, dtype=o.dtype) for o in outputs))

    torch.library.register_fake(name, fake, lib=library)
    return existing(name)


def unseen() -> bool:
    """Return True if nothing observes operators now, so that their code may be called directly."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd._profiler_enabled()
    )


def _plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Return True if all are plain tensors; a gradient in transit from another rank is not."""
    for each in tensors:  # noqa: SIM110 - quicker than a generator
        if type(each) is not torch.Tensor:
            return False
    return True


class Gradients:
    """Autograd of a kernel: the tensors kept from a call, and the gradients computed from them."""

    def __init__(
        self,
        operator: Any,
        compute: Compute,
        uses: Sequence[Argument],
        inputs: Sequence[Argument],
        outputs: Sequence[Argument],
        saves: Sequence[Argument] = (),
    ) -> None:
        """Create the autograd of `operator`, the backward, which calls `compute`.

        `uses`: its arguments after the outputs' gradients: inputs, outputs and what the forward `saves` after
        those, by their names. It returns a gradient for each floating input, in order.
        """
        self._operator, self._compute = operator, guarded(compute)
        self._inputs, self._outputs, self._saves = len(inputs), outputs, len(saves)
        places = {each.name: place for place, each in enumerate((*inputs, *outputs, *saves))}
        self._uses, self._forms = [places[use.name] for use in uses], uses
        self._floating = [each.dtype.is_floating_point for each in inputs]
        self._all_floating = all(each.dtype.is_floating_point for each in outputs)

    def keep(self, ctx: Any, inputs: Tensors, output: Any) -> None:
        given = (*inputs, *(output if isinstance(output, tuple) else (output,)))
        ctx.save_for_backward(*(given[place] for place in self._uses))
        if self._saves or not self._all_floating:
            made = given[self._inputs : len(given) - self._saves]
            saved = given[len(given) - self._saves :]
            ctx.mark_non_differentiable(*(m for m in made if not m.dtype.is_floating_point), *saved)
        if self._saves:  # of which there would be zeros
            ctx.set_materialize_grads(False)

    def of(self, ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Compute the gradients; incoming ones are made contiguous."""
        wanted = []
        for grad, output in zip(grads, self._outputs, strict=False):
            if output.dtype.is_floating_point:
                if grad is None:
                    grad = ctx.saved_tensors[0].new_zeros(output.shape, dtype=output.dtype)
                wanted.append(grad.resolve_neg().contiguous())
        saved = ctx.saved_tensors  # through hooks, which may have laid them out again
        given = (*wanted, *(form.conformed(each) for form, each in zip(self._forms, saved, strict=True)))
        if torch.is_grad_enabled() or not unseen() or not _plain(wanted):
            found = self._operator(*given)
        else:
            found = self._compute(*given)
        left = iter(found if isinstance(found, tuple) else (found,))
        return tuple(next(left) if each else None for each in self._floating)

    def register(self, name: str) -> None:
        """Register this autograd for the operator `name`."""
        library = _LIBRARIES[name.partition("::")[0]]
        torch.library.register_autograd(name, self.of, setup_context=self.keep, lib=library)


def differentiable(compute: Compute, gradients: Gradients, returned: int) -> Callable[..., Any]:
    """Return `compute` with autograd, for `unseen` calls; it returns the first `returned` tensors."""

    class KernelFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> Any:
            made = compute(*tensors)
            gradients.keep(ctx, tensors, made)
            return only(made[:returned])

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return gradients.of(ctx, *grads)

    # Past what torch does for transforms, of which there are none.
    return super(torch.autograd.Function, KernelFunction).apply


def trained_by(name: str, training: Any, returned: int) -> None:
    """Make the operator `name` return the first outputs of `training` where a gradient is wanted."""
    operator: Any = existing(name)

    def of(*tensors: torch.Tensor) -> Any:
        if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
            return only(training(*tensors)[:returned])
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*tensors)

    _LIBRARIES[name.partition("::")[0]].impl(name.partition("::")[2], of, "Autograd")


def _apart(made: Tensors, given: Tensors) -> Tensors:
    """Return each tensor with memory of its own, as operators promise: a gradient may alias another."""
    seen = {each.untyped_storage().data_ptr() for each in given}
    found = []
    for each in made:
        place = each.untyped_storage().data_ptr()
        found.append(each.clone(memory_format=torch.contiguous_format) if place in seen else each)
        seen.add(place)
    return tuple(found)


def only(made: Tensors) -> Any:
    """Return the single element of a tuple of one, else the tuple."""
    return made[0] if len(made) == 1 else made


def once_differentiable(name: str) -> None:
    """Make a gradient of the gradient an error, not a zero."""

    def twice(ctx: Any, *grads: torch.Tensor) -> Any:
        raise NotImplementedError(f"{name} has no second derivative; remove the drop-in with remove(model)")

    torch.library.register_autograd(name, twice, lib=_LIBRARIES[name.partition("::")[0]])
