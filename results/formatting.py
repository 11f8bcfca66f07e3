"""Formatting of numbers in reports: speedups with their intervals, times, shares, money."""

import math
from typing import Literal

from kernelwright.kernelbench.records import Ceilings, Interval

NOTHING = "—"

Kind = Literal["faster", "slower", "even", "none"]


def kind(speedup: Interval | None) -> Kind:
    """Classify a speedup; one whose interval covers 1.0 is "even", whichever side its median lies on."""
    if speedup is None:
        return "none"
    if speedup.low <= 1.0 <= speedup.high:
        return "even"
    return "faster" if speedup.median > 1.0 else "slower"


def headline(speedup: Interval | None) -> str:
    """Format a speedup as `1.92×`, `≈1` or `—`."""
    match kind(speedup):
        case "none":
            return NOTHING
        case "even":
            return "≈1"
    assert speedup is not None
    return f"{_digits(speedup.median, speedup)}×"


def bounds(speedup: Interval | None) -> str:
    """Format an interval as `[1.88, 1.97]`; empty without a speedup."""
    if speedup is None:
        return ""
    return f"[{_digits(speedup.low, speedup)}, {_digits(speedup.high, speedup)}]"


def with_bounds(speedup: Interval | None) -> str:
    """Format a speedup with its interval: `1.92× [1.88, 1.97]`."""
    return f"{headline(speedup)} {bounds(speedup)}".strip()


def ratio(value: float | None) -> str:
    """Format a mean of speedups, or a predicted gain: `1.68×`."""
    return NOTHING if value is None else f"{value:.2f}×" if value < 100 else f"{value:.0f}×"


def time(microseconds: float | None) -> str:
    """Format a time given in µs in the unit that reads best."""
    if microseconds is None or not math.isfinite(microseconds):
        return NOTHING
    if microseconds < 1e3:
        return f"{microseconds:.3g} µs" if microseconds < 100 else f"{microseconds:.0f} µs"
    return f"{microseconds / 1e3:.3g} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.3g} s"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f}%"


def score(value: float | None, below_floor: bool = False) -> str:
    """Format a speed-of-light score: `0.67`; `>1` of a time below the floor, which is doubtful."""
    return ">1" if below_floor else NOTHING if value is None else f"{value:.2f}"


def ceilings(found: Ceilings) -> str:
    """Format a machine's ceilings, and whether it was busy when they were measured."""

    def rate(value: float | None, form: str, unit: str) -> str:
        return f"{value / 1e9:{form}} {unit}" if value is not None else "unknown"

    copy, cached = (rate(value, ".1f", "GB/s") for value in (found.copy_bytes_s, found.cached_copy_bytes_s))
    said = f"copy {copy} (cached {cached}), {products(found) or 'products unknown'}"
    return f"{said}; measured on a busy machine, so they may be higher" if found.busy else said


def products(found: Ceilings) -> str:
    """Format the peaks of products by precision: `fp32 200, bf16 410 GFLOP/s`; empty if none is known."""
    rates = found.products
    scale, unit = (1e12, "TFLOP/s") if min(rates.values(), default=0.0) >= 1e13 else (1e9, "GFLOP/s")
    return ", ".join(f"{name} {rate / scale:.0f}" for name, rate in rates.items()) + f" {unit}" * bool(rates)


def money(usd: float | None) -> str:
    if usd is None:
        return "unknown"
    return f"${usd:.2f}" if usd == 0 or usd >= 0.1 else f"${usd:.4f}"


def dollars(usd: float) -> str:
    """Format a mark on an axis of dollars: `$0.004`, `$1.5`, `$75`."""
    return f"${usd:.3g}" if usd < 1000 else f"${usd:,.0f}"


def tokens(number: float) -> str:
    """Format a mark on an axis of tokens: `5k tokens`, `1.5M tokens`."""
    if number >= 1e6:
        return f"{number / 1e6:.3g}M tokens"
    return f"{number / 1e3:.3g}k tokens" if number >= 1e3 else f"{number:.0f} tokens"


def duration(seconds: float) -> str:
    """Format seconds as `42 s`, `12 min`, `3 h 20 min`."""
    if seconds < 99.5:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def one_line(text: str, length: int) -> str:
    """Return the text on one line of at most `length` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= length else flat[: length - 1].rstrip() + "…"


def _digits(value: float, interval: Interval) -> str:
    """Format with enough decimals to tell a speedup close to 1 from 1."""
    median = interval.median
    if median < 0.1:
        return f"{value:.2g}"
    return f"{value:.{3 if 0.9 < median < 1.1 else 2 if median < 10 else 1 if median < 100 else 0}f}"
