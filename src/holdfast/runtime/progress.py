"""What a run has done so far, as numbers that a person can follow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from holdfast.core.size import size
from holdfast.ledger.lag import Lag, Standing


@dataclass
class StageProgress:
    """One stage's part of a run."""

    epoch: int = -1
    epochs: int = 0
    rows: int = 0
    seconds: float = 0.0
    state_rows: int = 0
    state_bytes: int = 0  # of the layers that hold the state now
    lag: Lag = field(default_factory=Lag)  # what waits for the stage
    layer_bytes: int = 0
    repairs: int = 0
    aside: dict[str, int] = field(default_factory=dict)  # rows that went another way, since the flow began
    samples: list[EpochSample] = field(default_factory=list, repr=False)
    merges: list[MergeSample] = field(default_factory=list, repr=False)

    @property
    def rows_per_second(self) -> float:
        """Throughput while epochs were under way."""
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class EpochSample:
    """How one epoch went."""

    epoch: int
    rows: int
    seconds: float
    operator_seconds: float
    layer_bytes: int
    committed_s: float  # on the monotonic clock


@dataclass(frozen=True)
class MergeSample:
    """What one merge wrote."""

    first: int
    last: int
    bytes: int
    steps: int


@dataclass(frozen=True)
class Notice:
    """Something that happened in a flow and that a person should know of."""

    at_ms: int
    kind: str  # failover, expelled, not seen, code changed, skipped, not survived
    reason: str


# Letters of a line of a printed report, which is meant to fit a terminal, and of a stage's name in it at least.
LINE_MAX, NAME_SHOWN_MIN = 80, 7

# Samples that a run keeps per stage, for its report; a long run keeps the newest.
SAMPLES_MAX = 10_000


class Progress:
    """Collected by the loops, read by whoever shows it."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.stages: dict[str, StageProgress] = {}
        self.sinks: dict[str, int] = {}
        self.notices: list[Notice] = []  # the newest last
        self._lock = Lock()

    def stage(self, name: str) -> StageProgress:
        """A stage's numbers."""
        with self._lock:
            return self.stages.setdefault(name, StageProgress())

    @property
    def epochs(self) -> int:
        """How many epochs were committed since the run began, or since it last said where its stages stand."""
        with self._lock:
            return sum(stage.epochs for stage in self.stages.values())

    def notice(self, notice: Notice) -> None:
        """Keep it for whoever watches the run."""
        self.notices.append(notice)

    def resume(self, name: str, epoch: int, state_rows: int, aside: dict[str, int]) -> None:
        """Say where a stage stands when the run starts."""
        self.stages[name] = StageProgress(epoch, state_rows=state_rows, aside=aside)

    def measured(self, standings: Mapping[str, Standing]) -> None:
        """Take over what the ledger says of lag and state."""
        for name, standing in standings.items():
            stage = self.stage(name)
            with self._lock:
                stage.lag, stage.state_bytes = standing.lag, standing.state_bytes

    def epoch_done(self, name: str, sample: EpochSample, state_rows: int, aside: dict[str, int]) -> None:
        """Count a committed epoch."""
        stage = self.stage(name)
        with self._lock:
            stage.epoch = sample.epoch
            stage.epochs += 1
            stage.rows += sample.rows
            stage.seconds += sample.seconds
            stage.state_rows = state_rows
            stage.aside = aside
            stage.layer_bytes += sample.layer_bytes
            stage.samples.append(sample)
            del stage.samples[:-SAMPLES_MAX]

    def merge_done(self, name: str, sample: MergeSample) -> None:
        """Count a committed merge."""
        stage = self.stage(name)
        with self._lock:
            stage.merges.append(sample)
            del stage.merges[:-SAMPLES_MAX]

    def sink_done(self, name: str, epoch: int) -> None:
        """Note the newest epoch that a sink has published."""
        with self._lock:
            self.sinks[name] = epoch


@dataclass(frozen=True, repr=False)
class Report:
    """What a run did, for the caller of `flow.run`. Printed, it is a line per stage."""

    flow: str
    generation: int
    seconds: float
    stages: dict[str, StageProgress]
    sinks: dict[str, int]

    @property
    def rows(self) -> int:
        """Rows that all stages together took from their inputs."""
        return sum(stage.rows for stage in self.stages.values())

    def __str__(self) -> str:
        head = f"flow {self.flow}, generation {self.generation}: {self.rows:,} rows in {self.seconds:.1f} s"
        titles = ("stage", "epochs", "rows", "rows/s", "lag", "state rows", "state")
        lines = [titles, *((name, *_numbers(stage)) for name, stage in self.stages.items())]
        sinks = [f"sink {name}: epoch {epoch}" for name, epoch in self.sinks.items()]
        return "\n".join([head, *_columns(lines), *sinks])

    __repr__ = __str__


def _numbers(stage: StageProgress) -> list[str]:
    numbers = (stage.epochs, stage.rows, round(stage.rows_per_second), stage.lag.rows, stage.state_rows)
    return [*(f"{number:,}" for number in numbers), size(stage.state_bytes)]


def _columns(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with their columns below each other: names, cut to what the numbers leave of a line, then numbers."""
    widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[1:]]
    room = max(NAME_SHOWN_MIN, LINE_MAX - sum(width + 2 for width in widths))
    names = min(room, max(len(name) for name, *_ in lines))
    return [
        "  ".join(
            [
                f"{name if len(name) <= names else f'{name[: names - 1]}…':<{names}}",
                *(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)),
            ]
        )
        for name, *cells in lines
    ]
