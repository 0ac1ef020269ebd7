"""The plot of `holdfast bench tracker`: messages and bytes of a substream over the nodes, both scales logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.bench.picture import line, text
from holdfast.bench.tracker_traffic import Traffic

WIDTH, HEIGHT = 900, 460
TOP, BOTTOM = 60, 380
PANELS = ((70, 430), (520, 880))  # left and right of each
COLOURS = ("#b5483a", "#1f6f8b", "#7fb2c4", "#555555")

Value = Callable[[Traffic], float]


@dataclass(frozen=True)
class Panel:
    """One of the two plots: from values to pixels."""

    left: float
    right: float
    nodes: tuple[int, int]  # of the axes, in powers of ten: from, to
    values: tuple[int, int]

    def x(self, nodes: float) -> float:
        return self.left + _share(nodes, self.nodes) * (self.right - self.left)

    def y(self, value: float) -> float:
        return BOTTOM - _share(value, self.values) * (BOTTOM - TOP)


def drawn(series: Mapping[str, Sequence[Traffic]]) -> str:
    """The picture."""
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    values: tuple[tuple[str, Value], ...] = (
        ("messages of a substream", lambda traffic: traffic.messages_each),
        ("bytes of a substream", lambda traffic: traffic.bytes_each),
    )
    for (left, right), (title, value) in zip(PANELS, values, strict=True):
        parts += _panel(left, right, title, series, value)
    parts += _legend(series)
    lines = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" font-family="sans-serif" font-size="13">\n{lines}\n</svg>\n'
    )


def _panel(
    left: float, right: float, title: str, series: Mapping[str, Sequence[Traffic]], value: Value
) -> list[str]:
    every = [traffic for one in series.values() for traffic in one]
    panel = Panel(left, right, _decades([t.nodes for t in every]), _decades([value(t) for t in every]))
    middle = (left + right) / 2
    return [
        text(middle, 36, title, "middle", 'font-size="15"'),
        text(middle, BOTTOM + 38, "nodes"),
        *_grid(panel),
        *(
            part
            for colour, one in zip(COLOURS, series.values(), strict=False)
            for part in _curve(colour, [(panel.x(t.nodes), panel.y(value(t))) for t in one])
        ),
    ]


def _grid(panel: Panel) -> list[str]:
    upright = [10.0**decade for decade in range(panel.nodes[0], panel.nodes[1] + 1)]
    level = range(panel.values[0], panel.values[1] + 1)
    return [
        *(line(panel.x(mark), TOP, panel.x(mark), BOTTOM) for mark in upright),
        *(text(panel.x(mark), BOTTOM + 20, f"{mark:,.0f}") for mark in upright),
        *(line(panel.left, panel.y(10.0**d), panel.right, panel.y(10.0**d)) for d in level),
        *(text(panel.left - 8, panel.y(10.0**d) + 4, _round(d), "end") for d in level),
    ]


def _curve(colour: str, places: Sequence[tuple[float, float]]) -> list[str]:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
    return [f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def _legend(names: Mapping[str, object]) -> list[str]:
    parts = []
    for at, (colour, name) in enumerate(zip(COLOURS, names, strict=False)):
        x = PANELS[0][0] + 270 * at
        parts.append(f'<circle cx="{x}" cy="{HEIGHT - 20}" r="5" fill="{colour}"/>')
        parts.append(text(x + 12, HEIGHT - 16, name, "start"))
    return parts


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten around all values."""
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))


def _share(value: float, decades: tuple[int, int]) -> float:
    return (math.log10(value) - decades[0]) / (decades[1] - decades[0])


def _round(decade: int) -> str:
    """A power of ten as people say it.

    >>> [_round(decade) for decade in (0, 2, 4, 6)]
    ['1', '100', '10 k', '1 M']
    """
    unit = ("", " k", " M", " G")[decade // 3]
    return f"{10 ** (decade % 3)}{unit}"
