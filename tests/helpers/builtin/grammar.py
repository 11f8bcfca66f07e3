"""Random references: the source of a task that applies a dozen operators to tensors of odd shapes."""

import re
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import strategies as st

from tests.helpers.builtin.proving import source

LARGEST = 20_000  # elements of a value
SIZES = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 64, 70, 129])

UNARY = """
-x | x.abs() | x * 2.5 - 1 | 3 / x | x / 3 | x.square() | x ** 3 | x ** -2 | x ** 0.5 | x.sqrt() | x.rsqrt()
x.exp() | torch.expm1(x) | x.log() | torch.log1p(x.abs()) | x.tanh() | x.sigmoid() | torch.erf(x) | x.relu()
F.gelu(x) | F.gelu(x, approximate='tanh') | F.silu(x) | F.mish(x) | F.softplus(x) | F.elu(x) | F.selu(x)
F.leaky_relu(x, 0.1) | F.hardswish(x) | F.hardsigmoid(x) | F.hardtanh(x) | F.relu6(x) | F.logsigmoid(x)
F.softsign(x) | F.softshrink(x) | F.hardshrink(x) | F.threshold(x, 0.1, -3.0) | x.sin() | x.floor() | x.round()
x.trunc() | x.sign() | x.reciprocal() | x.clamp(-0.5, 1.5) | x.clamp(min=0.1) | x.nan_to_num() | 2 ** x.clamp(max=9)
F.dropout(x, 0.0) | torch.where(x > 0, x, -0.25) | x.masked_fill(x > 0.7, float('-inf')) | x.tril() | x.log2()
F.normalize(x, dim=-1) | x.softmax(-1) | x.log_softmax(-1) | F.layer_norm(x, x.shape[-1:]) | torch.frac(x)
x - x.mean() | x / x.norm() | x - x.amax(-1, keepdim=True) | (x - x.mean(0)) / (x.std(0, unbiased=False) + 0.1)
x.cumsum(-1) | x.cumsum(0) | torch.cumprod(x, 0) | x.clone().add_(1) | x.flip(0) | x.roll(1, -1)
F.rms_norm(x, x.shape[-1:]) | torch.logcumsumexp(x, -1) | x.lerp(x.exp(), 0.3) | torch.addcmul(x, x, x, value=0.5)
"""
TO_ROWS = """
x.sum(D) | x.sum(D, keepdim=True) | x.mean(D) | x.mean(D, keepdim=True) | x.amax(D) | x.amin(D, keepdim=True)
x.max(D)[0] | x.min(D)[0] | x.var(D) | x.std(D, keepdim=True) | x.norm(dim=D) | x.norm(p=1, dim=D, keepdim=True)
x.prod(D) | x.logsumexp(D) | x.softmax(D) | x.log_softmax(D) | x.cumsum(D) | x.argmax(D) | x.argmin(D)
(x > 0).any(D) | (x > -1).all(D) | (x > 0).sum(D) | x.norm(p=float('inf'), dim=D) | x.var(D, correction=0)
x.sort(D)[0] | x.topk(1, D)[0] | x.topk(2, D)[0] | x.topk(3, D, largest=False)[0] | x.softmax(D).amax(D)
"""
TO_ONE = "x.sum() | x.mean() | x.amax() | x.min() | x.std() | x.norm() | x.square().sum().sqrt() | x.argmax()"
VIEWS = """
x.transpose(0, -1) | x.mT | x.flatten() | x.reshape(-1, x.shape[0]) | x.unsqueeze(0) | x.unsqueeze(-1) | x[::2]
x[..., 1:] | x[..., :-1] | x[..., ::3] | x[0] | x[..., -1] | x.flatten(0, 1) | x.unflatten(-1, (-1, 2))
x.expand(3, *x.shape) | x.repeat(2, *[1] * (x.dim() - 1)) | torch.cat([x, x], 0) | torch.cat([x, -x], -1)
torch.stack([x, x * 2], 1) | x.chunk(2, -1)[0] | x.chunk(2, -1)[1] | x.split(2, 0)[-1] | x.contiguous() | x.squeeze()
torch.cat([-x[..., 1:], x[..., :1]], -1) * x | torch.cat([x.tanh(), x], 0).relu() | torch.cat([x.exp(), x.sum(-1, keepdim=True)], -1)
F.pad(x, (1, 2)) | F.pad(x, (0, 1), value=1.5) | x.narrow(-1, 0, 1) | x.unfold(-1, 2, 1) | x.movedim(0, -1) | x.diagonal()
x.repeat_interleave(2, -1) | x.permute(*range(x.dim() - 1, -1, -1)) | x.T.contiguous() | x.select(0, -1)
"""
LOOKUPS = """
x.gather(-1, torch.ones_like(x, dtype=torch.int64).cumsum(-1) * 5 % x.shape[-1]) | x.gather(0, torch.ones_like(x[:1], dtype=torch.int64).cumsum(-1) * 7 % x.shape[0])
x[torch.ones(9, dtype=torch.int64).cumsum(0) * 3 % x.shape[0]] | x[torch.ones(2, 3, dtype=torch.int64).cumsum(1) % x.shape[0] - x.shape[0]]
x[..., torch.ones(17, dtype=torch.int64).cumsum(0) * 3 % x.shape[-1]] | x.index_select(-1, torch.ones(4, dtype=torch.int32).cumsum(0) % x.shape[-1])
x[torch.arange(x.shape[0])] + 1 | F.embedding(torch.ones(5, dtype=torch.int64).cumsum(0) % x.shape[0], x.flatten(1)) | x[:, torch.arange(1, 3) % x.shape[1]]
x.index_select(0, torch.ones(x.shape[0], dtype=torch.int64).cumsum(0) * 3 % x.shape[0]) - x | x.flatten()[torch.ones(x.numel(), dtype=torch.int64).cumsum(0).view_as(x) * 3 % x.numel()]
"""
WINDOWS = """
F.conv2d(x, x.new_ones(9, x.shape[1], 3, 3), padding=1) | F.conv2d(x, x.new_ones(17, x.shape[1], 1, 1) * 0.1)
F.conv_transpose2d(x, x.new_ones(x.shape[1], 12, 2, 2), stride=2) | F.conv2d(x, x.new_ones(x.shape[1], 1, 3, 3), groups=x.shape[1])
F.max_pool1d(x, 3, 2, 1) | F.avg_pool1d(x, 2) | F.max_pool2d(x, 2) | F.avg_pool2d(x, 3, 1, 1) | F.max_pool3d(x, 2)
F.avg_pool2d(x, 2, count_include_pad=False, padding=1) | F.max_pool2d(x, 3, 2, 1, ceil_mode=True)
F.adaptive_avg_pool2d(x, 1) | F.interpolate(x, scale_factor=2.0) | F.pixel_shuffle(x, 2) | F.unfold(x, 2)
F.conv1d(x, x.new_ones(x.shape[1], 1, 3), padding=1, groups=x.shape[1]) | F.group_norm(x, 1) | F.instance_norm(x)
"""
BINARY = """
x + y | x - y | x * y | x / y | torch.maximum(x, y) | torch.minimum(x, y) | torch.where(x > y, x, y) | x.add(y, alpha=0.5)
torch.where(x == y, x, 0.0) | x.abs() ** y.clamp(-2, 2) | (x < y).to(x.dtype) * x | x.clamp(min=y) | torch.rsub(x, y)
torch.lerp(x, y, 0.25) | F.silu(x) * y | x.sigmoid() * y | torch.addcmul(x, x, y, value=-2) | torch.hypot(x, y)
torch.logaddexp(x, y) | (x - y).square().mean() | F.smooth_l1_loss(x, y.expand_as(x)) | torch.fmod(x, y) | x.copysign(y)
torch.where(torch.logical_or(torch.isnan(x), y > 0), y, x) | torch.logical_and(x > 0, y > 0).to(x.dtype) | torch.outer(x.flatten(), y.flatten())
x @ y.mT | torch.matmul(x, y) | torch.cat([x, y], -1) | torch.stack([x, y]) | (x[..., None, :] * y[..., None]).sum(-1)
torch.cat([x.sigmoid(), y], -1).softmax(-1) | torch.cat([x * 2, y + 1, x], 0) - 1 | torch.cat([x, y.exp()], 1).amax(1)
x.masked_fill(y > 0, 0.5) | torch.maximum(x, y.detach()) - x | x + y.to(torch.float64) | torch.xlogy(x.abs(), y.abs())
"""
INTEGERS = """
x + 3 | x * x | x % 5 | x // 3 | x.abs() | -x | x.clamp(-2, 4) | x.float() / 7 | (x > 1).long() | x.sum(-1) | x.amax(0)
x.cumsum(-1) | x.to(torch.int32) | x.bool() | x & 6 | torch.where(x > 0, x, 1) | x.sign() | x.double() * 0.1 | x.float().exp()
~x | x.max(-1)[0] | x.argmax(-1) | x.prod(-1) | x.mean(-1, dtype=torch.float32) | x << 1 | x.float().softmax(-1)
"""
BOOLS = "~x | x.float() | x.sum(-1) | x.any(0) | x.all(-1) | x.logical_not() | x.long() * 2 | x & ~x | torch.where(x, 1.0, -2.0)"

