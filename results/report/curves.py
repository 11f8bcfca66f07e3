"""Curves for a page, over steps or dollars: a small SVG drawing for each series."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# In SVG user units.
WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 64, WIDTH - 14, 34, HEIGHT - 28  # of the plot
_MARKED = 40  # points at most that are marked one by one


@dataclass(frozen=True)
class Curve:
    name: str
    last: str  # its last value
    path: str
    marks: tuple[tuple[float, float, str], ...]  # x, y, what it is
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP
    bottom: int = BOTTOM


def curve(
    name: str,
    series: Sequence[tuple[float, float]],
    over: Callable[[float], str] | None = None,
    stepped: bool = False,
    counts: bool = False,
) -> Curve | None:
    """Draw a series of (x, value), x rising. NaNs are gaps; None if there is no other value.

    `over`: an x in words, `$1.50`; without it they are steps. `stepped`: a value holds until the next one.
    `counts`: the values are whole and not below 0.
    """
    finite = [value for _, value in series if math.isfinite(value)]
    if not finite:
        return None
    first, final = series[0][0], series[-1][0]
    final = final if final > first else first + 1
    low, high = (0.0, max(1.0, 1.06 * max(finite))) if counts else _range(min(finite), max(finite))

    def x(step: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (step - first) / (final - first), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), 1)

    path, pen = "", "M"
    for step, value in series:
        if math.isfinite(value):
            path += f"H{x(step)}V{y(value)}" if stepped and pen == "L" else f"{pen}{x(step)} {y(value)}"
        pen = "L" if math.isfinite(value) else "M"
    marked = [(step, value) for step, value in series if math.isfinite(value)]
    return Curve(
        name=name,
        last=number(series[-1][1]),
        path=path,
        marks=tuple(
            (x(s), y(v), f"{over(s) if over is not None else f'step {s:g}'}: {number(v)}")
            for s, v in marked
            if len(marked) <= _MARKED
        ),
        x_ticks=tuple(
            (x(tick), over(tick) if over is not None else f"{tick:g}")
            for tick in ticks(first, final, 6)
            if over is not None or tick == int(tick)
        ),
        y_ticks=tuple(
            (y(tick), number(tick)) for tick in ticks(low, high, 4) if not counts or tick == int(tick)
        ),
    )


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return round numbers (1, 2 or 5 times a power of ten apart) from low to high; low < high."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def number(value: float) -> str:
    """Format a value with four digits, as curves and tables of metrics do."""
    return f"{value:.4g}"


def _range(low: float, high: float) -> tuple[float, float]:
    """Return the range with a margin, nonempty even if all values are equal."""
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin
