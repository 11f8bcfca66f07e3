"""What ends a training before it spoils its policy: a gradient that is not a number."""

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from kernelwright.kernelbench.errors import KernelwrightError

if TYPE_CHECKING:
    import torch


class Diverged(KernelwrightError):  # noqa: N818 - what happened
    """Going on would spoil the policy."""


class StopAtNaN(TrainerCallback):
    """Raises Diverged before an update with a gradient that is not finite, so that no weight is spoiled.

    transformers would go on: it replaces such a loss, in what it logs, by the average of those before.
    """

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        import torch

        named = [
            (name, weights.grad) for name, weights in model.named_parameters() if weights.grad is not None
        ]
        if torch.isfinite(torch.nn.utils.get_total_norm([gradient for _, gradient in named])):
            return
        where = next((name for name, gradient in named if not _finite(gradient)), "all of them together")
        raise Diverged(
            f"the gradient is not finite at step {state.global_step + 1} ({where}); it changed no weight",
            "begin another run with a lower --learning-rate; --model may be the last checkpoint of this one",
        )


def _finite(gradient: "torch.Tensor") -> bool:
    import torch

    return bool(torch.isfinite(gradient).all())
