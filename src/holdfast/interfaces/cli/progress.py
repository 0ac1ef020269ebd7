"""One line a stage: live on a terminal, plain lines from time to time elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from holdfast.runtime.progress import Progress

_PLAIN_EVERY_S = 2.0


class ProgressView:
    """Shows a run's progress to whoever is looking."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        )
        self._last = 0.0
        self._shown: dict[str, int] = {}

    def __enter__(self) -> ProgressView:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Show the numbers as they are now."""
        if self._live:
            self._live.update(_table(progress))
        elif time.monotonic() - self._last >= _PLAIN_EVERY_S:
            self._last = time.monotonic()
            self._plain(progress)

    def _plain(self, progress: Progress) -> None:
        for name, stage in list(progress.stages.items()):
            if self._shown.get(name) != stage.epoch:
                self._shown[name] = stage.epoch
                self._console.print(
                    f"{name} epoch={stage.epoch} rows/s={stage.rows_per_second:.0f} rows={stage.rows}"
                    f" state_rows={stage.state_rows}{aside(stage.aside)}",
                    soft_wrap=True,
                )


def aside(counts: dict[str, int]) -> str:
    """Rows that went another way, by reason: late, without a time, too far ahead, duplicates."""
    return "".join(f", {count:,} {reason.replace('_', ' ')}" for reason, count in counts.items() if count)


def _table(progress: Progress) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("stage", "epoch", "rows", "rows/s", "keys", "merges"):
        table.add_column(title, justify="left" if title == "stage" else "right")
    for name, stage in list(progress.stages.items()):
        numbers = (stage.epoch, stage.rows, int(stage.rows_per_second), stage.state_rows, len(stage.merges))
        table.add_row(name, *(f"{number:,}" for number in numbers))
    return table
