"""One step of a model: a forward call and, in training, the backward pass of its loss."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.modules.call_graph import said

_LOSS = "have it return a loss, or give a function that returns (model, batch, loss), loss(output)"


@dataclass(frozen=True)
class ModelStep:
    """A call of a model. `loss`: of its output, if that neither is one nor has one as `.loss`."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    trains: bool = False
    loss: Callable[[Any], Tensor] | None = None

    @classmethod
    def of(
        cls,
        made: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        trains: bool,
        name: str,
        sizes: Mapping[str, int] | None = None,
    ) -> "ModelStep":
        """Return the step of what a name stands for: a model, or what its builder returned.

        A builder returns a model, (model, batch) or (model, batch, loss); a batch is a tensor, a tuple of
        arguments or a dict of keywords, or a function that makes one of given `sizes`. Raises UsageError.
        """
        model, batch, loss = made, None, None
        if isinstance(made, tuple) and 2 <= len(made) <= 3:
            model, batch, *rest = made
            loss = rest[0] if rest else None
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"{name} gives a {type(model).__name__}, which is no model",
                "name an nn.Module, or a function that returns one, or (model, batch)",
            )
        if batch is not None and (args or kwargs):
            raise UsageError(f"{name} returns a batch, and --input is given", "leave out --input")
        if callable(batch) and not isinstance(batch, Tensor):
            batch = _made(batch, sizes or {}, name)
        elif batch is not None and sizes:
            raise UsageError(
                f"{name} returns a batch of one size, and --size is given",
                f"return a function in its place, batch({', '.join(sizes)})",
            )
        if isinstance(batch, Mapping):
            kwargs = dict(batch)
        elif batch is not None:
            args = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves((tuple(args), dict(kwargs)))):
            raise UsageError(
                f"{name} has no batch",
                "give --input for each argument, as input_ids=4,128:int64<32000, or return (model, batch)",
            )
        return cls(model.train(trains), tuple(args), dict(kwargs), trains, loss)

    def run(self) -> None:
        """Run it once; gradients are let go of. Raises UsageError where the model fails."""
        self.forward_and(lambda made: made.backward() if self.trains else None)

    def forward_and(self, use: Callable[[Any], Any]) -> None:
        """Run the forward call, and `use` with its output, or in training with the loss."""
        try:
            with torch.set_grad_enabled(self.trains):
                output = self.model(*self.args, **self.kwargs)
                use(self._loss_of(output) if self.trains else output)
        except UsageError:
            raise
        except Exception as error:
            name = type(self.model).__name__
            raise UsageError(f"{name} fails in a step: {said(error)}", _fix(error)) from error
        finally:
            self.model.zero_grad(set_to_none=True)

    def _loss_of(self, output: Any) -> Tensor:
        name = type(self.model).__name__
        if self.loss is not None:
            loss = self.loss(output)
        else:
            loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
            if loss is None and isinstance(output, tuple) and output:
                loss = output[0]
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise UsageError(f"{name} gives no loss of one element", _LOSS)
        if not loss.requires_grad:
            raise UsageError(f"the loss of {name} needs no gradient", "let a parameter require one")
        return loss


def _fix(error: Exception) -> str:
    text = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in text:
        return "give a smaller batch, or fewer layers"
    if "device" in text:
        return "put the model and its batch on one device"
    return "run that step by hand first"


def _made(batch: Callable[..., Any], sizes: Mapping[str, int], name: str) -> Any:
    """Return the batch of these sizes."""
    try:
        return batch(**sizes)
    except Exception as error:
        raise UsageError(
            f"the batch of {name} cannot be made: {said(error)}", _batch_fix(batch, sizes, error)
        ) from error


def _batch_fix(batch: Callable[..., Any], sizes: Mapping[str, int], error: Exception) -> str:
    try:
        names = list(inspect.signature(batch).parameters)
    except ValueError:  # of a builtin
        names = list(sizes)
    if set(names) == sizes.keys():
        return _fix(error)
    return f"give --size {','.join(f'{name}=8' for name in names)}" if names else "let it take the sizes"
