"""Output of a linear layer that is not computed until it is known what reads it.

A kernel for the loss of a product computes both at once, and the logits are never all there. A model calls a
layer, and later a function of torch's with its output. So the layer returns a tensor without memory:

    logits = model.lm_head(hidden)            # a DeferredOutput
    logits = logits.float().view(-1, 32000)   # another one
    loss = F.cross_entropy(logits, target)    # the kernel, from `hidden`, the weight and `target`

Whatever else reads it has it computed by the layer first, as if nothing had been put in.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.utils._pytree import tree_map_only

from .functions import FunctionCall
from .kernel import DropInKernel
from .operators import _modes
from .parts import LayerSnapshot, stock
from .state import foreign

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_Tensor = torch.Tensor
# What a tensor says of itself without its elements.
_OF_ITSELF = {
    getattr(_Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_cpu")
} | {_Tensor.size, _Tensor.dim, _Tensor.numel, _Tensor.is_floating_point, _Tensor.__len__}
_SHAPES = {_Tensor.view, _Tensor.reshape, torch.reshape, _Tensor.flatten, torch.flatten}
_CASTS = {_Tensor.float, _Tensor.to, _Tensor.contiguous, _Tensor.type}


class LossOfLayer(nn.Module):
    """A layer and the function of its output that a kernel computes, as one layer of the model."""

    def __init__(self, layer: nn.Module, kernel: DropInKernel) -> None:
        super().__init__()
        self.layer, self._form, self._dtype = layer, form_of(kernel), kernel.outputs[0].dtype

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> Any:
        made = stock(self.layer)(x)
        return self._form.by_stock(_cast(made, self._dtype, made.dtype), *rest)


@cache
def form_of(kernel: DropInKernel) -> FunctionCall:
    """Return the form of calls of the function that a kernel computes of a layer's output."""
    (path,) = kernel.functions
    module, _, name = path.rpartition(".")
    return FunctionCall(kernel, getattr(_module(module), name))


def why_not(kernel: DropInKernel, layer: nn.Module, tensors: Sequence[Any], weights: Sequence[Any]) -> str:
    """Return the reason a layer's output cannot wait; "" if it can. `tensors`: of the layer's call."""
    if is_compiling() or _modes():
        return "the call is compiled, or seen by a mode"
    if why := foreign():
        return why
    if any(vars(layer)[name] for name in _HOOKS):  # which would read it, or free its weights
        return "it has hooks"
    if getattr(layer, "_is_fsdp_managed_module", False):  # as the hooks of a module around it do
        return "FSDP may free its weights before its output is read"
    if len(tensors) != 1 or type(tensors[0]) is not torch.Tensor:
        return "it was not called with one plain tensor"
    (x,), (form, *_) = tensors, kernel.inputs
    if x.dim() < 2 or x.shape[-1] != form.shape[-1] or x.dtype is not form.dtype or not x.numel():
        return f"{form.name} has another size or dtype"
    if not torch.is_grad_enabled() or x.is_inference():
        return "no gradient is wanted"
    for needs, has, each in zip(
        (x.requires_grad, *(each.requires_grad for each in weights)),
        (kernel.differentiated[0], *kernel.differentiated[len(kernel.inputs) :]),
        (form, *kernel.weights),
        strict=True,
    ):
        if has and not needs and kernel.at_once:
            return f"no gradient of {each.name} is wanted, and the kernel computes all of them"
    found = zip(kernel.weights, weights, strict=True)
    return next((why for each, weight in found if (why := each.problem(weight))), "")


