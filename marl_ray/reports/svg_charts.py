"""Line charts as SVG in a page: no script, no picture beside it; colours are the page's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from marl_ray.reports.markup import Markup, element
from marl_ray.reports.returns_plot import trailing_mean, window

WIDTH, HEIGHT = 460.0, 200.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 8.0, 8.0, 24.0
"""Margins."""
MOST_POINTS = 400
"""Of a line; longer ones are thinned by means of neighbours."""
SMOOTHED_FROM = 8
"""Points from which on a line has its trailing mean drawn over it."""
COLOURS = 8
"""Of the page's style sheet: classes s0, s1, ..."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """`points` are (x, y) with rising x. `marks`: points, as of evaluations, with the bounds of each one's
    interval, if it has some; else a line. `colour` counts from 0."""

    label: str
    colour: int
    points: Points
    marks: bool = False
    bounds: Sequence[tuple[float, float]] = ()


def chart(title: str, curves: Sequence[Series]) -> Markup:
    """A figure of these curves, none of which is empty. What they are called is below it where there are several, the
    newest value is in each one's label."""
    frame = _frame(curves)
    drawn = [mark for curve in curves for mark in _curve(curve, frame)]
    picture = element("svg", _grid(frame), drawn, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=title)
    legend = [
        element(
            "span",
            f"{curve.label}: {number(curve.points[-1][1])}".removeprefix(": "),
            class_=f"key s{curve.colour % COLOURS}",
        )
        for curve in curves
    ]
    return element("figure", element("figcaption", title), picture, element("div", legend, class_="legend"))


def number(value: float) -> str:
    """For people: four digits that count."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def thinned(points: Points, most: int = MOST_POINTS) -> Points:
    """At most so many, each the mean of neighbours."""
    size = math.ceil(len(points) / most)
    if size <= 1:
        return points
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers from `low` to `high`, some `about` of them."""
    step = 10.0 ** math.floor(math.log10((high - low) / about))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= about + 0.5)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Frame:
    """What of the plane is seen."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.left) / (self.right - self.left) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def _frame(curves: Sequence[Series]) -> _Frame:
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    ys += [bound for curve in curves for bounds in curve.bounds for bound in bounds]
    low, high = _wide(min(ys), max(ys))
    return _Frame(*_wide(min(xs), max(xs)), low - 0.04 * (high - low), high + 0.04 * (high - low))


def _wide(low: float, high: float) -> tuple[float, float]:
    """Bounds that differ."""
    if high - low > 1e-12 * max(abs(low), abs(high)):
        return low, high
    half = abs(low) / 2 or 0.5
    return low - half, high + half


def _grid(frame: _Frame) -> list[Markup]:
    lines = []
    for value in ticks(frame.low, frame.high):
        y = round(frame.y(value), 1)
        lines.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        lines.append(element("text", number(value), x=LEFT - 6, y=y + 3.5, text_anchor="end"))
    for value in ticks(frame.left, frame.right):
        x = round(frame.x(value), 1)
        lines.append(element("text", number(value), x=x, y=HEIGHT - 6, text_anchor="middle"))
    return lines


def _curve(curve: Series, frame: _Frame) -> list[Markup]:
    colour = f"s{curve.colour % COLOURS}"
    if curve.marks or len(curve.points) == 1:
        ways = [
            f"M{frame.x(x):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"
            for (x, _), (low, high) in zip(curve.points, curve.bounds, strict=bool(curve.bounds))
        ]
        bars = [element("path", d=way, class_=f"line {colour}") for way in ways]
        places = [(f"{frame.x(x):.1f}", f"{frame.y(y):.1f}") for x, y in curve.points]
        dots = [element("circle", cx=x, cy=y, r=3.5, class_=colour) for x, y in places]
        return bars + dots
    if len(curve.points) < SMOOTHED_FROM:
        return [_line(curve.points, frame, f"line {colour}")]
    means = trailing_mean([y for _, y in curve.points], window(len(curve.points)))
    smooth = [(x, mean) for (x, _), mean in zip(curve.points, means, strict=True)]
    return [_line(curve.points, frame, f"line faint {colour}"), _line(smooth, frame, f"line {colour}")]


def _line(points: Points, frame: _Frame, kind: str) -> Markup:
    way = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in thinned(points))
    return element("polyline", points=way, class_=kind)
