"""The roofline as a picture: bandwidths as slanted lines, peaks as flat ones, kernels as points below them.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model" (2009); lines for
each cache are from A. Ilic, F. Pratas, L. Sousa, "Cache-aware roofline model" (2014).
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernelwright.kernelbench.errors import StorageError, UsageError
from kernelwright.profiling.survey.records import Level, Peak, Survey
from kernelwright.profiling.survey.wording import scaled

# In SVG user units.
WIDTH, HEIGHT = 1060, 640
LEFT, RIGHT, TOP, BOTTOM = 76, 790, 84, 580  # of the plot; the peaks' names are to its right
_LETTER, _LINE = 6.3, 15  # a letter's width, a label's height
_APART = 17  # slanted lines nearer than this have no room for a label between them
_NAME, _NAME_AND_PATH = 18, 33  # height of a peak's name, without and with the line below it
_LONGEST = 36
Box = tuple[float, float, float, float]  # left, top, right, bottom
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class RooflinePoint:
    """A kernel; both numbers are above 0."""

    flop_per_byte: float
    flops_s: float
    label: str


@dataclass(frozen=True)
class Slope:
    """One level's bandwidth; the label runs along the line."""

    level: Level
    number: int  # 0: the fastest
    x: tuple[float, float]
    y: tuple[float, float]
    label: str
    label_x: float
    label_y: float
    angle: float  # degrees


@dataclass(frozen=True)
class Flat:
    peak: Peak
    x: float  # where it leaves the fastest bandwidth
    y: float
    label: str
    label_y: float


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    label: str
    label_x: float
    label_y: float
    leader: str  # a line's path, to a label that is not beside its point; empty: it is
    title: str


@dataclass(frozen=True)
class Axes:
    """Logarithmic axes of the plot."""

    x: tuple[float, float]  # FLOP/byte, least and most
    y: tuple[float, float]  # FLOP/s

    def right(self, flop_per_byte: float) -> float:
        low, high = self.x
        return round(LEFT + (RIGHT - LEFT) * math.log(flop_per_byte / low) / math.log(high / low), 1)

    def down(self, flops_s: float) -> float:
        low, high = self.y
        return round(BOTTOM - (BOTTOM - TOP) * math.log(flops_s / low) / math.log(high / low), 1)

    @property
    def angle(self) -> float:
        """Angle of the bandwidth lines, in degrees."""
        x, y = ((side / math.log(high / low)) for side, (low, high) in (
            (RIGHT - LEFT, self.x), (BOTTOM - TOP, self.y)
        ))  # fmt: skip
        return math.degrees(math.atan2(y, x))


def picture(survey: Survey, points: Iterable[RooflinePoint] = ()) -> str:
    """Return a standalone SVG for light and dark pages. Labels are escaped: they may be a candidate's."""
    points = tuple(points)
    levels = sorted(survey.levels(), key=lambda level: -level.bytes_s)
    peaks = sorted(survey.peaks, key=lambda peak: -peak.flops_s)
    axes = _axes(levels, peaks, points)
    slopes, flats = _slopes(levels, peaks, axes), _flats(peaks, levels, axes)
    taken = [*_along(slopes), *((flat.x, flat.y - 1, RIGHT, flat.y + 1) for flat in flats)]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    mark = survey.fingerprint
    return environment.get_template("roofline.svg.j2").render(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=RIGHT,
        top=TOP,
        bottom=BOTTOM,
        title=f"Roofline of {mark.chip}",
        subtitle=f"{survey.device} · {mark.threads} threads · torch {mark.torch} · "
        f"{survey.load:.1f} load average before the measurement",
        x_ticks=[(axes.right(tick), f"{tick:g}") for tick in _ticks(*axes.x)],
        y_ticks=[(axes.down(tick), scaled(tick, "")) for tick in _ticks(*axes.y)],
        slopes=slopes,
        flats=flats,
        detailed=len(peaks) * _NAME_AND_PATH <= BOTTOM - TOP,
        dots=_dots(points, axes, taken),
    )


def check_picture(file: Path) -> None:
    """Raise UsageError if no picture can be written to `file`; called before minutes of measuring."""
    if file.suffix != ".svg":
        raise UsageError(
            f"invalid picture file: {file}", "use a name that ends in .svg, such as roofline.svg"
        )
    if not file.parent.is_dir():
        raise UsageError(f"the folder {file.parent} does not exist", "create it, or use another")


def save(file: Path, svg: str) -> None:
    """Write the picture. Raises StorageError."""
    try:
        file.write_text(svg)
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error.strerror}", "use another file") from None


def _axes(levels: Sequence[Level], peaks: Sequence[Peak], points: Sequence[RooflinePoint]) -> Axes:
    """Return axes with room for all lines, points and ridges (where a bandwidth meets a peak)."""
    highest, slowest = peaks[0].flops_s, levels[-1].bytes_s
    intensities = [point.flop_per_byte for point in points]
    left = min([0.05, *(0.6 * x for x in intensities)])
    right = max([4 * highest / slowest, *(1.6 * x for x in intensities)])
    heights = [peaks[-1].flops_s, slowest * left, *(point.flops_s for point in points)]
    top = max([highest, *(point.flops_s for point in points)])
    return Axes(x=(left, right), y=(0.7 * min(heights), 1.5 * top))


