"""Guard that ends a training before a non-finite gradient spoils its policy."""

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from kernelwright.kernelbench.errors import KernelwrightError

if TYPE_CHECKING:
    import torch


class Diverged(KernelwrightError):  # noqa: N818 - what happened
    """A training that would spoil its policy if it continued."""


class StopAtNaN(TrainerCallback):
    """Callback that raises Diverged before an update with a non-finite gradient.

    transformers would continue: it replaces such a loss, in its logs, by the average of those before.
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
            f"the gradient is not finite at step {state.global_step + 1} ({where}); no weight was changed",
            "start another run with a lower --learning-rate; --model may be the last checkpoint of this one",
        )


def _finite(gradient: "torch.Tensor") -> bool:
    import torch

    return bool(torch.isfinite(gradient).all())
