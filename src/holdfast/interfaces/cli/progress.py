"""One line a stage while a flow runs: live on a terminal, plain lines or JSON lines from time to time elsewhere."""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from holdfast.core.json import Json
from holdfast.core.moment import moment
from holdfast.core.size import size
from holdfast.interfaces.cli.shared import table
from holdfast.ledger.lag import Lag
from holdfast.runtime.progress import Notice, Progress, Report, StageProgress

_LINES_EVERY_S = 2.0


class View(Protocol):
    """Shows a run to whoever started it."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, progress: Progress) -> None:
        """Show the numbers as they are now."""

    def finished(self, report: Report) -> None:
        """Show what the whole run did."""

    def stopped(self) -> None:
        """Say that it was told to stop."""


def view_for(out: Console, *, quiet: bool, as_json: bool) -> View:
    """What fits whoever is looking."""
    if as_json:
        return JsonLines()
    if quiet:
        return Quiet()
    return Terminal(out) if out.is_terminal else PlainLines(out)


class Quiet:
    """Shows nothing."""

    def __enter__(self) -> Quiet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def show(self, progress: Progress) -> None:
        """Nothing."""

    def finished(self, report: Report) -> None:
        """Nothing."""

    def stopped(self) -> None:
        """Nothing."""


class Terminal(Quiet):
    """A table that changes in place, and the summary."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._live = Live(console=out, refresh_per_second=4, transient=True)
        self._told = 0  # notices

    def __enter__(self) -> Terminal:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, progress: Progress) -> None:
        """Draw the table anew, below what has happened."""
        for notice in progress.notices[self._told :]:
            self._live.console.print(notice_line(notice), soft_wrap=True, markup=False, highlight=False)
        self._told = len(progress.notices)
        self._live.update(live_table(progress))

    def finished(self, report: Report) -> None:
        """A line a stage."""
        self._live.stop()
        summarise(self._out, report)

    def stopped(self) -> None:
        """Say how to go on."""
        self._live.stop()
        self._out.print(STOPPED)


class Lines(Quiet, ABC):
    """Lines about the stages that have moved since the last, not too often."""

    def __init__(self) -> None:
        self._last = 0.0
        self._shown: dict[str, tuple[int, Lag]] = {}
        self._told = 0  # notices

    def show(self, progress: Progress) -> None:
        """Say at once what has befallen a worker, and what else has changed, if it is time."""
        for notice in progress.notices[self._told :]:
            self.notice(notice)
        self._told = len(progress.notices)
        if time.monotonic() - self._last < _LINES_EVERY_S:
            return
        self._last = time.monotonic()
        for name, stage in list(progress.stages.items()):
            now = (stage.epoch, stage.lag)
            if self._shown.get(name) != now:
                self._shown[name] = now
                self.line(name, stage)

    @abstractmethod
    def notice(self, notice: Notice) -> None:
        """Say what has befallen a worker."""

    @abstractmethod
    def line(self, name: str, stage: StageProgress) -> None:
        """Say how far a stage has come."""


class PlainLines(Lines):
    """For logs."""

    def __init__(self, out: Console) -> None:
        super().__init__()
        self._out = out

    def notice(self, notice: Notice) -> None:
        """When, what, why."""
        self._out.print(notice_line(notice), soft_wrap=True, markup=False, highlight=False)

    def line(self, name: str, stage: StageProgress) -> None:
        """`name key=value ...`"""
        self._out.print(plain_line(name, stage), soft_wrap=True)

    def finished(self, report: Report) -> None:
        """A line a stage."""
        summarise(self._out, report)

    def stopped(self) -> None:
        """Say how to go on."""
        self._out.print(STOPPED, soft_wrap=True)


class JsonLines(Lines):
    """For programs: an object a line, told apart by `type`."""

    def notice(self, notice: Notice) -> None:
        """What has befallen a worker."""
        _print({"type": notice.kind, "at_ms": notice.at_ms, "reason": notice.reason})

    def line(self, name: str, stage: StageProgress) -> None:
        """How far a stage has come."""
        _print({"type": "progress", "stage": name, **facts(stage)})

    def finished(self, report: Report) -> None:
        """What the run did."""
        _print(
            {
                "type": "finished",
                "flow": report.flow,
                "generation": report.generation,
                "seconds": round(report.seconds, 3),
                "stages": {name: facts(stage) for name, stage in report.stages.items()},
                "sinks": report.sinks,
            }
        )

    def stopped(self) -> None:
        """It was told to stop."""
        _print({"type": "stopped"})


STOPPED = "Stopped. Run the same command again to go on from the last committed epoch."


def notice_line(notice: Notice) -> str:
    """As `status` and `workers` say it too."""
    return f"{moment(notice.at_ms * 1000)} {notice.kind}: {notice.reason}"


def facts(stage: StageProgress) -> Json:
    """One stage's part of a run, as docs/COMMANDS.md documents it."""
    return {
        "epoch": stage.epoch,
        "epochs": stage.epochs,
        "rows": stage.rows,
        "rows_per_second": round(stage.rows_per_second, 1),
        "lag": {"items": stage.lag.items, "rows": stage.lag.rows},
        "state_rows": stage.state_rows,
        "state_bytes": stage.state_bytes,
        "merges": len(stage.merges),
        "aside": stage.aside,
    }


def plain_line(name: str, stage: StageProgress) -> str:
    """A stage as words that a log can be searched for."""
    numbers = {
        "epoch": stage.epoch,
        "rows": stage.rows,
        "rows/s": round(stage.rows_per_second),
        "lag_rows": stage.lag.rows,
        "lag_items": stage.lag.items,
        "state_rows": stage.state_rows,
        "state_bytes": stage.state_bytes,
        **stage.aside,
    }
    return " ".join([name, *(f"{key}={value}" for key, value in numbers.items())])


def live_table(progress: Progress) -> Table:
    """All stages, a line each."""
    shown = table(("stage",), ("epoch", "rows", "rows/s", "lag", "state rows", "state", "merges"))
    for name, stage in list(progress.stages.items()):
        shown.add_row(
            name,
            str(stage.epoch),
            f"{stage.rows:,}",
            f"{stage.rows_per_second:,.0f}",
            waiting(stage.lag),
            f"{stage.state_rows:,}",
            size(stage.state_bytes),
            str(len(stage.merges)),
        )
    return shown


def summarise(out: Console, report: Report) -> None:
    """What the run did, a line a stage."""
    for name, stage in report.stages.items():
        parts = [
            f"{stage.epochs} epochs",
            f"{stage.rows:,} rows",
            f"{stage.rows_per_second:,.0f} rows/s",
            f"now at epoch {stage.epoch}",
            f"{stage.state_rows:,} state rows",
            size(stage.state_bytes),
            *([f"behind by {waiting(stage.lag)}"] if stage.lag.items else []),
            *([aside(stage.aside)] if stage.aside else []),
        ]
        out.print(f"{name}: {', '.join(parts)}", soft_wrap=True)
    out.print(f"Idle after {report.seconds:.1f} s.")


def waiting(lag: Lag) -> str:
    """What has not been processed yet."""
    return f"{lag.rows:,} rows in {lag.items:,} item{'' if lag.items == 1 else 's'}" if lag.items else "0"


def aside(counts: dict[str, int]) -> str:
    """Rows that went another way, by reason: late, without a time, too far ahead, duplicates."""
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.items() if count)


def _print(body: Json) -> None:
    print(json.dumps(body, ensure_ascii=False))
    sys.stdout.flush()
