"""A stream with keys: what `group_by` gives, and what can be computed per key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.core.errors import PlanError
from holdfast.flow import nodes
from holdfast.flow.aggregates import Aggregate, check_aggregate
from holdfast.flow.windows import WINDOW_END, WINDOW_START, Window, window_of

if TYPE_CHECKING:
    from holdfast.flow.flow import Stream


@dataclass(frozen=True, eq=False)
class GroupedStream:
    """A stream with keys, waiting to be told what to compute per key."""

    stream: Stream
    keys: tuple[str, ...]
    windows: Window | None = None
    at_end: bool = False

    def window(
        self,
        time: str,
        *,
        tumbling: str | None = None,
        sliding: tuple[str, str] | None = None,
        session: str | None = None,
        late: str = "0 seconds",
        emit: str = "final",
        max_ahead: str | None = None,
    ) -> GroupedStream:
        """Aggregate per window of event time. A window is final when the watermark reaches its end.

        The output has the columns `window_start` and `window_end`.

        - `time`: the column of event time.
        - `tumbling`: the length of windows that follow each other, `"1 minute"`.
        - `sliding`: a size and a slide, `("10 minutes", "1 minute")`: a window of that size begins at every slide.
        - `session`: a gap, `"30 minutes"`: a window ends when a key had no row for so long. Exactly one of these three is given.
        - `late`: how far behind the newest row the watermark stays; `"0 seconds"` by default.
        - `emit`: `"final"`, the default, gives each window once; `"updates"` gives it in every epoch that changes it, and is not
          for sessions.
        - `max_ahead`: rows further in the future of the clock are set aside: one of them would otherwise close every window
          before it. By default none are.

        Raises `hf.PlanError` if not exactly one kind of window is given, a duration cannot be read, `emit` cannot be, a key has the
        name of a window's column, or a row would be in too many windows.

        >>> import holdfast as hf
        >>> clicks = hf.Flow("clicks").source("clicks", hf.files("in/", schema="page string, at timestamp"))
        >>> minutes = clicks.group_by("page").window("at", tumbling="1 minute", late="30 seconds").agg(n=hf.count())
        """
        if self.at_end:
            raise PlanError(
                'group_by(emit="end") has no windows: the substream is one',
                operation="describe",
                hint="Leave window(...) out, or emit=.",
            )
        for name in (WINDOW_START, WINDOW_END):
            if name in self.keys:
                raise PlanError(
                    f"the key {name!r} has the name of a column of the window's output",
                    operation="describe",
                    hint="Rename it in a transform before.",
                )
        return replace(self, windows=window_of(time, tumbling, sliding, session, late, emit, max_ahead))

    def agg(self, **aggregates: Aggregate) -> Stream:
        """Keep aggregates per key, or per key and window.

        Without a window, each epoch emits the keys it changed, with their new values.

        - `aggregates`: what `hf.count`, `hf.sum` and the like give, by the names of their columns.

        Raises `hf.PlanError` if there is none, one is no aggregate, or has the name of a key or of a window's column.
        """
        if not aggregates:
            raise PlanError("agg needs at least one aggregate, such as n=hf.count()", operation="describe")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise PlanError(
                    f"agg({name}=...) is {aggregate!r}, not an aggregate",
                    operation="describe",
                    hint="Use hf.count, hf.sum, hf.min, hf.max, hf.avg, hf.first, hf.last and the like.",
                )
            check_aggregate(name, aggregate)
            if name in self.keys:
                raise PlanError(f"agg({name}=...) has the name of a key", operation="describe")
            if self.windows and name in (WINDOW_START, WINDOW_END):
                raise PlanError(f"agg({name}=...) has the name of a window column", operation="describe")
        upstream, computed = self.stream.node, tuple(aggregates.items())
        if self.windows is None:
            return self.stream._stateful(nodes.RunningAggregate(upstream, self.keys, computed, self.at_end))
        return self.stream._stateful(nodes.WindowAggregate(upstream, self.keys, computed, self.windows))