class DeferredOutput(torch.Tensor):
    """Output of a layer, or a view or cast of one, that is computed when something reads it."""

    _x: torch.Tensor  # with the shape of the output but for the last axis
    _of: "_Call"
    _source: "DeferredOutput | None"  # that this is a view or cast of
    _made_by: Callable[[torch.Tensor], torch.Tensor]  # of it

    @staticmethod
    def of(
        layer: nn.Module, kernels: Sequence[DropInKernel], parts: LayerSnapshot, x: torch.Tensor
    ) -> torch.Tensor:
        """Return the output of a call of `layer` that one of these kernels may compute the loss of."""
        call = _Call(layer, kernels, parts, x)
        weight, bias = layer.weight, layer.bias
        made: torch.Tensor = _Deferring.apply(call, x, weight, bias)
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _OF_ITSELF:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        own = args[0] if args and isinstance(args[0], DeferredOutput) else None
        if own is not None and func in _SHAPES | _CASTS:
            if (made := own._viewed(lambda tensor: func(tensor, *args[1:], **kwargs))) is not None:
                return made
        elif own is not None or "input" in kwargs:
            loss, computes = _loss(func, args, kwargs)
            if computes:
                return loss
        args, kwargs = tree_map_only(DeferredOutput, lambda each: each.computed(func), (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute what reads it past `__torch_function__`, C++ or an autograd function, without autograd."""

        def value(each: DeferredOutput) -> torch.Tensor:
            return each.computed(func).detach()

        return func(*tree_map_only(DeferredOutput, value, args), **tree_map_only(cls, value, kwargs or {}))

    def computed(self, reader: Any) -> torch.Tensor:
        """Return the output as its layer computes it, once for all that read it."""
        if self._source is None:
            return self._of.computed(reader)
        made = vars(self).get("_made")
        if made is None:
            with torch.set_grad_enabled(True):
                made = self._made_by(self._source.computed(reader))
            self._made = made
        return made

    def _viewed(self, view: Callable[[torch.Tensor], torch.Tensor]) -> "DeferredOutput | None":
        """Return a view or cast of this one; None for one that takes rows apart, or leaves the device."""
        with torch._C.DisableTorchFunctionSubclass():
            shape, dtype, device = tuple(self.shape), self.dtype, self.device
        like = view(torch.empty(shape, dtype=dtype, device="meta"))
        if not like.is_meta or not like.dim() or like.shape[-1] != shape[-1] or not like.is_floating_point():
            return None
        made = _wrapped(like.shape, like.dtype, device)
        made._of, made._source, made._made_by = self._of, self, view
        made._x = self._x.reshape(*like.shape[:-1], self._x.shape[-1])
        return made


class _Call:
    """A call of a layer whose output waits."""

    def __init__(
        self, layer: nn.Module, kernels: Sequence[DropInKernel], parts: LayerSnapshot, x: torch.Tensor
    ) -> None:
        self.layer, self.kernels, self.parts, self.x = layer, kernels, parts, x
        self.weights = [parts.held(parts.kernels.index(kernel)) for kernel in kernels]
        self._versions = self._now()
        self._made: torch.Tensor | None = None
        self._counted = False

    def _now(self) -> list[int]:
        return [each._version for each in (self.x, *self.weights[0])]

    def computed(self, reader: Any) -> torch.Tensor:
        if self._made is None:
            if self._now() != self._versions or any(_is_freed(each) for each in self.weights[0]):
                raise RuntimeError(
                    f"{_name(reader)} reads the output of a layer whose weights or input have changed since: "
                    "read it before the optimizer's step, or call remove(model)"
                )
            if not self._counted:
                self.count(f"{_name(reader)} reads its output")
            with torch.set_grad_enabled(True):
                self._made = stock(self.layer)(self.x)
        return self._made

    def count(self, why: str = "", kernel: DropInKernel | None = None) -> None:
        """Count the call, once: by the kernel, or by the layer itself for this reason."""
        if not self._counted:
            self._counted = True
            self.parts.calls.add(kernel or self.kernels[-1], why)


class _Deferring(torch.autograd.Function):
    """The product as autograd sees it, for what reads the output past `__torch_function__`."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        made = _wrapped((*x.shape[:-1], weight.shape[0]), x.dtype, x.device)
        made._of, made._source, made._x = call, None, call.x
        return made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        rows = grad.flatten(0, -2)
        of_weight = rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[2] else None
        of_bias = rows.sum(0) if ctx.has_bias and ctx.needs_input_grad[3] else None
        return None, grad @ weight if ctx.needs_input_grad[1] else None, of_weight, of_bias


def _loss(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """Compute a function of a waiting output by a kernel for it, if there is one; whether there was."""
    own = args[0] if args else kwargs["input"]
    if not isinstance(own, DeferredOutput):
        return None, False
    call, why = own._of, ""
    with torch._C.DisableTorchFunctionSubclass():
        dtype, rank = own.dtype, own.ndim
    for kernel, weights in zip(call.kernels, call.weights, strict=True):
        if _name(func) not in kernel.functions:
            continue
        tensors, asked = form_of(kernel).tensors(args, kwargs), kwargs.get("reduction", "mean")
        if tensors is None and {asked, _reduction(kernel)} == {"mean", "sum"}:
            tensors = form_of(kernel).tensors(args, {**kwargs, "reduction": _reduction(kernel)})
        if tensors is None or dtype is not kernel.outputs[0].dtype or rank != len(kernel.inputs[0].shape):
            why = f"{_name(func)} was called with other arguments than the kernel's tensors"
            continue
        given = (own._x.contiguous(), *tensors[1:], *weights)
        fits, why = kernel.pays(given)
        if fits:
            fits, why = kernel.check(*given)
        if fits and call._now() == call._versions:
            call.count(kernel=kernel)
            return _reduced(kernel.run(*given), kernel, asked, tensors[1]), True
    if why:
        call.count(why)
    return None, False


def _reduction(kernel: DropInKernel) -> Any:
    return kernel.constants.get("reduction", "mean")


def _reduced(loss: torch.Tensor, kernel: DropInKernel, asked: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the sum of what a kernel has the mean of, or the mean of a sum; trainers ask for either."""
    if asked == _reduction(kernel):
        return loss
    count = (target != kernel.constants.get("ignore_index", -100)).sum()
    if asked == "mean":  # of nothing it is NaN, with gradients of 0
        return torch.where(count > 0, loss / count.clamp_min(1), float("nan"))
    return torch.where(count > 0, loss * count, 0.0)


def _wrapped(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> DeferredOutput:
    made: DeferredOutput = torch.Tensor._make_wrapper_subclass(
        DeferredOutput, tuple(shape), dtype=dtype, device=device
    )
    return made


def _cast(tensor: torch.Tensor, dtype: torch.dtype, own: torch.dtype) -> torch.Tensor:
    return tensor if dtype is own else tensor.to(dtype)


def _is_freed(tensor: torch.Tensor) -> bool:
    """Return True for a weight whose memory was given back, as FSDP does after a layer's forward."""
    return bool(tensor.numel()) and tensor.untyped_storage().nbytes() < math.prod(tensor.shape)


def _name(function: Any) -> str:
    if getattr(function, "__name__", "") == "__get__":  # of an attribute
        return f"torch.Tensor.{function.__self__.__name__}"
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', function)}".lstrip(".")


def _module(name: str) -> Any:
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found
