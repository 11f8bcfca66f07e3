"""Checks of random references, and the references that faults were found with.

A fault that is found this way is kept in FOUND, as small as hypothesis could make it.
"""

import copy
import os
import re
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings

from tests.helpers.builtin.proving import as_list, double, source

EVERY = int(os.environ.get("KERNELWRIGHT_GRAPHS", "0"))
FOUND = {
    "zeros of both signs": (
        source(
            "return 1 / torch.where(x > 0, x, 0.0), 1 / torch.where(y > 0, y, -0.0)",
            "torch.randn(40), torch.randn(40)",
            arguments="x, y",
        ),
        {},
    ),
    "what is computed again from what another result was written over": (
        source(
            "z = torch.sigmoid(self.linear(x))\n        return z + 1, z / z.sum(-1, keepdim=True)",
            "torch.randn(30, 64)",
            init="self.linear = nn.Linear(64, 512)",
        ),
        {"k0__keep": "off"},
    ),
    "the place of the extreme of all elements": (
        source(
            "return x.argmin(0) * 2, x.max(0)[1], x.gather(0, x.argmax(0, keepdim=True))", "torch.randn(13)"
        ),
        {},
    ),
    "a recurrence that keeps what its last pass needs": (
        source(
            "h, ys = torch.zeros(64, 128), []\n        for t in range(8):\n            g = torch.exp(h + x[t])\n"
            "            h = torch.tanh(h * 0.5 + x[t])\n            ys.append(g * h.sum(-1, keepdim=True))\n"
            "        return torch.stack(ys)",
            "torch.randn(8, 64, 128) * 0.1",
        ),
        {"k0__keep": "off"},
    ),
    "what the library computes from a fill": (
        source(
            "y = x.square()\n        z = torch.zeros_like(y[0])\n        return (z - z.amax(-1, keepdim=True)).exp() * y[0], -y",
            "torch.rand(1, 1)",
        ),
        {},
    ),
    "fills of other shapes and types": (
        source(
            "return x + torch.zeros(3, 4), x + torch.zeros(4), i * torch.ones(4, dtype=torch.int64), i * torch.ones(4)",
            "torch.randn(4), torch.arange(4)",
            arguments="x, i",
        ),
        {},
    ),
    "a loop on one element": (
        source(
            "for t in range(6):\n            x = torch.tanh(x * 0.5 + y[t])\n        return x",
            "torch.randn(1), torch.randn(6, 1)",
            arguments="x, y",
        ),
        {},
    ),
    "operands that are turned in different ways": (
        source(
            "z = x - x.mean(-1, keepdim=True)\n        return z.permute(2, 1, 0).contiguous(), (z * 2).mT.contiguous()",
            "torch.randn(16, 16, 16)",
        ),
        {},
    ),
    "variances of rows of images": (
        source(
            "return self.conv(x).var(3), self.conv(x).std(2)",
            "torch.randn(2, 3, 9, 11)",
            init="self.conv = nn.Conv2d(3, 12, 3)",
        ),
        {"layout": "channels_last"},
    ),
    "a constant image": (
        source(
            "return self.conv(x) / (F.conv2d(torch.ones_like(x), self.w) + 2)",
            "torch.randn(2, 3, 9, 11)",
            init="self.conv = nn.Conv2d(3, 12, 3); self.w = nn.Parameter(torch.rand(12, 3, 3, 3))",
        ),
        {"layout": "channels_last"},
    ),
    "windows that overlap, turned": (
        source(
            "return x.t().unfold(0, 16, 1).permute(0, 2, 1) + y.transpose(1, 2)",
            "torch.randn(20, 19), torch.randn(4, 20, 16)",
            arguments="x, y",
        ),
        {},
    ),
    "a turned value in a loop": (
        source(
            "z = a * w.t().unsqueeze(-1).expand(16, 16, 4)\n        h = torch.zeros(16, 16)\n        for t in range(4):\n"
            "            h = torch.tanh(h + z[..., t])\n        return h",
            "torch.randn(16, 16, 4), torch.randn(16, 16)",
            arguments="a, w",
        ),
        {},
    ),
    "what is not below its maximum": (
        source("return torch.exp(x - x.amax(1))", "60 * torch.randn(9, 9).round()"),
        {},
    ),
    "a mean of images before the images": (
        source(
            "y = self.conv(x)\n        return y.mean(2, keepdim=True) - y",
            "torch.randn(2, 3, 9, 11)",
            init="self.conv = nn.Conv2d(3, 12, 3)",
        ),
        {"layout": "channels_last"},
    ),
    "what the library computes from a constant, reduced by itself": (
        source(
            "return F.conv1d(x, x.new_ones(x.shape[1], 1, 3), padding=1, groups=x.shape[1]).std()",
            "torch.randn(7, 64, 33)",
        ),
        {"fuse": "apart"},
    ),
}


