"""`holdfast bench picture`: overhead against recovery time, a point a policy, as an SVG written by hand.

To the right is what a policy costs while nothing fails, as time relative to `gap()`; upwards, on a logarithmic scale,
how long it takes after kill -9 until the next epoch is committed. Down and to the left is better on both counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from holdfast.bench.policy_job import CASES
from holdfast.core.json import Json

WIDTH, HEIGHT = 860, 560
LEFT, RIGHT, TOP, BOTTOM = 80, 820, 50, 490

# Distances between marks on the axis of overheads, of which the first is taken that gives few enough.
STEPS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
MARKS_MAX = 8

# The room that a label takes: those that would cover each other are moved apart.
LABEL_PX, LINE_PX = 190, 16


@dataclass(frozen=True)
class Point:
    """A policy in the picture."""

    label: str
    overhead: float  # time over that of gap()
    seconds: float  # from kill -9 to the next commit


@dataclass(frozen=True)
class Axes:
    """From values to pixels, with the marks of both axes."""

    overheads: Sequence[float]
    seconds: Sequence[float]

    def x(self, overhead: float) -> float:
        low, high = self.overheads[0], self.overheads[-1]
        return LEFT + (overhead - low) / (high - low) * (RIGHT - LEFT)

    def y(self, seconds: float) -> float:
        low, high, here = (math.log10(value) for value in (self.seconds[0], self.seconds[-1], seconds))
        return BOTTOM - (here - low) / (high - low) * (BOTTOM - TOP)


def run(policies: Path, recovery: Path, out: Path) -> None:
    """Draw what both benchmarks wrote."""
    out.write_text(drawn(points_of(_figures(policies), _figures(recovery))), encoding="utf-8")


def points_of(policies: Mapping[str, float], recovery: Mapping[str, float]) -> list[Point]:
    """A point for every policy that both benchmarks have measured; `gap()` is what others are compared with."""
    overheads = {**policies, "gap_over_gap": 1.0}
    points = [
        Point(case.call, overheads[over], recovery[after])
        for case in CASES.values()
        if (over := f"{case.name}_over_gap") in overheads
        and (after := f"{case.recovery}_first_epoch_s") in recovery
    ]
    if not points:
        raise ValueError("no policy has a figure in both files")
    return points


def drawn(points: Sequence[Point]) -> str:
    """The picture."""
    axes = Axes(overhead_marks(points), second_marks(points))
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 28, "What recovery costs, and what it buys", "start", 'font-size="16"'),
        *_grid(axes),
        text((LEFT + RIGHT) / 2, HEIGHT - 24, "time of an epoch, relative to gap()"),
        text(
            24,
            (TOP + BOTTOM) / 2,
            "seconds from kill -9 to the next commit",
            "middle",
            f'transform="rotate(-90 24 {(TOP + BOTTOM) / 2:g})"',
        ),
        *_dots(points, axes),
    ]
    lines = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" font-family="sans-serif" font-size="13">\n{lines}\n</svg>\n'
    )


def overhead_marks(points: Sequence[Point]) -> list[float]:
    """Evenly spaced marks around all overheads, with room to spare at both ends."""
    low, high = (pick(point.overhead for point in points) for pick in (min, max))
    for step in STEPS:
        first, last = math.floor(low / step - 0.25), math.ceil(high / step + 0.25)
        if last - first < MARKS_MAX:
            break
    return [number * step for number in range(first, last + 1)]


def second_marks(points: Sequence[Point]) -> list[float]:
    """One, two and five times every power of ten, as far as the times go."""
    low, high = (pick(point.seconds for point in points) for pick in (min, max))
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    marks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    first = max(number for number, mark in enumerate(marks) if mark <= low)
    last = min(number for number, mark in enumerate(marks) if mark > high)
    return marks[first : last + 1]


def _grid(axes: Axes) -> list[str]:
    upright = [
        part
        for mark in axes.overheads
        for part in (
            line(axes.x(mark), TOP, axes.x(mark), BOTTOM),
            text(axes.x(mark), BOTTOM + 20, f"{mark:g}"),
        )
    ]
    level = [
        part
        for mark in axes.seconds
        for part in (
            line(LEFT, axes.y(mark), RIGHT, axes.y(mark)),
            text(LEFT - 8, axes.y(mark) + 4, f"{mark:g}", "end"),
        )
    ]
    return upright + level


def _dots(points: Sequence[Point], axes: Axes) -> list[str]:
    """A dot and a label each; a label that would cover another moves down."""
    parts: list[str] = []
    taken: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: -point.seconds):
        x, y = axes.x(point.overhead), axes.y(point.seconds)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="#1f6f8b"/>')
        to_the_left = x + LABEL_PX > RIGHT
        at_x, at_y = (x - 9 if to_the_left else x + 9), y + 4
        while any(abs(at_x - one) < LABEL_PX and abs(at_y - other) < LINE_PX for one, other in taken):
            at_y += 1
        taken.append((at_x, at_y))
        parts.append(text(at_x, at_y, point.label, "end" if to_the_left else "start"))
    return parts


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place} {more}>{escape(words)}</text>" if more else f"<text {place}>{escape(words)}</text>"


def _figures(path: Path) -> Json:
    found: Json = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return found
