"""Input families: what a candidate is tried on beyond the task's own distribution.

A family rewrites the floating inputs of a fresh `get_inputs()` draw and keeps each within its domain:
a triangular matrix stays triangular, labels stay labels. Each family is there for a way of not
computing: zero_centred for kernels that assume positive inputs, heavy_tailed and needle for those
that skip or sample, perturbed for those that remember, edge for those that drop special values.
"""

from collections.abc import Sequence

import torch

from kernelbench.evaluator.draws import Draws

DOMAINS = (
    "real", "positive", "probability", "unit", "lower_triangular", "upper_triangular",
    "symmetric", "sign", "mask", "index", "fixed",
)  # fmt: skip
_UNTOUCHED = ("sign", "mask", "index", "fixed")


def infer_domain(tensor: torch.Tensor) -> str:
    """The narrowest domain that one draw of an input shows beyond doubt; "real" for plain floats."""
    if not tensor.is_floating_point():
        return "mask" if tensor.dtype is torch.bool else "index"
    if tensor.numel() < 2:
        return "fixed"
    square = tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1
    if square and bool((tensor.triu(1) == 0).all()):
        return "lower_triangular"
    if square and bool((tensor.tril(-1) == 0).all()):
        return "upper_triangular"
    if square and torch.equal(tensor, tensor.mT):
        return "symmetric"
    if bool((tensor.abs() == 1).all()):
        return "sign"
    if bool(((tensor == 0) | (tensor == 1)).all()):
        return "mask"
    sums = tensor.sum(-1)
    if bool((tensor >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
        return "probability"
    return "real"


def rewrite(
    inputs: Sequence[torch.Tensor], domains: Sequence[str], family: str, draws: Draws, distinct: bool
) -> list[torch.Tensor]:
    """New inputs of `family`, in the shapes and dtypes of `inputs` (a fresh draw, which may be reused).

    `distinct`: no two values of a tensor should be equal, because an output is an index and of equal
    values any is right.
    """
    result = []
    for tensor, domain in zip(inputs, domains, strict=True):
        if domain not in _UNTOUCHED:
            values = _values(tensor, domain, family, draws)
            if distinct:
                values = values * (1 + 1e-3 * draws.normal(*tensor.shape)) + 1e-3 * draws.normal(
                    *tensor.shape
                )
            tensor = _into(domain, values, tensor)
        result.append(tensor)
    return result


def perturb(inputs: Sequence[torch.Tensor], domains: Sequence[str], draws: Draws) -> list[torch.Tensor]:
    """`inputs` with one element of each free tensor replaced: what a result remembered by sampling misses."""
    result = []
    for tensor, domain in zip(inputs, domains, strict=True):
        if domain in ("real", "positive", "unit") and tensor.numel() > 0:
            tensor = tensor.clone(memory_format=torch.preserve_format)
            where = [int(draws.below(size)) for size in tensor.shape]
            largest = tensor.abs().max()
            tensor[tuple(where)] = largest * (0.5 if domain == "unit" else 3.0) + (domain != "unit")
        result.append(tensor)
    return result


def _values(tensor: torch.Tensor, domain: str, family: str, draws: Draws) -> torch.Tensor:
    """Real values of the family, at the scale of `tensor` where that matters."""
    noise = draws.normal(*tensor.shape)
    scale = tensor.float().square().mean().sqrt().clamp(1e-3, 1e3)
    if family == "zero_centred":
        return noise * scale
    if family == "heavy_tailed":
        spread = draws.normal(*tensor.shape).mul_(1.2).exp_()
        return noise.sign() * spread * scale
    if family == "needle":
        flat = torch.zeros(tensor.shape).view(-1, tensor.shape[-1]) if tensor.dim() else torch.zeros(1, 1)
        columns = draws.below(flat.shape[1], flat.shape[0], 1)
        return flat.scatter_(1, columns, 8.0 * float(scale)).view(tensor.shape)
    assert family == "edge", family
    values = noise * scale
    special = torch.tensor([0.0, -0.0, 1e-38, -1e-38, 1e-6, 20.0 * float(scale), -20.0 * float(scale)])
    pick = (draws.uniform(*tensor.shape) * (8 * len(special))).long()
    return torch.where(pick < len(special), special[pick % len(special)], values)


def _into(domain: str, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`values` moved into `domain`, with the dtype and memory format of `like`."""
    match domain:
        case "positive":
            values = values.abs() + 1e-6
        case "unit":
            values = values.sigmoid()
        case "probability":
            values = values.clamp(-30, 30).softmax(-1)
        case "lower_triangular":
            values = values.tril()
        case "upper_triangular":
            values = values.triu()
        case "symmetric":
            values = (values + values.mT) / 2
    return torch.empty_like(like).copy_(values)