def graphs(count: int) -> settings:
    return settings(
        max_examples=EVERY or count,
        derandomize=not EVERY,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def squares_denormals(text: str) -> bool:
    """True if a square may underflow where torch computes its double."""
    return "1e-41" in text and re.search(r"std|var|norm|square|\*\*|hypot", text) is not None


def works(text: str) -> bool:
    """True if the reference takes its inputs: tensors without elements allow more operators than others."""
    module: dict[str, Any] = {}
    exec(text, module)
    try:
        module["Model"]()(*module["get_inputs"]())
    except RuntimeError:
        return False
    return True


def within_what_rounding_explains(model: Any, model_new: Any, inputs: list[Any]) -> None:
    """The candidate is as near to float64 as the reference is, or as inputs rounded elsewhere would be.

    Where a rounding of the inputs decides whether something is finite, or which integer it is, anything goes.
    """
    exact = as_list(copy.deepcopy(model).double()(*map(double, inputs)))
    nudged = [as_list(copy.deepcopy(model).double()(*map(nudge, inputs))) for _ in range(4)]
    eager = as_list(model(*copy.deepcopy(inputs)))
    found = as_list(model_new(*copy.deepcopy(inputs)))
    assert len(found) == len(eager)
    for index, (ours, theirs, right) in enumerate(zip(found, eager, exact, strict=True)):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        others = [result[index] for result in nudged]
        if not theirs.is_floating_point():
            sure = torch.stack([theirs == right, *(other == right for other in others)]).all(0)
            assert (ours == theirs)[sure].all(), f"output {index}: {ours} is not {theirs}"
            continue
        sure = torch.stack([theirs.isfinite() == v.isfinite() for v in (right, *others)]).all(0)
        finite = theirs.isfinite() & sure
        wild = ~theirs.isfinite() & sure
        same = alike(ours, theirs) | alike(ours, right)  # eager's vector code has a NaN for gelu(inf)
        assert same[wild].all(), f"output {index}: {ours[wild & ~same]} is not {theirs[wild & ~same]}"
        spread = torch.stack([(other - right).abs() for other in others]).amax(0)
        error = (theirs.double() - right).abs()
        ulps = 4096 if theirs.dtype == torch.float64 else 8  # in float64 the reference is its own measure
        slack = ulps * torch.finfo(theirs.dtype).eps * right.abs() + 1e-44
        typical = error[finite].square().mean().sqrt() if finite.any() else 0.0
        budget = 16 * typical + 16 * error + 64 * spread + slack
        wrong = finite & ~((ours.double() - right).abs() <= budget)
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise AssertionError(
                f"output {index} at {at}: {ours[at].item()!r}, eager {theirs[at].item()!r}, float64 {right[at].item()!r}, "
                f"{int(wrong.sum())} of {wrong.numel()} wrong"
            )


def alike(ours: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (ours == right) | (ours.isnan() & right.isnan())


def nudge(value: Any) -> Any:
    """The input in float64, rounded another way."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    eps = torch.finfo(value.dtype).eps
    return value.double() * (1 + eps * (torch.rand(value.shape) - 0.5))
