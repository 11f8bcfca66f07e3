"""A kernel and its backward as operators of torch: autograd, torch.compile and export see through them.

An operator with autograd costs a call tens of µs. So where nothing observes operators (no compiler, mode,
transform or profiler: `unseen`) the kernels are called without them, see `differentiable`.
"""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.compiler import is_compiling
from torch.export._trace import custom_triton_ops_decomposition_disabled
from torch.utils.flop_counter import flop_registry, register_flop_formula

from .device import KEY
from .envelope import Argument
from .sizes import Limits, beyond, read
from .state import guarded

if TYPE_CHECKING:
    from .backward import BackwardCode

_modes, _is_profiled = torch._C._len_torch_dispatch_stack, torch.autograd._profiler_enabled
_transforms = torch._C._are_functorch_transforms_active
Tensors: TypeAlias = tuple[torch.Tensor, ...]
Compute: TypeAlias = Callable[..., Tensors]
_TRACED = (FakeTensor, FunctionalTensor)  # tensors that stand for others while a graph is traced
_LIBRARIES: dict[str, torch.library.Library] = {}


def existing(name: str) -> Any | None:
    """Return the operator of this name if another copy of its package has defined it."""
    namespace, _, function = name.partition("::")
    found = getattr(getattr(torch.ops, namespace), function, None)
    return found.default if found is not None else None


