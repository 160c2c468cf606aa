"""Contrast of the page's texts in both themes, by the formula of WCAG 2."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

import marl_ray.plugins.report as report

LEAST = 4.5
Colour = tuple[float, ...]


def palette(theme: int) -> dict[str, Colour]:
    """Return the colours of the light (0) or the dark (1) theme by name, as three numbers from 0 to 1."""
    colours = {}
    for file in (Path(report.__file__).parent / "page").glob("*.css"):
        for name, value in re.findall(r"--([\w-]+): ([^;]*#[^;]*);", file.read_text(encoding="utf-8")):
            both = re.findall("#([0-9a-f]{6})", value)
            colours[name] = tuple(channel / 255 for channel in bytes.fromhex(both[min(theme, len(both) - 1)]))
    return colours


def mix(colour: Colour, share: float, ground: Colour) -> Colour:
    """Return `color-mix(in srgb, colour share, ground)`."""
    return tuple(share * over + (1 - share) * under for over, under in zip(colour, ground, strict=True))


def contrast(one: Colour, other: Colour) -> float:
    """Return the contrast ratio of two colours."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: Colour) -> float:
    """Return the relative luminance."""
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1])
def test_texts_are_legible(theme: int) -> None:
    colours = palette(theme)
    grounds = []
    for name, ground in product(("text", "quiet", "link"), ("ground", "panel")):
        grounds.append((name, ground, colours[ground]))
    for name in ("good", "bad", "alert"):
        grounds.append((name, f"{name}-ground", colours[f"{name}-ground"]))
    for agent in range(8):
        own = colours[f"agent-{agent}-ground"]
        grounds += [(name, f"agent {agent}", own) for name in (f"agent-{agent}", "text", "quiet")]
        # Tokens of low probability, the strongest shade.
        grounds.append(("text", f"heat of agent {agent}", mix(colours["below"], 0.6, own)))
    for name in ("above", "below"):
        grounds.append(("text", name, mix(colours[name], 0.5, colours["panel"])))
    assert [(name, place) for name, place, ground in grounds if contrast(colours[name], ground) < LEAST] == []


def test_the_formula() -> None:
    assert contrast((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)) == pytest.approx(21.0)
