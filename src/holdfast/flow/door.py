"""Dedup at the door: what `ids=` of a source puts behind it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.duration import microseconds
from holdfast.core.errors import PlanError
from holdfast.flow.nodes import Dedup, Source
from holdfast.flow.windows import event_time


def dedup_at_the_door(
    source: Source, ids: str | Sequence[str] | None, time: str | None, within: str | None
) -> Dedup | None:
    """The step that lets each id of a source through once, None where nothing says what an id is.

    With `time` and `within`, once a span of event time, as `Stream.dedup` does; without, once for ever.
    """
    where = f"source {source.name!r}"
    if (time is None) != (within is None):
        raise PlanError(
            f"{where} has one of time= and within=, and each needs the other",
            operation="describe",
            hint='Write ids="id", time="ts", within="1 day"; or leave both out, and an id goes through once for ever.',
        )
    if ids is None:
        if time is not None:
            raise PlanError(
                f"{where} has time= and within=, which are for ids=",
                operation="describe",
                hint='Write ids="id" beside them, or leave them out.',
            )
        return None
    columns = (ids,) if isinstance(ids, str) else tuple(ids)
    if not columns or len(set(columns)) != len(columns):
        raise PlanError(
            f"{where} needs id columns, each once, not ids={ids!r}",
            operation="describe",
            hint='Write ids="id", or ids=["shop", "order"] where several columns make the id.',
        )
    if time is None or within is None:
        return Dedup(source, columns, None, None, at_the_door=True)
    within_us = microseconds(within, "within")
    return Dedup(source, columns, within_us, event_time(time, within_us, None), at_the_door=True)