def define(
    name: str,
    takes: Sequence[Argument],
    outputs: Sequence[Argument],
    compute: Callable[..., Any],
    masked: bool = False,
    limits: Limits | None = None,
    traced: Callable[..., Any] | None = None,
) -> Any:
    """Define the operator `namespace::function` of such tensors, on the package's device.

    `name`: contains a hash of what it computes, so that a name is never reused. `compute` returns as many
    tensors as there are `outputs`; those that alias others are copied. The operator raises ValueError for
    tensors of another shape or dtype, or of sizes beyond `limits`, and copies those with other strides.
    `masked`: it also takes a list of which outputs are wanted; others are empty, and tensors that are not
    needed then may be None. `traced`: computes the same of tensors without memory, in calls that a compiler
    fuses with what is around them; without it the operator is a barrier.
    """
    namespace, _, function = name.partition("::")
    library = _LIBRARIES.setdefault(namespace, torch.library.Library(namespace, "FRAGMENT"))
    given = [f"Tensor{'?' if masked else ''} a{place}" for place in range(len(takes))]
    given += ["bool[] wanted"] if masked else []
    returned = "Tensor" if len(outputs) == 1 else f"({', '.join('Tensor' for _ in outputs)})"
    library.define(f"{function}({', '.join(given)}) -> {returned}", tags=torch.Tag.pt2_compliant_tag)
    compute = guarded(compute)
    free = any(each.free for each in (*takes, *outputs))

    def conformed(given: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return tensors in their forms, and the sizes in these."""
        sizes = read(takes, given) if free else {}
        if why := beyond(sizes, limits or {}):
            raise ValueError(why)
        pairs = zip(takes, given, strict=False)
        return [None if each is None else form.conformed(each, sizes) for form, each in pairs], sizes

    def called(*given: Any) -> Any:
        tensors, sizes = conformed(given)
        made = compute(*tensors, *given[len(takes) :])
        own = _apart([given[0].new_empty(0) if each is None else each for each in made], tensors)
        # They lie as the fake below says, which compiled code builds upon.
        return only(
            tuple(
                mine if each is None else form.conformed(mine, sizes)
                for form, each, mine in zip(outputs, made, own, strict=True)
            )
        )

    library.impl(function, called, KEY)
    if traced is not None:
        seen = guarded(traced)

        def transparent(mode: Any, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if custom_triton_ops_decomposition_disabled():  # in what is exported, to run elsewhere
                return mode.__torch_dispatch__(operator, types, args, kwargs)
            if not all(issubclass(each, _TRACED) or each is torch.Tensor for each in types):
                return NotImplemented
            with mode:
                tensors, _ = conformed(args)
                made = seen(*tensors, *args[len(takes) :])
                taken = {id(each) for each in tensors}
                own = []
                for each in made:  # as operators promise: each in memory of its own
                    if each is None:
                        own.append(args[0].new_empty(0))
                        continue
                    own.append(each.clone() if each._is_view() or id(each) in taken else each)
                    taken.add(id(each))
                return only(tuple(own))

        torch.library.register_torch_dispatch(name, FunctionalTensorMode, transparent, lib=library)

    def fake(*given: Any) -> Any:
        wanted, sizes = given[-1] if masked else [True] * len(outputs), read(takes, given)
        made = []
        for output, computed in zip(outputs, wanted, strict=True):
            form = output.at(sizes) if computed else None
            made.append(
                given[0].new_empty(0)
                if form is None
                else given[0].new_empty_strided(form.shape, form.strides, dtype=form.dtype)
            )
        return only(tuple(made))

    torch.library.register_fake(name, fake, lib=library)
    return existing(name)


def counted(name: str, flops: Callable[..., int]) -> None:
    """Register the FLOPs of an operator, if there is one, with torch's counter.

    Counted are the products of the stock layer, not what the kernel computes again.
    """
    operator = existing(name)
    if operator is not None and operator._overloadpacket not in flop_registry:

        def formula(*given: Any, **_: Any) -> int:
            return flops(*given)

        register_flop_formula(operator._overloadpacket, get_raw=True)(formula)


def unseen() -> bool:
    """Return True if nothing observes operators now, so that their code may be called directly.

    Transforms of torch.func do, too: calls under them are outside the envelope, see `state`.
    """
    return not (is_compiling() or _modes() or _is_profiled())


def _plain(tensors: Sequence[torch.Tensor | None]) -> bool:
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
        code: "BackwardCode",
        uses: Sequence[Argument],
        inputs: Sequence[Argument],
        differentiated: Sequence[bool],
        outputs: Sequence[Argument],
        saves: Sequence[Argument] = (),
    ) -> None:
        """Create the autograd of `operator`, the backward, which calls `code`.

        `uses`: its arguments after the outputs' gradients: inputs, outputs and what the forward `saves` after
        those, by their names. It returns the gradient of each input that is `differentiated`, in order.
        """
        self._operator, self._compute, self._needed = operator, guarded(code.directly), code.needed
        self._inputs, self._outputs, self._saves = len(inputs), outputs, len(saves)
        places = {each.name: place for place, each in enumerate((*inputs, *outputs, *saves))}
        self._uses, self._forms = [places[use.name] for use in uses], uses
        self._arguments, self._differentiated = inputs, differentiated
        self._all_floating = all(each.dtype.is_floating_point for each in outputs)
        self._free = any(each.free for each in (*inputs, *outputs))
        self._plans: dict[tuple[bool, ...], list[int | None]] = {}  # places of what is kept

    def _wanted(self, ctx: Any) -> list[bool]:
        """Return which gradients are wanted, of those that there are."""
        return list(compress(ctx.needs_input_grad, self._differentiated))

    def _plan(self, ctx: Any) -> list[int | None]:
        for needs, has, form in zip(
            ctx.needs_input_grad, self._differentiated, self._arguments, strict=False
        ):
            if needs and not has and form.dtype.is_floating_point:
                raise NotImplementedError(f"a gradient of {form.name} is wanted, and the kernel has none")
        needed = self._needed(self._wanted(ctx))
        plan = [place if needs else None for place, needs in zip(self._uses, needed, strict=True)]
        self._plans[ctx.needs_input_grad] = plan
        return plan

    def keep(self, ctx: Any, inputs: Tensors, output: Any) -> None:
        given = (*inputs, *(output if isinstance(output, tuple) else (output,)))
        plan = self._plans.get(ctx.needs_input_grad) or self._plan(ctx)
        ctx.save_for_backward(*[None if place is None else given[place] for place in plan])
        if self._saves or not self._all_floating:
            made = given[self._inputs : len(given) - self._saves]
            saved = given[len(given) - self._saves :]
            ctx.mark_non_differentiable(*(m for m in made if not m.dtype.is_floating_point), *saved)
        if self._saves:  # of which there would be zeros
            ctx.set_materialize_grads(False)

    def of(self, ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Compute the gradients that are wanted; incoming ones are made contiguous."""
        came, saved = next(each for each in grads if each is not None), ctx.saved_tensors
        sizes = self._sizes(grads, saved) if self._free else {}
        given: list[torch.Tensor | None] = []
        for grad, output in zip(grads, self._outputs, strict=False):
            if output.dtype.is_floating_point:
                if grad is None:
                    grad = came.new_zeros(output.at(sizes).shape, dtype=output.dtype)
                given.append(grad.resolve_neg().contiguous())
        direct = not torch.is_grad_enabled() and unseen() and not _transforms() and _plain(given)
        for form, each in zip(self._forms, saved, strict=True):
            # Hooks may have laid them out again.
            given.append(None if each is None else form.conformed(each, sizes))
        wanted = self._wanted(ctx)
        if direct:
            found = self._compute(*given, wanted)
        else:
            made = self._operator(*given, wanted)
            made = made if isinstance(made, tuple) else (made,)
            found = [each if needs else None for each, needs in zip(made, wanted, strict=True)]
        left = iter(found)
        return tuple(next(left) if has else None for has in self._differentiated)

    def _sizes(self, grads: Sequence[torch.Tensor | None], saved: Sequence[torch.Tensor]) -> dict[str, Any]:
        count = len(self._outputs)
        return read((*self._outputs, *self._forms), (*grads[:count], *saved))

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


def detached(made: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return tensors that may be written into, which views of what was made without autograd may not."""
    for each in made:
        if each is not None and each._is_view():
            return tuple(None if each is None else each.detach() for each in made)
    return made


def _apart(made: Sequence[torch.Tensor], given: Sequence[torch.Tensor | None]) -> Tensors:
    """Return each tensor with memory of its own, as operators promise: a gradient may alias another."""
    seen = {each.untyped_storage().data_ptr() for each in given if each is not None}
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
