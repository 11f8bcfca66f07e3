"""A kernel and its backward as operators of torch: autograd, torch.compile and export see through them.

Defined by `torch.library.Library`, whose path costs a few µs a call; `torch.library.custom_op` costs tens.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from .envelope import Argument

Tensors: TypeAlias = tuple[torch.Tensor, ...]
Compute: TypeAlias = Callable[..., Tensors]
_LIBRARIES: dict[str, torch.library.Library] = {}


def existing(name: str) -> Any | None:
    """The operator of this name, where another copy of its package has defined it."""
    namespace, _, function = name.partition("::")
    found = getattr(getattr(torch.ops, namespace), function, None)
    return found.default if found is not None else None


def define(name: str, takes: int, outputs: Sequence[Argument], compute: Compute) -> Any:
    """The new operator `namespace::function` of so many tensors, on the CPU.

    `name`: holds a hash of what it computes, so that one name is never two things. `compute` returns as many
    fresh tensors as there are `outputs`.
    """
    namespace, _, function = name.partition("::")
    library = _LIBRARIES.setdefault(namespace, torch.library.Library(namespace, "FRAGMENT"))
    one = len(outputs) == 1
    given = ", ".join(f"Tensor a{place}" for place in range(takes))
    returned = "Tensor" if one else f"({', '.join('Tensor' for _ in outputs)})"
    library.define(f"{function}({given}) -> {returned}", tags=torch.Tag.pt2_compliant_tag)
    library.impl(function, (lambda *tensors: compute(*tensors)[0]) if one else compute, "CPU")

    def fake(*tensors: torch.Tensor) -> Any:
        made = tuple(tensors[0].new_empty_strided(o.shape, o.strides, dtype=o.dtype) for o in outputs)
        return made[0] if one else made

    torch.library.register_fake(name, fake, lib=library)
    return existing(name)


def differentiate(
    name: str, backward: Any, uses: Sequence[str], inputs: Sequence[Argument], outputs: Sequence[Argument]
) -> None:
    """Have autograd call the operator `backward` for gradients of `name`.

    `uses`: what it takes after the outputs' gradients, by name: inputs and outputs. It returns a gradient
    for each floating input, in order. Gradients come in however autograd has them and are made contiguous.
    """
    library = _LIBRARIES[name.partition("::")[0]]
    named = {each.name: place for place, each in enumerate(inputs)}
    made = {each.name: place for place, each in enumerate(outputs)}
    floating = [each.dtype.is_floating_point for each in inputs]
    strides = [each for each in outputs if each.dtype.is_floating_point]

    def keep(ctx: Any, inputs: Tensors, output: Any) -> None:
        given = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*(inputs[named[u]] if u in named else given[made[u]] for u in uses))
        ctx.mark_non_differentiable(*(tensor for tensor in given if not tensor.dtype.is_floating_point))

    def gradients(ctx: Any, *grads: torch.Tensor) -> Any:
        wanted = [grad.contiguous() for grad in grads if grad.dtype.is_floating_point]
        assert len(wanted) == len(strides)
        found = backward(*wanted, *ctx.saved_tensors)
        left = iter(found if isinstance(found, tuple) else (found,))
        return tuple(next(left) if each else None for each in floating)

    torch.library.register_autograd(name, gradients, setup_context=keep, lib=library)


def once_differentiable(name: str) -> None:
    """A gradient of the gradient is an error, not a zero."""

    def twice(ctx: Any, *grads: torch.Tensor) -> Any:
        raise NotImplementedError(f"{name} has no second derivative; take the drop-in out with remove(model)")

    torch.library.register_autograd(name, twice, lib=_LIBRARIES[name.partition("::")[0]])