VALUES = (
    "torch.randn(S) | torch.randn(S) | torch.randn(S) | torch.rand(S) + 0.5 | 100 * torch.randn(S) | torch.randn(S) * 1e-41"
    " | torch.randn(S).where(torch.rand(S) > 0.1, float('nan')) | torch.randn(S).where(torch.rand(S) > 0.1, float('inf'))"
    " | torch.randn(S).where(torch.rand(S) > 0.1, -0.0) | torch.randn(S).where(torch.rand(S) > 0.2, float('-inf'))"
    " | torch.randn(S).round()"
)
LAYOUTS = (
    "V",
    "V",
    "V",
    "V.transpose(0, -1).contiguous().transpose(0, -1)",
    "torch.stack([V, V], -1)[..., 1]",
    "torch.cat([V, V])[::2]",
    "V[:1].expand(S)",
    "torch.cat([V, V], -1)[..., :SIZE]",
)


@dataclass
class Random:
    """What has been drawn so far: the lines of forward, and each value's name with its shape and dtype."""

    lines: list[str] = field(default_factory=list)
    values: dict[str, torch.Tensor] = field(default_factory=dict)  # on the meta device
    unread: list[str] = field(default_factory=list)

    def apply(self, expression: str, operands: list[str]) -> None:
        """Appends a line, unless the operator does not take these operands."""
        names = dict(zip("xy", operands, strict=False))
        bound = {name: self.values[value] for name, value in names.items()}
        try:
            result = eval(expression, {"torch": torch, "F": F}, bound)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return
        if not isinstance(result, torch.Tensor) or not 0 < result.numel() <= LARGEST or result.dim() > 5:
            return
        name = f"v{len(self.lines)}"
        for letter, value in names.items():
            expression = replaced(expression, letter, value)
        self.lines.append(f"{name} = {expression}")
        self.values[name] = result
        self.unread = [v for v in self.unread if v not in operands] + [name]


