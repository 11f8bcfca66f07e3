"""Input families: distributions of inputs beyond the task's own, on which a candidate is verified too.

A family rewrites the floating inputs of a fresh `get_inputs()` draw and keeps each within its domain:
a triangular matrix stays triangular, labels stay labels. Each family is there for a way of not
computing: zero_centred for kernels that assume positive inputs, heavy_tailed and needle for those
that skip or sample, dominated for those that round operands whose errors average out elsewhere,
small for those with another epsilon, or none, perturbed for those that remember, edge for those that drop
special values, midpoints for those that round to eight bits in another way.

A kernel must not know the family from a few elements. Where a task draws numbers of one sign, the others
come in some of the rows only, and dominated inputs keep the task's own signs and range. Small ones are the
task's own, times a power of two: an epsilon of 1e-5 is next to nothing beside the variance of normal numbers,
and all there is where they are 2**-13 as large.

64 rows of 128 elements as `torch.rand` draws them, for an output of which each element depends on one row:

>>> def made(family):
...     x = torch.rand(64, 128, generator=torch.Generator().manual_seed(0))
...     rewrite([x], [infer_domain(x)], family, Draws(1), distinct=False, fan_in=128.0)
...     return x
>>> rows = (made("zero_centred") < 0).any(1)  # normal numbers; the other rows are as they were drawn
>>> 0 < rows.sum() < 64
tensor(True)
>>> made("needle").count_nonzero(1).unique()  # one element a row, 8 times the inputs' rms
tensor([1])
>>> shrunk = made("dominated") < 2**-19  # by 2**-20, in some rows and columns
>>> rows = shrunk.sum(1) > 64
>>> int(rows.sum()), (~shrunk[rows]).sum(1).tolist()  # about 16 elements of each such row remain as they were
(3, [20, 17, 9])

What is stored in int8 comes in half integers, scaled by a power of two. Each row's largest is 127 of these
units, so that many are ties once the row is divided by its scale:

>>> x = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
>>> fill_with_midpoints([x], ["real"], [torch.int8], Draws(1))
>>> scaled = x / (x.abs().amax(1, keepdim=True) / 127)
>>> round(float((scaled % 1 == 0.5).float().mean()), 1)
0.4

Domains are inferred from one draw:

>>> [infer_domain(x) for x in (torch.ones(3, 3).tril(), torch.tensor([[0.25, 0.75]]), torch.arange(3))]
['lower_triangular', 'probability', 'index']
"""

import math
from collections.abc import Sequence

import torch

from kernelwright.kernelbench.evaluator.correctness.constants import UNTOUCHED
from kernelwright.kernelbench.evaluator.reference.draws import Draws
from kernelwright.kernelbench.evaluator.reference.float64 import is_eight_bit_float

DOMAINS = (
    "real", "positive", "probability", "unit", "lower_triangular", "upper_triangular",
    "symmetric", "sorted", "sign", "mask", "index", "fixed",
)  # fmt: skip
# Chosen by hand; that one perturbed element was too few is in docs/LOG.md (2026-11-26).
_EDGE_EVERY = 64  # elements for each special one: denormals slow a matmul down a hundredfold
_MIXED = 0.25, 1.75  # exponents: of R rows R**e get other signs, e uniform in between and cut off at 1
_DOMINATED = 0.0, 0.5  # the same, of dominated rows and columns: so few that means hardly change
_DOMINANT = 16.0  # elements, about, that a result depends on in the dominated family
_SHRUNK = 2.0**-20  # factor for all others there; a power of two, so that their mantissas stay
_SMALL = {torch.float16: (5, 7)}  # least and largest power of 1/2 that small inputs are multiplied by
_SMALL_OTHERS = (13, 15)
_PERTURBED = 8, 2.0, 0.25  # of N elements 8 to 2 * N**0.25 are perturbed
_PERTURBED_SHARE = 1 / 16  # largest share of all elements that is perturbed
_PHASE = 0.6 + 0.8j  # phase of a complex needle, of absolute value 1
# Least and largest of a row, and the distance of its numbers, by an output's format: scaled by a power of
# two, many are half way between two of its numbers. Of bytes, with a zero point of 64, and two of e2m1 each.
MIDPOINTS = {
    torch.int8: ((-127.0, 127.0, 0.5),),
    torch.uint8: ((-64.0, 191.0, 0.5), (-96.0, 96.0, 4.0)),
    torch.float8_e4m3fn: ((-448.0, 448.0, 8.0),),
    torch.float8_e5m2: ((-57344.0, 57344.0, 4096.0),),
}
_SCALED_TOGETHER = 16  # elements, the fewest, that have a scale of their own
_SORTED = 8  # elements of a row in ascending order that cannot be in order by accident (1 in 8! = 40320)


def infer_domain(tensor: torch.Tensor) -> str:
    """Return the narrowest domain that one draw of an input shows beyond doubt; "real" for plain floats."""
    if tensor.is_complex():
        return "fixed" if tensor.numel() < 2 or _has_structure(tensor) else "real"
    if not tensor.is_floating_point():
        return "mask" if tensor.dtype is torch.bool else "index"
    if tensor.numel() < 2:
        return "fixed"
    tensor = tensor.float() if is_eight_bit_float(tensor.dtype) else tensor
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
    if tensor.dim() and tensor.shape[-1] >= _SORTED and bool((tensor.diff(dim=-1) >= 0).all()):
        return "real" if bool((tensor[..., :1] == tensor[..., -1:]).any()) else "sorted"
    return "real"


def _has_structure(tensor: torch.Tensor) -> bool:
    """Return True for a complex square that is triangular or Hermitian."""
    if tensor.dim() < 2 or not tensor.shape[-1] == tensor.shape[-2] > 1:
        return False
    zero = (tensor.triu(1), tensor.tril(-1))
    return any(not bool(part.any()) for part in zero) or torch.equal(tensor, tensor.mH.resolve_conj())


def rewrite(
    inputs: Sequence[torch.Tensor],
    domains: Sequence[str],
    family: str,
    draws: Draws,
    distinct: bool,
    fan_in: float = 1.0,
) -> bool:
    """Make `inputs`, a fresh draw, inputs of `family`, in place; says whether signs are mixed in part of any.

    `distinct`: no two values of a tensor should be equal, because an output is an index and of equal
    values any is right. `fan_in`: how many input elements an output element depends on.
    """
    if family == "small":
        _shrink(inputs, domains, draws)
        return False
    partly = False
    for tensor, domain in zip(inputs, domains, strict=True):
        if domain in UNTOUCHED:
            continue
        if is_eight_bit_float(tensor.dtype):
            if family != "dominated":
                _rewrite_eight_bits(tensor, domain, family, draws)
            continue
        if family == "dominated":
            _dominate(tensor, domain, draws, fan_in)
            continue
        if tensor.is_complex():
            if family == "needle":
                _fill_with_needles(tensor, _PHASE * scale_of(torch.view_as_real(tensor)), draws)
                continue
            tensor = torch.view_as_real(tensor)
        one_sign = domain == "real" and family != "needle" and tensor.dim() > 0 and _has_one_sign(tensor)
        drawn = tensor.clone() if one_sign else None
        _fill(tensor, family, draws)
        if distinct:
            tensor.mul_(1 + 0.1 * draws.normal(*tensor.shape)).add_(draws.normal(*tensor.shape), alpha=1e-3)
        if drawn is not None:
            rows = tensor.shape[:-1] if tensor.dim() > 1 else tensor.shape
            chosen = _some(math.prod(rows), _MIXED, draws, tensor.device)
            tensor.copy_(tensor.where(chosen.view(*rows, *[1] * (tensor.dim() - len(rows))), drawn))
            partly = True
        _keep_within(domain, tensor)
    return partly


