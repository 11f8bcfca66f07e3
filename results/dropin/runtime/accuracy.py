"""Accuracy of results: their errors against float64 are compared with those of the stock computation.

How far off a right result may be depends on the dtype: bf16 rounds each result by up to 0.4%, and a layer
that rounds intermediates is off by several times that. So the error of the layer itself is the measure.

>>> exact = torch.linspace(1, 2, 64).double()
>>> excess(exact.bfloat16(), exact.bfloat16(), exact)
''
>>> excess((1.03 * exact).bfloat16(), exact.bfloat16(), exact)
'off by 0.046 rms from float64; the stock computation by 0.0022'
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

_RMS, _LARGEST = 3.0, 4.0  # times the stock computation's error, which may be small by luck
_HALF = (torch.bfloat16, torch.float16)
_ULPS = 512  # of a sum in another order; in half precision, where sums are float32, one rounding


def excess(ours: torch.Tensor, stock: torch.Tensor, exact: torch.Tensor) -> str:
    """Describe in what way `ours` is further from `exact` than is right for its dtype; "" if it is not.

    Its rms error may be 3 times that of `stock`, its largest 4 times, each with half of a floor or a floor:
    one rounding of the dtype in half precision, 512 elsewhere.
    """
    if (ours.shape, ours.dtype) != (stock.shape, stock.dtype):
        return f"{ours.dtype} of shape {tuple(ours.shape)} instead of {stock.dtype} of {tuple(stock.shape)}"
    ours, stock, exact = ours.detach(), stock.detach(), exact.detach()
    right, special = exact.double(), ~(exact.isfinite() & stock.isfinite())
    found, usual, rounded = ours[special], stock[special], right[special].to(ours.dtype)
    same = (found == usual) | (found.isnan() & usual.isnan()) | (found == rounded)
    if not bool(same.all()):
        return "not finite elsewhere than the stock computation"
    off, own_off = ((each.double() - right)[~special].abs() for each in (ours, stock))
    if not off.numel():
        return ""
    sizes = right[~special].abs()
    floor, least = _floor(ours.dtype)
    for name, of, times, part in (("rms", _rms, _RMS, 0.5), ("at most", torch.max, _LARGEST, 1.0)):
        error, own = float(of(off)), float(of(own_off))
        if not error <= times * own + part * floor * float(of(sizes)) + least:  # or NaN
            return f"off by {error:.2g} {name} from float64; the stock computation by {own:.2g}"
    return ""


def largest_error(stock_error: float, dtype: torch.dtype) -> float:
    """Return the largest error that a right result may have beside one of the stock computation.

    Both are by the result's largest number; for where the two are not computed in one process.
    """
    return _LARGEST * stock_error + _floor(dtype)[0]


def first_excess(ours: Any, stock: Any, exact: Any) -> str:
    """Return the first `excess` among the tensors of three results, each a tensor or a sequence of them."""
    reasons = (excess(*each) for each in zip(*map(flat, (ours, stock, exact)), strict=True))
    return next((why for why in reasons if why), "")


def is_half(dtype: torch.dtype) -> bool:
    return dtype in _HALF


def widened(tensor: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a floating tensor in a wider dtype, any other as it is."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def in_float64(model: Callable[..., Any], given: Sequence[torch.Tensor], otherwise: Any) -> Any:
    """Return what a model in float64 computes, or `otherwise` if it takes no float64."""
    try:
        return model(*map(widened, given))
    except Exception:  # noqa: BLE001 - it is the model's code
        return otherwise


def flat(made: Any) -> Sequence[torch.Tensor]:
    return made if isinstance(made, tuple | list) else (made,)


def _rms(values: torch.Tensor) -> torch.Tensor:
    return values.square().mean().sqrt()


def _floor(dtype: torch.dtype) -> tuple[float, float]:
    """Return the error that any right result may have: relative to the result's size, and absolute."""
    if not dtype.is_floating_point:
        return 0.0, 0.0
    about = torch.finfo(dtype)
    return (1 if is_half(dtype) else _ULPS) * about.eps, about.smallest_normal * about.eps
