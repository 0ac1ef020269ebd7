"""Substreams as a user describes them: what labels a row, and what closes a label.

A stage that labels is the source of its labels: it adds the column `substream`, and it alone says when no row of a
label will come any more. `docs/SUBSTREAMS.md` is for users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.core.duration import microseconds, spelled
from holdfast.core.errors import PlanError
from holdfast.core.json import Json
from holdfast.flow.windows import EventTime, event_time

# The column that carries a row's label.
SUBSTREAM = "substream"

# How a flow finds out that a substream has ended.
XOR, PUNCTUATION = "xor", "punctuation"
TRACKERS = (XOR, PUNCTUATION)

_SECOND_US = 1_000_000
_HINT = 'Write .substream(time="ts", every="1 hour", late="10 minutes"), or .substream(by="batch", closed_when="is_last").'


@dataclass(frozen=True)
class Labelling:
    """What labels rows: a window of event time, an expression, or both; and what closes a label."""

    by: str | None  # a SQL expression
    every_us: int | None  # the length of the windows; None: labels have no time
    closed_when: str | None  # a SQL expression: the epoch with a row for which it is true is the label's last
    remember_us: int | None  # without time: how long a closed label is known for closed

    @property
    def closed_by(self) -> str:
        """What closes a label, but for a drained input, which closes all."""
        if self.every_us is not None:
            return f"the watermark passes the end of its window of {spelled(self.every_us)}"
        return f"a row with {self.closed_when}" if self.closed_when else "the end of a drained input"

    @property
    def facts(self) -> Json:
        """What `explain` says of it."""
        return {
            "by": self.by,
            "every": None if self.every_us is None else spelled(self.every_us),
            "closed_by": self.closed_by,
            "remembers_closed_for": None if self.remember_us is None else spelled(self.remember_us),
        }

    def end_us(self, label: str) -> int | None:
        """Where the window of a label ends; None where labels have no time.

        >>> Labelling("tenant", 3_600_000_000, None, None).end_us("acme/1970-01-01T01:00:00Z")
        7200000000
        """
        if self.every_us is None:
            return None
        start = datetime.strptime(label.rpartition("/")[2], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        return round((start - datetime.fromtimestamp(0, UTC)).total_seconds()) * _SECOND_US + self.every_us


def labelling_of(
    by: str | None,
    time: str | None,
    every: str | None,
    late: str | None,
    closed_when: str | None,
    remember: str | None,
    max_ahead: str | None,
) -> tuple[Labelling, EventTime | None]:
    """Check what the user wrote."""
    if time is None:
        _refuse(every=every, late=late, max_ahead=max_ahead, because="needs time=")
        if not by:
            raise PlanError("substream needs by= or time=", operation="describe", hint=_HINT)
        kept = microseconds(remember or "7 days", "remember")
        return Labelling(by, None, closed_when, kept), None
    _refuse(closed_when=closed_when, remember=remember, because="has no meaning with time=")
    if every is None:
        raise PlanError("substream with time= needs every=", operation="describe", hint=_HINT)
    every_us = microseconds(every, "every")
    if every_us % _SECOND_US:
        raise PlanError(
            f"every={every!r} is not a number of whole seconds, which labels are spelled in",
            operation="describe",
        )
    judged = event_time(time, microseconds(late or "0 seconds", "late", zero=True), max_ahead)
    return Labelling(by, every_us, None, None), judged


def waits_for_end(keys: Sequence[str], emit: str) -> bool:
    """Whether keys leave when their substream has ended, from what the user wrote as `emit=`."""
    if emit not in ("updates", "end"):
        raise PlanError(f"emit={emit!r} is not one of updates, end", operation="describe")
    if emit == "end" and SUBSTREAM not in keys:
        raise PlanError(
            f'emit="end" waits for the end of substreams, and {SUBSTREAM!r} is not among the keys',
            operation="describe",
            hint=f"Label the rows with .substream(...) before, and group by {SUBSTREAM!r} too.",
        )
    return emit == "end"


def _refuse(*, because: str, **options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise PlanError(f"substream({name}=...) {because}", operation="describe", hint=_HINT)