def fill_with_midpoints(
    inputs: Sequence[torch.Tensor], domains: Sequence[str], formats: Sequence[torch.dtype], draws: Draws
) -> None:
    """Fill free tensors of both signs, in place, with what lies half way between numbers of a format."""
    for tensor, domain in zip(inputs, domains, strict=True):
        wide = tensor.is_floating_point() and not is_eight_bit_float(tensor.dtype)
        if not (domain == "real" and wide and tensor.dim() and tensor.shape[-1] > 1) or _has_one_sign(tensor):
            continue
        kinds = [kind for format in formats for kind in MIDPOINTS[format]]
        together = tensor.shape[-1] if tensor.shape[-1] % _SCALED_TOGETHER else _SCALED_TOGETHER
        kind_of_rows = draws.below(len(kinds), *tensor.shape[:-1], 1).to(tensor.device)
        scale = scale_of(tensor)
        for number, (least, largest, step) in enumerate(kinds):
            values = draws.below(int((largest - least) / step) + 1, *tensor.shape) * step + least
            blocks = values.unflatten(-1, (-1, together))
            places = draws.below(together, *blocks.shape[:-1], 1)
            blocks.scatter_(-1, places, largest).scatter_(-1, (places + 1) % together, least)
            values *= 2.0 ** round(math.log2(2 * scale / largest))
            tensor.copy_(torch.where(kind_of_rows == number, values.to(tensor.device), tensor))


def _has_one_sign(tensor: torch.Tensor) -> bool:
    least, most = tensor.aminmax()
    return bool(least >= 0) or bool(most <= 0)


def _some(size: int, powers: tuple[float, float], draws: Draws, device: torch.device) -> torch.Tensor:
    """Return a random mask of `size` things, of which `size` to a power between the two are chosen."""
    least, most = powers
    count = math.ceil(size ** min(1.0, least + (most - least) * float(draws.uniform(1))))
    chosen = torch.zeros(size, dtype=torch.bool, device=device)
    chosen[draws.uniform(size).argsort()[:count].to(device)] = True
    return chosen


def _dominate(tensor: torch.Tensor, domain: str, draws: Draws, fan_in: float) -> None:
    """Shrink all but a few elements of some rows and columns, on which their sums then depend.

    Errors of rounded operands then do not average out. Signs, range and zeros stay.
    """
    kept = draws.uniform(*tensor.shape) < min(0.5, _DOMINANT / max(fan_in, 1.0))
    if tensor.dim() > 1:
        first, last = (_some(tensor.shape[dim], _DOMINATED, draws, tensor.device) for dim in (0, -1))
        kept |= ~(first.view(-1, *[1] * (tensor.dim() - 1)) | last)
    if domain == "symmetric":
        kept = kept & kept.mT
    tensor.mul_(torch.where(kept, 1.0, _SHRUNK))
    if domain == "probability":
        tensor.div_(tensor.sum(-1, keepdim=True))
    if domain == "sorted":
        _keep_within(domain, tensor)


def _shrink(inputs: Sequence[torch.Tensor], domains: Sequence[str], draws: Draws) -> None:
    """Multiply all inputs, or one of them, by a power of 1/2."""
    scalable = [
        tensor
        for tensor, domain in zip(inputs, domains, strict=True)
        if domain not in (*UNTOUCHED, "probability") and not is_eight_bit_float(tensor.dtype)
    ]
    if len(scalable) > 1 and int(draws.below(2)):
        scalable = [scalable[int(draws.below(len(scalable)))]]
    for tensor in scalable:
        least, most = _SMALL.get(tensor.dtype, _SMALL_OTHERS)
        tensor.mul_(0.5 ** (least + int(draws.below(most - least + 1))))


def moved_as_drawn(small: torch.Tensor, size: float) -> torch.Tensor:
    """Return small inputs, moved by an ulp of fp32 at the size that the task draws them at, not at theirs.

    A kernel may compute tanh as 1 - 2 / (exp(2 * x) + 1), which is off by an ulp of 1 beside 1e-6, too.
    """
    if not small.is_floating_point() or is_eight_bit_float(small.dtype):
        return small
    most = small.abs().mul_(0.5).clamp_(max=size * torch.finfo(torch.float32).eps)  # zeros stay, and signs
    return small + most.mul_(torch.empty_like(small).bernoulli_(0.5).mul_(2).sub_(1))