def _ticks(low: float, high: float) -> list[float]:
    """Return powers of ten between low and high, with 2 and 5 times them if there are few."""
    steps = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = (step * 10.0**exponent for exponent in exponents for step in steps)
    return [tick for tick in ticks if low <= tick <= high]


def _slopes(levels: Sequence[Level], peaks: Sequence[Peak], axes: Axes) -> list[Slope]:
    """Return the bandwidth lines, the fastest first, with labels that avoid neighbouring lines and labels."""
    low, high = axes.x[0], peaks[0].flops_s
    radians = math.radians(axes.angle)
    starts = [axes.down(level.bytes_s * low) for level in levels]
    slopes, along = [], 0.0  # the line, where the label begins
    for number, (level, start) in enumerate(zip(levels, starts, strict=True)):
        above = (start - starts[number - 1]) * math.cos(radians) if number else math.inf
        last = number == len(levels) - 1
        below = (starts[number + 1] - start) * math.cos(radians) if not last else math.inf
        label = f"{level.name}  {scaled(level.bytes_s, 'B/s')} ({level.best})"
        under = above < _APART <= below
        along = along + len(label) * _LETTER if above < _APART and not under else 14.0
        aside = 15 if under else -6
        slopes.append(
            Slope(
                level=level,
                number=number,
                x=(LEFT, axes.right(high / level.bytes_s)),
                y=(start, axes.down(high)),
                label=label,
                label_x=round(LEFT + along * math.cos(radians) + aside * math.sin(radians), 1),
                label_y=round(start - along * math.sin(radians) + aside * math.cos(radians), 1),
                angle=round(-axes.angle, 2),
            )
        )
    return slopes


def _flats(peaks: Sequence[Peak], levels: Sequence[Level], axes: Axes) -> list[Flat]:
    height = _NAME_AND_PATH if len(peaks) * _NAME_AND_PATH <= BOTTOM - TOP else _NAME
    ys = [axes.down(peak.flops_s) for peak in peaks]
    places = _spread(ys, height)
    flats = []
    for peak, y, place in zip(peaks, ys, places, strict=True):
        x = max(float(LEFT), axes.right(peak.flops_s / levels[0].bytes_s))
        label = f"{peak.precision} {peak.means}  {scaled(peak.flops_s, peak.unit)}"
        flats.append(Flat(peak, x, y, label, place))
    return flats


def _spread(wanted: Sequence[float], apart: float) -> list[float]:
    """Return positions nearest to the ascending ones wanted, `apart` from each other, beside the plot."""
    groups: list[list[float]] = []  # of shifted places that have to be one: isotonic regression
    for number, place in enumerate(wanted):
        groups.append([place - number * apart])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    shifted = [fmean(group) for group in groups for _ in group]
    limit = max(TOP, BOTTOM - (len(wanted) - 1) * apart)
    return [min(max(place, TOP), limit) + number * apart for number, place in enumerate(shifted)]


def _dots(points: Sequence[RooflinePoint], axes: Axes, taken: Sequence[Box]) -> list[Dot]:
    """Return the points with labels clear of other labels, points and flat lines where possible."""
    where = [(axes.right(point.flop_per_byte), axes.down(point.flops_s)) for point in points]
    full = [*taken, *((x - 5, y - 5, x + 5, y + 5) for x, y in where)]
    dots = []
    for point, (x, y) in zip(points, where, strict=True):
        label = _UNPRINTABLE.sub("?", point.label)
        label = label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"
        boxes = _around(x, y, len(label) * _LETTER)
        box = min(boxes, key=lambda box: sum(_shared(box, other) for other in full))
        full.append(box)
        beside = box[1] - _LINE <= y <= box[3] + _LINE
        leader = (
            "" if beside else f"M{x} {y}L{min(max(x, box[0]), box[2]):.1f} {box[3 if box[3] < y else 1]:.1f}"
        )
        title = f"{label}: {point.flop_per_byte:.3g} FLOP/byte, {scaled(point.flops_s, 'FLOP/s')}"
        dots.append(Dot(x, y, label, round(box[0], 1), round(box[3] - 4, 1), leader, title))
    return dots


def _around(x: float, y: float, width: float) -> list[Box]:
    """Return the possible boxes for a point's label, the best first; within the plot if any fits."""
    right, left, middle = x + 8, x - 8 - width, x - width / 2
    corners = [(right, y - 8), (left, y - 8)]
    for row in range(1, 5):
        corners += [(side, y - 8 + way * row * _LINE) for side in (right, middle, left) for way in (-1, 1)]
    kept = [(a, b) for a, b in corners if a >= LEFT and a + width <= RIGHT and TOP <= b <= BOTTOM - _LINE]
    return [(a, b, a + width, b + _LINE) for a, b in kept or corners]


def _along(slopes: Sequence[Slope]) -> list[Box]:
    """Return the boxes of the slanted labels, letter by letter."""
    boxes = []
    for slope in slopes:
        turned = math.radians(slope.angle)
        for number in range(len(slope.label)):
            x = slope.label_x + number * _LETTER * math.cos(turned)
            y = slope.label_y + number * _LETTER * math.sin(turned)
            boxes.append((x - 3, y - 10, x + 7, y + 2))
    return boxes


def _shared(a: Box, b: Box) -> float:
    """Return the area that two boxes have in common."""
    across = min(a[2], b[2]) - max(a[0], b[0])
    down = min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, across) * max(0.0, down)