def replaced(expression: str, letter: str, name: str) -> str:
    return re.sub(rf"(?<![\w.]){letter}(?!\w)", name, expression)


def table(text: str) -> list[str]:
    return [entry.strip() for line in text.strip().splitlines() for entry in line.split(" | ")]


STEPS = """
torch.tanh(h * 0.5 + x) | h * torch.sigmoid(x) + x | torch.maximum(h, x) | (h + x).softmax(-1) | h * 0.9 + x * h.mean(-1, keepdim=True)
(h - h.amax(-1, keepdim=True)).exp() * x | h + x.cumsum(-1) | h.clamp(-1, 1) * x.abs()
"""


def loop(draw: st.DrawFn, drawn: Random) -> None:
    """Appends a loop over the first axis of a value, whose steps hand on one of their values."""
    several = [name for name, value in drawn.values.items() if value.dim() > 1 and value.is_floating_point()]
    if not several:
        return
    source = draw(st.sampled_from(several))
    steps = min(drawn.values[source].shape[0], 7)
    dtype = drawn.values[source].dtype
    drawn.apply(draw(st.sampled_from(["x[0]", "torch.zeros_like(x[0])", "x[0] * 2 - x.mean(0)"])), [source])
    state = list(drawn.values)[-1]
    left = []
    body = draw(st.lists(st.sampled_from(table(STEPS)), min_size=1, max_size=3))
    for step in range(steps):
        drawn.apply(f"x[{step}]", [source])
        read = list(drawn.values)[-1]
        for expression in body:
            drawn.apply(re.sub(r"\bh\b", "y", expression), [read, state])
            state = list(drawn.values)[-1]
        left.append(state)
    if (
        draw(st.booleans())
        and len({drawn.values[name].shape for name in left}) == 1
        and dtype == drawn.values[state].dtype
    ):
        name = f"v{len(drawn.lines)}"
        drawn.lines.append(f"{name} = torch.stack([{', '.join(left)}], {draw(st.integers(0, 1))})")
        drawn.values[name] = drawn.values[state].unsqueeze(0).expand(steps, *drawn.values[state].shape)
        drawn.unread = [v for v in drawn.unread if v not in left] + [name]


