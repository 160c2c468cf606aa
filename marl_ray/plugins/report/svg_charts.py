"""The geometry of line charts: pixel positions that the chart template draws as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marl_ray.results.returns_plot import centred_mean, smoothing_window

# Pixels: the picture, and the margins around the lines.
WIDTH = 460
HEIGHT = 200
MARGIN_LEFT = 52
MARGIN_RIGHT = 8
MARGIN_TOP = 8
MARGIN_BOTTOM = 24
MAX_POINTS = 400
"""Maximum number of points per line."""
TICKS = 4
MAX_HINTS = 60
"""Maximum number of tooltips per line."""
MIN_POINTS_SMOOTHED = 8
"""Minimum number of points for a centred mean over the line."""
NUM_COLOURS = 8
"""Colours of the style sheet: classes s0, s1, ..."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """Data of one curve: `points` are (x, y) with rising x, `colour` counts from 0.

    With `marks` the points are drawn as dots, with error bars if there are `bounds` (low, high); otherwise as a line.
    """

    label: str
    colour: int
    points: Points
    marks: bool = False
    bounds: Sequence[tuple[float, float]] = ()
    smooth: bool = True
    """Draw a centred mean over a line of many points."""


@dataclass(frozen=True, slots=True)
class SeriesShapes:
    """The SVG shapes of one series: `lines` are (is faint, polyline points), `error_bars` are path data."""

    legend: str
    colour: int
    lines: Sequence[tuple[bool, str]] = ()
    error_bars: Sequence[str] = ()
    dots: Sequence[tuple[str, str]] = ()
    hints: Sequence[tuple[str, str, str]] = ()
    """Tooltips: the position of a point, and its values as text."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart in pixels. Ticks are (position, label)."""

    title: str
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    series: Sequence[SeriesShapes]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = MARGIN_LEFT
    right: int = WIDTH - MARGIN_RIGHT


def layout_chart(title: str, series: Sequence[Series]) -> Chart:
    """Return the chart of these series, none of which is empty. Legends show each series' newest value."""
    axes = _Axes.fit(series)
    return Chart(
        title,
        _labelled(round_ticks(axes.left, axes.right), axes.x),
        _labelled(round_ticks(axes.low, axes.high), axes.y),
        [_shapes(one, axes) for one in series],
    )


def _labelled(ticks: Sequence[float], position: Callable[[float], float]) -> list[tuple[float, str]]:
    positions = [round(position(value), 1) for value in ticks]
    return list(zip(positions, tick_labels(ticks), strict=True))


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the labels of equally spaced ticks, with as many digits as tell them apart.

    >>> tick_labels([1.0, 1.00002, 1.00004])
    ['1.00000', '1.00002', '1.00004']
    """
    labels = list(map(format_number, ticks))
    if len(set(labels)) == len(labels):
        return labels
    step = min(abs(later - earlier) for earlier, later in itertools.pairwise(ticks))
    # The logarithm of a power of ten may be too small by a rounding error.
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value:,.{digits}f}" for value in ticks]


def format_number(value: float) -> str:
    """Return the value with four significant digits."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def thin(points: Points, limit: int = MAX_POINTS) -> Points:
    """Return at most `limit` points, each the mean of neighbours."""
    size = math.ceil(len(points) / limit)
    if size <= 1:
        return points
    means = []
    for start in range(0, len(points), size):
        xs, ys = zip(*points[start : start + size], strict=True)
        means.append((sum(xs) / len(xs), sum(ys) / len(ys)))
    return means


def round_ticks(low: float, high: float) -> list[float]:
    """Return about TICKS round numbers from `low` to `high`."""
    power = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    for factor in (1, 2, 5, 10):
        step = power * factor
        if (high - low) / step <= TICKS + 0.5:
            break
    # A tick at a bound counts in spite of rounding errors.
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Axes:
    """The range of data that is shown, and its mapping to pixels."""

    left: float
    right: float
    low: float
    high: float

    @classmethod
    def fit(cls, series: Sequence[Series]) -> _Axes:
        xs: list[float] = []
        ys: list[float] = []
        for one in series:
            for x, y in one.points:
                xs.append(x)
                ys.append(y)
            for bounds in one.bounds:
                ys += bounds
        low, high = _nonempty_range(min(ys), max(ys))
        padding = 0.04 * (high - low)
        return cls(*_nonempty_range(min(xs), max(xs)), low - padding, high + padding)

    def x(self, value: float) -> float:
        width = WIDTH - MARGIN_LEFT - MARGIN_RIGHT
        return MARGIN_LEFT + (value - self.left) / (self.right - self.left) * width

    def y(self, value: float) -> float:
        height = HEIGHT - MARGIN_TOP - MARGIN_BOTTOM
        return HEIGHT - MARGIN_BOTTOM - (value - self.low) / (self.high - self.low) * height

    def polyline(self, points: Points) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in thin(points))


def _nonempty_range(low: float, high: float) -> tuple[float, float]:
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    half = abs(low) / 2 or 0.5
    return low - half, high + half


def _shapes(series: Series, axes: _Axes) -> SeriesShapes:
    points = series.points
    legend = f"{series.label}: {format_number(points[-1][1])}".removeprefix(": ")
    colour = series.colour % NUM_COLOURS
    hints = _hints(points, axes, series.bounds)
    if series.marks or len(points) == 1:
        error_bars = []
        for (x, _), (low, high) in zip(points, series.bounds, strict=bool(series.bounds)):
            error_bars.append(f"M{axes.x(x):.1f} {axes.y(low):.1f}V{axes.y(high):.1f}")
        dots = [(f"{axes.x(x):.1f}", f"{axes.y(y):.1f}") for x, y in points]
        return SeriesShapes(legend, colour, error_bars=error_bars, dots=dots, hints=hints)
    if len(points) < MIN_POINTS_SMOOTHED or not series.smooth:
        return SeriesShapes(legend, colour, lines=[(False, axes.polyline(points))], hints=hints)
    means = centred_mean([y for _, y in points], smoothing_window(len(points)))
    xs = [x for x, _ in points]
    smooth = list(zip(xs, means, strict=True))
    lines = [(True, axes.polyline(points)), (False, axes.polyline(smooth))]
    return SeriesShapes(legend, colour, lines=lines, hints=_hints(smooth, axes))


def _hints(points: Points, axes: _Axes, bounds: Sequence[tuple[float, float]] = ()) -> list[tuple[str, str, str]]:
    """Return the tooltips of evenly chosen points."""
    every = math.ceil(len(points) / MAX_HINTS)
    hints = []
    for index in range(len(points) - 1, -1, -every):  # with the newest point
        x, y = points[index]
        text = f"{format_number(x)}: {format_number(y)}"
        if bounds:
            low, high = bounds[index]
            text += f" [{format_number(low)}, {format_number(high)}]"
        hints.append((f"{axes.x(x):.1f}", f"{axes.y(y):.1f}", text))
    return hints[::-1]
