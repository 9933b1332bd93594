"""Line plots as SVG: a line for each condition, its 95 % interval as a band. No library, no font from a server.

Colours are Okabe and Ito's, which people with any colour vision can distinguish; from the ninth line on, lines are
dashed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C6D1F")
WIDTH, HEIGHT = 860, 400
LEFT, TOP, RIGHT, BOTTOM = 64, 40, 230, 48  # margins; the legend stands in the right one
TICKS: Final = 5
MAX_POINTS: Final = 160  # of one line; more would not be visible


@dataclass(frozen=True)
class Line:
    """One condition; ``low`` and ``high`` are the ends of the interval at each point, or empty."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def ticks(low: float, high: float, wanted: int = TICKS) -> list[float]:
    """Returns round values from ``low`` to ``high``, about ``wanted`` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / wanted
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def label(value: float) -> str:
    if value != 0 and abs(value) >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if abs(value) >= 1e4 else f"{value:g}"


@dataclass(frozen=True)
class _Frame:
    """From values to positions in the picture."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        low, high = self.x
        return LEFT + (value - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def up(self, value: float) -> float:
        low, high = self.y
        inside = min(max(value, low), high)
        return HEIGHT - BOTTOM - (inside - low) / ((high - low) or 1.0) * (HEIGHT - TOP - BOTTOM)


def line_plot(
    title: str, lines: Sequence[Line], *, x_label: str, y_label: str, y_range: tuple[float, float] | None = None
) -> str:
    """Returns a whole SVG document. Raises ``ValueError`` without any point."""
    lines = [_thinned(line) for line in lines]
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in line.y if math.isfinite(y)]  # a wider band is cut at the frame
    if not xs or not ys:
        raise ValueError(f"{title}: nothing to plot")
    frame = _Frame((min(xs), max(xs)), y_range or (min(0.0, *ys), max(ys) * 1.1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
        *_axes(frame, x_label, y_label),
    ]
    for number, line in enumerate(lines):
        parts += _drawn(frame, line, number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _thinned(line: Line) -> Line:
    every = max(1, math.ceil(len(line.x) / MAX_POINTS))
    kept = sorted({*range(0, len(line.x), every), len(line.x) - 1}) if line.x else []
    low, high = ([side[i] for i in kept] if side else [] for side in (line.low, line.high))
    return Line(line.name, [line.x[i] for i in kept], [line.y[i] for i in kept], low, high)


def _axes(frame: _Frame, x_label: str, y_label: str) -> list[str]:
    parts = []
    for value in ticks(*frame.y):
        y = frame.up(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label(value)}</text>')
    for value in ticks(*frame.x):
        x = frame.across(value)
        parts.append(f'<path d="M{x:.1f} {HEIGHT - BOTTOM}v5" stroke="#444"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 19}" text-anchor="middle">{label(value)}</text>')
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts += [
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#444"/>',
        f'<text x="{middle_x:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(16 {middle_y:.0f}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]
    return parts


def _drawn(frame: _Frame, line: Line, number: int) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    dash = ' stroke-dasharray="5 3"' if number >= len(COLOURS) else ""
    points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
    path = " ".join(f"{frame.across(x):.1f},{frame.up(y):.1f}" for x, y in points)
    parts = []
    if line.low and all(map(math.isfinite, (*line.low, *line.high))):
        there = [f"{frame.across(x):.1f},{frame.up(y):.1f}" for x, y in zip(line.x, line.high, strict=True)]
        back = [f"{frame.across(x):.1f},{frame.up(y):.1f}" for x, y in zip(line.x, line.low, strict=True)][::-1]
        parts.append(f'<polygon points="{" ".join(there + back)}" fill="{colour}" fill-opacity="0.13"/>')
    parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
    y = TOP + 8 + 20 * number
    x = WIDTH - RIGHT + 14
    parts.append(f'<path d="M{x} {y}h22" stroke="{colour}" stroke-width="3"{dash}/>')
    parts.append(f'<text x="{x + 28}" y="{y + 4}">{escape(line.name)}</text>')
    return parts
