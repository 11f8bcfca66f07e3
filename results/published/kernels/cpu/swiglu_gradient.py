"""The reference unchanged: Untraceable: forward does something else unless Ne(batch_size*tokens, batch_size)."""

"""A decoder's feed-forward block, down(silu(gate(x)) * up(x)) (https://arxiv.org/abs/2002.05202)."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 8
tokens = 128
features = 256
hidden_features = 704


class ModelNew(nn.Module):
    def __init__(self, features: int, hidden_features: int):
        super().__init__()
        self.gate_proj = nn.Linear(features, hidden_features, bias=False)
        self.up_proj = nn.Linear(features, hidden_features, bias=False)
        self.down_proj = nn.Linear(hidden_features, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [features, hidden_features]

# The task whose gradient this is.
Forward, forward_inputs, forward_init_inputs = ModelNew, get_inputs, get_init_inputs


class ModelNew(nn.Module):
    """Gradients of `Forward`, in ATen calls as autograd would make them; products and sums of the forward are given, not computed again."""

    def forward(self, grad_output, x, gate_proj_weight, up_proj_weight, down_proj_weight, saved_0, saved_1):
        batch_size = grad_output.shape[0]
        tokens = grad_output.shape[1]
        t = torch.ops.aten.t.default(gate_proj_weight)
        view = torch.ops.aten.view.default(x, [(batch_size * tokens), 256])
        _unsafe_view = torch.ops.aten._unsafe_view.default(saved_0, [batch_size, tokens, 704])
        silu = torch.ops.aten.silu.default(_unsafe_view)
        t_1 = torch.ops.aten.t.default(up_proj_weight)
        view_1 = torch.ops.aten.view.default(x, [(batch_size * tokens), 256])
        _unsafe_view_1 = torch.ops.aten._unsafe_view.default(saved_1, [batch_size, tokens, 704])
        mul = torch.ops.aten.mul.Tensor(silu, _unsafe_view_1)
        t_2 = torch.ops.aten.t.default(down_proj_weight)
        view_2 = torch.ops.aten.view.default(mul, [(batch_size * tokens), 704])
        view_3 = torch.ops.aten.view.default(grad_output, [(batch_size * tokens), 256])
        t_3 = torch.ops.aten.t.default(view_3)
        mm_3 = torch.ops.aten.mm.default(t_3, view_2)
        t_4 = torch.ops.aten.t.default(mm_3)
        t_5 = torch.ops.aten.t.default(t_2)
        mm_4 = torch.ops.aten.mm.default(view_3, t_5)
        view_4 = torch.ops.aten.view.default(mm_4, [batch_size, tokens, 704])
        t_6 = torch.ops.aten.t.default(t_4)
        mul_1 = torch.ops.aten.mul.Tensor(view_4, silu)
        mul_2 = torch.ops.aten.mul.Tensor(view_4, _unsafe_view_1)
        view_5 = torch.ops.aten.view.default(mul_1, [(batch_size * tokens), 704])
        t_7 = torch.ops.aten.t.default(view_5)
        mm_5 = torch.ops.aten.mm.default(t_7, view_1)
        t_8 = torch.ops.aten.t.default(mm_5)
        t_9 = torch.ops.aten.t.default(t_1)
        mm_6 = torch.ops.aten.mm.default(view_5, t_9)
        view_6 = torch.ops.aten.view.default(mm_6, [batch_size, tokens, 256])
        t_10 = torch.ops.aten.t.default(t_8)
        silu_backward = torch.ops.aten.silu_backward.default(mul_2, _unsafe_view)
        view_7 = torch.ops.aten.view.default(silu_backward, [(batch_size * tokens), 704])
        t_11 = torch.ops.aten.t.default(view_7)
        mm_7 = torch.ops.aten.mm.default(t_11, view)
        t_12 = torch.ops.aten.t.default(mm_7)
        t_13 = torch.ops.aten.t.default(t)
        mm_8 = torch.ops.aten.mm.default(view_7, t_13)
        view_8 = torch.ops.aten.view.default(mm_8, [batch_size, tokens, 256])
        add = torch.ops.aten.add.Tensor(view_6, view_8)
        t_14 = torch.ops.aten.t.default(t_12)
        return (add, t_14, t_10, t_6)


def get_inputs():
    with torch.no_grad():
        forward = Forward(*forward_init_inputs())
        inputs = forward_inputs()
        for weight in forward.parameters():  # which begin with ones, say
            weight.add_(0.1 * torch.rand_like(weight))
        x, = inputs
        gate_proj_weight = forward.gate_proj.weight.detach()
        up_proj_weight = forward.up_proj.weight.detach()
        down_proj_weight = forward.down_proj.weight.detach()
        batch_size = x.shape[0]
        tokens = x.shape[1]
        t = torch.ops.aten.t.default(gate_proj_weight)
        view = torch.ops.aten.view.default(x, [(batch_size * tokens), 256])
        mm = torch.ops.aten.mm.default(view, t)
        _unsafe_view = torch.ops.aten._unsafe_view.default(mm, [batch_size, tokens, 704])
        silu = torch.ops.aten.silu.default(_unsafe_view)
        t_1 = torch.ops.aten.t.default(up_proj_weight)
        view_1 = torch.ops.aten.view.default(x, [(batch_size * tokens), 256])
        mm_1 = torch.ops.aten.mm.default(view_1, t_1)
        _unsafe_view_1 = torch.ops.aten._unsafe_view.default(mm_1, [batch_size, tokens, 704])
        mul = torch.ops.aten.mul.Tensor(silu, _unsafe_view_1)
        t_2 = torch.ops.aten.t.default(down_proj_weight)
        view_2 = torch.ops.aten.view.default(mul, [(batch_size * tokens), 704])
        mm_2 = torch.ops.aten.mm.default(view_2, t_2)
        _unsafe_view_2 = torch.ops.aten._unsafe_view.default(mm_2, [batch_size, tokens, 256])
        output, saved_0, saved_1 = (_unsafe_view_2, mm, mm_1)
    return [torch.randn_like(output), x, gate_proj_weight, up_proj_weight, down_proj_weight, saved_0, saved_1]


def get_init_inputs():
    return []
