"""The reference unchanged: Untraceable: forward does something else unless Eq(256*s27*s77, 256*s54*s9)."""

"""A linear layer with GELU after it, its tanh form (https://arxiv.org/abs/1606.08415)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
tokens = 128
features = 256
hidden_features = 1024


class ModelNew(nn.Module):
    def __init__(self, features: int, hidden_features: int):
        super().__init__()
        self.linear = nn.Linear(features, hidden_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x), approximate="tanh")


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features, hidden_features]

# The task whose gradient this is.
Forward, forward_inputs, forward_init_inputs = ModelNew, get_inputs, get_init_inputs


class ModelNew(nn.Module):
    """Gradients of `Forward`, in ATen calls as autograd would make them; products and sums of the forward are given, not computed again."""

    def forward(self, grad_output, x, linear_weight, saved_0):
        batch_size = grad_output.shape[0]
        tokens = grad_output.shape[1]
        t = torch.ops.aten.t.default(linear_weight)
        view = torch.ops.aten.view.default(x, [(batch_size * tokens), 256])
        view_1 = torch.ops.aten.view.default(saved_0, [batch_size, tokens, 1024])
        gelu_backward = torch.ops.aten.gelu_backward.default(grad_output, view_1, approximate = 'tanh')
        view_2 = torch.ops.aten.view.default(gelu_backward, [(batch_size * tokens), 1024])
        t_1 = torch.ops.aten.t.default(t)
        mm = torch.ops.aten.mm.default(view_2, t_1)
        t_2 = torch.ops.aten.t.default(view_2)
        mm_1 = torch.ops.aten.mm.default(t_2, view)
        t_3 = torch.ops.aten.t.default(mm_1)
        sum_1 = torch.ops.aten.sum.dim_IntList(view_2, [0], True)
        view_3 = torch.ops.aten.view.default(sum_1, [1024])
        view_4 = torch.ops.aten.view.default(mm, [batch_size, tokens, 256])
        t_4 = torch.ops.aten.t.default(t_3)
        return (view_4, t_4, view_3)


def get_inputs():
    with torch.no_grad():
        forward = Forward(*forward_init_inputs())
        inputs = forward_inputs()
        for weight in forward.parameters():  # which begin with ones, say
            weight.add_(0.1 * torch.rand_like(weight))
        x, = inputs
        linear_weight = forward.linear.weight.detach()
        linear_bias = forward.linear.bias.detach()
        batch_size = x.shape[0]
        tokens = x.shape[1]
        t = torch.ops.aten.t.default(linear_weight)
        view = torch.ops.aten.view.default(x, [(batch_size * tokens), 256])
        addmm = torch.ops.aten.addmm.default(linear_bias, view, t)
        view_1 = torch.ops.aten.view.default(addmm, [batch_size, tokens, 1024])
        gelu = torch.ops.aten.gelu.default(view_1, approximate = 'tanh')
        output, saved_0 = (gelu, addmm)
    return [torch.randn_like(output), x, linear_weight, saved_0]


def get_init_inputs():
    return []