def _rewrite_eight_bits(tensor: torch.Tensor, domain: str, family: str, draws: Draws) -> None:
    """Rewrite in a wider dtype and round: torch does not compute with eight-bit floats."""
    limits, wide = torch.finfo(tensor.dtype), tensor.float()
    _fill(wide, family, draws, limits.smallest_normal * limits.eps)
    _keep_within(domain, wide)
    tensor.copy_(wide.clamp_(limits.min, limits.max))


def perturb(inputs: Sequence[torch.Tensor], domains: Sequence[str], draws: Draws) -> None:
    """Replace a few elements of each free tensor, in place: a sample of the elements misses them."""
    for tensor, domain in zip(inputs, domains, strict=True):
        if domain in ("real", "positive", "unit") and tensor.numel() > 0:
            values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            least, most = (values.float() if is_eight_bit_float(values.dtype) else values).aminmax()
            largest = torch.maximum(most, -least)
            value = largest * (0.5 if domain == "unit" else 3.0) + (domain != "unit")
            value = value.clamp(max=torch.finfo(values.dtype).max)
            signs = 1 if domain != "real" or least >= 0 else 2
            for _ in range(_perturbed(values.numel(), float(draws.uniform(1)))):
                sign = 1 - 2 * int(draws.below(signs))
                values[tuple(int(draws.below(size)) for size in values.shape)] = sign * value


def _perturbed(elements: int, chance: float) -> int:
    """Return the number of elements, of `elements`, to perturb; `chance` is uniform in [0, 1)."""
    fewest, times, power = _PERTURBED
    most = max(fewest, times * elements**power)
    return math.ceil(min(fewest * (most / fewest) ** chance, max(1.0, elements * _PERTURBED_SHARE)))


def _fill(tensor: torch.Tensor, family: str, draws: Draws, least: float = 1e-38) -> None:
    """Real values of the family, at the scale that `tensor` has; `least`: a denormal number."""
    scale = scale_of(tensor)
    match family:
        case "zero_centred":
            draws.fill_normal(tensor).mul_(scale)
        case "heavy_tailed":
            signs = draws.normal(*tensor.shape).to(tensor.dtype)
            draws.fill_normal(tensor).mul_(1.2).exp_().mul_(scale).copysign_(signs)
        case "needle":
            _fill_with_needles(tensor, scale, draws)
        case "edge":
            draws.fill_normal(tensor).mul_(scale)
            special = [0.0, -0.0, least, -least, 1e-6, 20.0 * scale, -20.0 * scale]
            count = -(-tensor.numel() // _EDGE_EVERY)
            where = draws.below(tensor.numel(), count)
            values = tensor.new_tensor(special).repeat(-(-count // len(special)))[:count]
            tensor.put_(where, values)
        case _:
            raise AssertionError(family)


def scale_of(tensor: torch.Tensor) -> float:
    wide = torch.promote_types(tensor.dtype, torch.float32)
    size = float(torch.linalg.vector_norm(tensor, dtype=wide)) / math.sqrt(max(1, tensor.numel()))
    return min(max(size, 1e-3), 1e3)


def _fill_with_needles(tensor: torch.Tensor, scale: complex, draws: Draws) -> None:
    """One element of each row that is not zero."""
    tensor = tensor if tensor.dim() else tensor.view(1)  # a single number is a row of one
    rows, columns = tensor.shape[:-1], tensor.shape[-1]
    tensor.zero_().scatter_(-1, draws.below(columns, *rows, 1), 8.0 * scale)


def _keep_within(domain: str, tensor: torch.Tensor) -> None:
    """Move any real values into `domain`, in place."""
    match domain:
        case "positive":
            tensor.abs_().add_(1e-6)
        case "unit":
            tensor.sigmoid_()
        case "probability":
            tensor.copy_(tensor.clamp(-30, 30).softmax(-1))
        case "lower_triangular":
            tensor.tril_()
        case "upper_triangular":
            tensor.triu_()
        case "symmetric":
            tensor.copy_((tensor + tensor.mT) / 2)
        case "sorted":
            tensor.copy_(tensor.sort(-1).values)
