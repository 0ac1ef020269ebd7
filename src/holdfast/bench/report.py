"""What a benchmark found: medians with their spread, as tables for a reader and as JSON for a machine.

The JSON has a flat object `figures` with fixed names. Everything the figures were computed from is beside
it under `runs`, with the seed, the parameters and the machine, so that a figure can be checked or repeated.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

# Columns of text where there is no terminal: the widest table fits.
WIDTH_ASIDE = 110


@dataclass(frozen=True)
class Spread:
    """Where repeated measurements of one thing lie."""

    count: int
    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float
    maximum: float


def spread(samples: Sequence[float]) -> Spread:
    """Summarise samples without assuming how they are distributed.

    >>> spread([3.0, 1.0, 2.0]).median
    2.0
    """
    if not samples:
        raise ValueError("there is no spread of no samples")
    lower, middle, upper = (
        statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [samples[0]] * 3
    )
    return Spread(len(samples), min(samples), lower, middle, upper, max(samples))


@dataclass(frozen=True)
class Bar:
    """What a figure has to reach."""

    sense: Literal["at least", "at most"]
    value: float

    def holds(self, figure: float) -> bool:
        return figure >= self.value if self.sense == "at least" else figure <= self.value


@dataclass(frozen=True)
class Figure:
    """One named result: the ratio that counts, and the ratios of the single rounds around it."""

    name: str
    value: float
    low: float
    high: float


def ratio(
    name: str,
    over: Sequence[Sequence[float]],
    under: Sequence[Sequence[float]],
    typical: Callable[[Sequence[float]], float] = statistics.median,
) -> Figure:
    """The ratio of two sides' medians over all rounds; its spread is that of the rounds taken alone.

    Each side is a list of rounds, each round a list of samples. Rounds are compared pairwise, because what
    disturbs a machine for a minute disturbs neighbours in time alike. `typical` may take the place of the
    median where a median would pass over what happens now and then.
    """
    alone = [typical(a) / typical(b) for a, b in zip(over, under, strict=True) if a and b]
    flat_over = [sample for samples in over for sample in samples]
    flat_under = [sample for samples in under for sample in samples]
    value = typical(flat_over) / typical(flat_under)
    return Figure(name, value, min(alone), max(alone))


@dataclass(frozen=True)
class Line:
    """A row of the table of sides."""

    size: str
    side: str
    seconds: Spread
    rows: int


@dataclass
class Report:
    """All that one benchmark run found."""

    benchmark: str
    seed: int
    parameters: Mapping[str, object]
    bars: Mapping[str, Bar] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    runs: list[Mapping[str, object]] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        return {
            "benchmark": self.benchmark,
            "figures": {figure.name: figure.value for figure in self.figures},
            "spread": {figure.name: [figure.low, figure.high] for figure in self.figures},
            "seed": self.seed,
            "parameters": dict(self.parameters),
            "machine": machine(),
            "runs": self.runs,
        }

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    def show(self, console: Console | None = None) -> None:
        console = console or wide_console()
        if self.lines:
            console.print(sides_table(self.benchmark, self.lines))
        if self.figures:
            console.print(figures_table(self.figures, self.bars))


def wide_console() -> Console:
    """A terminal is as wide as it is; in a file or a pipe, columns need not be cut to fit one."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_ASIDE)
    return console


def sides_table(title: str, lines: Sequence[Line]) -> Table:
    table = Table(title=f"bench {title}: seconds an epoch", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading in ("size", "side"):
        table.add_column(heading, no_wrap=True)
    for heading in ("epochs", "median", "quartiles", "min..max", "rows/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        s = line.seconds
        table.add_row(
            line.size,
            line.side,
            str(s.count),
            f"{s.median:.3g}",
            f"{s.lower_quartile:.3g}..{s.upper_quartile:.3g}",
            f"{s.minimum:.3g}..{s.maximum:.3g}",
            f"{line.rows / s.median:,.0f}",
        )
    return table


def figures_table(figures: Sequence[Figure], bars: Mapping[str, Bar]) -> Table:
    table = Table(title="figures", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("figure", no_wrap=True)
    for heading in ("value", "low..high", "wanted", "holds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in figures:
        bar = bars.get(figure.name)
        wanted = f"{bar.sense} {bar.value:g}" if bar else ""
        verdict = ("[green]yes" if bar.holds(figure.value) else "[red]no") if bar else ""
        table.add_row(
            figure.name, f"{figure.value:.2f}", f"{figure.low:.2f}..{figure.high:.2f}", wanted, verdict
        )
    return table


def machine() -> dict[str, object]:
    """What the figures were measured on; no names of hosts, users or directories."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1m": os.getloadavg()[0],
        "python": platform.python_version(),
        "pyspark": metadata.version("pyspark"),
        "pyarrow": metadata.version("pyarrow"),
        "numpy": metadata.version("numpy"),
    }