@st.composite
def references(draw: st.DrawFn, half: str = "") -> str:
    """The source of a reference of up to twelve operators on one to three inputs, all of the dtype `half` if
    there is one.
    """
    drawn = Random()
    inputs = []
    shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=4)))
    while torch.Size(shape).numel() > LARGEST:
        shape = shape[1:]
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        own = list(shape)
        if inputs:
            own = [1 if draw(st.integers(0, 3)) == 0 else size for size in own]
            own = own[draw(st.integers(0, len(own) - 1)) if draw(st.booleans()) else 0 :]
        kind = (
            "float32"
            if half or not inputs
            else draw(st.sampled_from(["float32"] * 5 + ["int64", "bool", "float64"]))
        )
        size = repr(tuple(own))
        value = {
            "int64": "torch.randint(-9, 9, S)",
            "bool": "torch.rand(S) > 0.4",
            "float64": "torch.randn(S, dtype=torch.float64)",
        }.get(kind) or draw(st.sampled_from(table(VALUES)))
        layout = draw(st.sampled_from(LAYOUTS))
        text = layout.replace("V", f"({value})").replace("SIZE", str(own[-1])).replace("S", size)
        if half:
            text = f"({text}).to(torch.{half})"
        inputs.append((name, text))
        drawn.values[name] = eval(text, {"torch": torch}).to("meta")
    for _ in range(draw(st.integers(1, 12))):
        names = list(drawn.values)
        recent = draw(st.sampled_from(names[-3:] if draw(st.booleans()) else names))
        dtype = drawn.values[recent].dtype
        if dtype == torch.bool:
            drawn.apply(draw(st.sampled_from(table(BOOLS))), [recent])
        elif not dtype.is_floating_point:
            drawn.apply(draw(st.sampled_from(table(INTEGERS))), [recent])
        else:
            kind = draw(
                st.sampled_from(
                    [UNARY] * 4 + [TO_ROWS] * 2 + [VIEWS] * 2 + [BINARY] * 3 + [TO_ONE, WINDOWS, LOOKUPS]
                )
            )
            expression = draw(st.sampled_from(table(kind)))
            other = draw(st.sampled_from(names)) if kind is BINARY else recent
            if kind is TO_ROWS:
                rank = max(drawn.values[recent].dim(), 1)
                dims = ["-1", "0", str(rank // 2)]
                several = ["(0, -1)", "(-2, -1)"] if rank > 1 else []
                expression = replaced(expression, "D", draw(st.sampled_from(dims + several)))
            drawn.apply(expression, [recent, other] if kind is BINARY else [recent])
    if draw(st.integers(0, 4)) == 0:
        loop(draw, drawn)
    if not drawn.lines:
        drawn.apply("x + x", ["a"])
    results = drawn.unread[-4:]
    returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
    body = "\n        ".join([*drawn.lines, f"return {returned}"])
    return source(
        body, ", ".join(text for _, text in inputs), arguments=", ".join(name for name, _ in inputs)
    )
